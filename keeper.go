package idemmail

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// A keeper is the one place that talks to the store about sends. It bounds
// every call by the timeout, settles under a context that the caller's end
// does not end, tries again what may be tried again, and lets no answer
// through that a store must not give. A single call is a batch of one.
type keeper struct {
	store   Store
	batch   BatchStore // nil: the store takes one key at a time
	renewer Renewer    // nil: leases cannot be renewed
	timeout time.Duration
	lease   time.Duration // Options.Lease: after it, an owner may be taken for dead

	// inProcess: the store is a MemStore, which never blocks and whose answers
	// are final. Its calls carry no deadline and are not tried again.
	inProcess bool
}

// Pauses between two tries to settle.
const (
	firstSettlePause = 10 * time.Millisecond
	maxSettlePause   = time.Second
)

func newKeeper(store Store, timeout, lease time.Duration) *keeper {
	if s, ok := store.(*MemStore); ok {
		return &keeper{store: s, batch: s, renewer: s, timeout: timeout, lease: lease, inProcess: true}
	}
	b := boundedStore{store, timeout}
	k := &keeper{store: b, timeout: timeout, lease: lease}
	if renewer, ok := store.(Renewer); ok {
		k.renewer = boundedRenewer{b, renewer}
	}
	if batch, ok := store.(BatchStore); ok {
		k.batch = boundedBatch{b, batch}
	}
	return k
}

// together reports whether the store takes the calls at once.
func (k *keeper) together(calls []*call) bool { return k.batch != nil && len(calls) > 1 }

// reserve asks for the keys of the calls. Of each call it sets exactly one of
// token, held and failure.
func (k *keeper) reserve(ctx context.Context, calls []*call, lease time.Duration) {
	if !k.together(calls) {
		for _, c := range calls {
			began := time.Now()
			token, held, err := k.store.Reserve(ctx, c.storeKey, c.fingerprint, lease)
			c.take(ReserveResult{Token: token, Held: held, Err: err}, began)
		}
	} else {
		reqs := make([]ReserveRequest, len(calls))
		for i, c := range calls {
			reqs[i] = ReserveRequest{Key: c.storeKey, Fingerprint: c.fingerprint, Lease: lease}
		}
		began := time.Now()
		results := k.batch.ReserveMany(ctx, reqs)
		for i, c := range calls {
			c.take(results[i], began)
		}
	}
	k.confirm(ctx, calls, lease)
	k.giveUp(ctx, calls)
}

// take notes what the store answered to a reservation that it was asked for at
// that time. A token may stand beside a failure, until giveUp.
func (c *call) take(r ReserveResult, asked time.Time) {
	c.inStore += time.Since(asked)
	c.asked = asked
	if r.Err == nil && (r.Token == "") == (r.Held == nil) {
		r.Err = errNeitherNor
	}
	c.token, c.held, c.failure = r.Token, r.Held, r.Err
	if r.Err != nil {
		c.held = nil
	}
}

// confirm renews the reservations whose lease may be over by now: another
// process may be sending. What is doubtful after that is a failure.
func (k *keeper) confirm(ctx context.Context, calls []*call, lease time.Duration) {
	var doubtful []*call
	for _, c := range calls {
		if k.outlived(c) {
			doubtful = append(doubtful, c)
		}
	}
	if len(doubtful) == 0 {
		return
	}
	if k.renewer != nil {
		began := time.Now()
		errs := k.renew(ctx, doubtful, lease, func() bool { return false })
		for i, c := range doubtful {
			c.inStore += time.Since(began)
			if c.asked = began; errs[i] != nil {
				c.failure = fmt.Errorf("%w: %w", errOutlived, errs[i])
			}
		}
	}
	for _, c := range calls { // also those that have become so meanwhile
		if k.outlived(c) {
			c.failure = errOutlived
		}
	}
}

// outlived reports whether the reservation of a call may be over, or abandoned.
func (k *keeper) outlived(c *call) bool {
	return !k.inProcess && k.lease != NoExpiry && c.token != "" && c.failure == nil && time.Since(c.asked) >= k.lease
}

// giveUp frees, best effort, what calls reserved that failed all the same.
func (k *keeper) giveUp(ctx context.Context, calls []*call) {
	var failed []*call
	var failures []error
	for _, c := range calls {
		if c.token != "" && c.failure != nil {
			failed = append(failed, c)
			failures = append(failures, c.failure)
		}
	}
	if len(failed) == 0 {
		return
	}
	k.persist(ctx, failed, (*keeper).releaseNow)
	for i, c := range failed {
		c.token, c.failure = "", failures[i]
	}
}

var (
	errNeitherNor = errors.New("store answered neither exactly a token nor exactly a record")
	errOutlived   = errors.New("store took longer to reserve the key than its lease lasts")
)

// complete keeps the receipts of the calls that hold a key and did not fail.
// What could not be kept has its failure set.
func (k *keeper) complete(ctx context.Context, calls []*call) {
	k.settle(ctx, calls, (*call).keeps, (*keeper).completeNow)
}

func (k *keeper) completeNow(ctx context.Context, calls []*call) {
	if !k.together(calls) {
		for _, c := range calls {
			c.failure = k.store.Complete(ctx, c.storeKey, c.token, c.record(), c.keepFor)
		}
		return
	}
	reqs := make([]CompleteRequest, len(calls))
	for i, c := range calls {
		reqs[i] = CompleteRequest{Key: c.storeKey, Token: c.token, Record: c.record(), TTL: c.keepFor}
	}
	note(calls, k.batch.CompleteMany(ctx, reqs))
}

// release frees the keys of the calls that hold one and failed. What could not
// be freed has its failure set.
func (k *keeper) release(ctx context.Context, calls []*call) {
	k.settle(ctx, calls, (*call).frees, (*keeper).releaseNow)
}

func (k *keeper) releaseNow(ctx context.Context, calls []*call) {
	if !k.together(calls) {
		for _, c := range calls {
			c.failure = k.store.Release(ctx, c.storeKey, c.token)
		}
		return
	}
	reqs := make([]ReleaseRequest, len(calls))
	for i, c := range calls {
		reqs[i] = ReleaseRequest{Key: c.storeKey, Token: c.token}
	}
	note(calls, k.batch.ReleaseMany(ctx, reqs))
}

// note writes the store's answers down.
func note(calls []*call, errs []error) {
	for i, c := range calls {
		c.failure = errs[i]
	}
}

// renew extends the leases of the calls and answers one error for each. Where
// it asks for one after another, it stops once over says so.
func (k *keeper) renew(ctx context.Context, calls []*call, lease time.Duration, over func() bool) []error {
	if !k.together(calls) {
		errs := make([]error, len(calls))
		for i, c := range calls {
			if over() {
				break
			}
			errs[i] = k.renewer.Renew(ctx, c.storeKey, c.token, lease)
		}
		return errs
	}
	reqs := make([]RenewRequest, len(calls))
	for i, c := range calls {
		reqs[i] = RenewRequest{Key: c.storeKey, Token: c.token, Lease: lease}
	}
	return k.batch.RenewMany(ctx, reqs)
}

// settle does a step for the wanted calls, without the end of the caller's
// context. A key that is settled twice under its token stays as it is, so a
// lost answer does no harm.
func (k *keeper) settle(ctx context.Context, calls []*call, wanted func(*call) bool, step func(*keeper, context.Context, []*call)) {
	if !k.together(calls) {
		for i, c := range calls {
			if wanted(c) {
				k.persist(ctx, calls[i:i+1], step)
			}
		}
		return
	}
	var all []*call
	for _, c := range calls {
		if wanted(c) {
			all = append(all, c)
		}
	}
	if len(all) > 0 {
		k.persist(ctx, all, step)
	}
}

// persist does a step and, within the timeout, does it again for the calls for
// which it failed and may yet succeed.
func (k *keeper) persist(ctx context.Context, calls []*call, step func(*keeper, context.Context, []*call)) {
	began := time.Now()
	left := calls
	once := func(ctx context.Context) (done bool) {
		step(k, ctx, left)
		left = unfinished(left)
		return len(left) == 0
	}
	if k.inProcess {
		once(detach(ctx))
	} else {
		insist(ctx, k.timeout, once)
	}
	for _, c := range calls {
		c.inStore += time.Since(began)
	}
}

// insist does a step that the end of ctx does not end, and does it again, within
// the timeout and with growing pauses, until it says that it is done. It reports
// whether it did.
func insist(ctx context.Context, timeout time.Duration, step func(context.Context) (done bool)) (done bool) {
	began := time.Now()
	ctx = detach(ctx)
	for pause := firstSettlePause; ; pause = min(2*pause, maxSettlePause) {
		// A try leaves half of the time that is left to those that follow: one
		// may hang on a connection that is dead without having been closed, and
		// the next gets another.
		left := timeout - time.Since(began)
		trying, cancel := context.WithTimeout(ctx, min(left, max(left/2, timeout/16)))
		done = step(trying)
		cancel()
		if done || time.Since(began)+pause >= timeout {
			return done
		}
		time.Sleep(pause)
	}
}

// unfinished lists the calls whose last step failed but may yet succeed.
func unfinished(calls []*call) (left []*call) {
	for _, c := range calls {
		if !final(c.failure) {
			left = append(left, c)
		}
	}
	return left
}

// final reports whether a store that answered err would not answer anything
// else if it were asked to settle the key again.
func final(err error) bool {
	return err == nil || errors.Is(err, ErrLeaseLost) || errors.Is(err, ErrBadRecord) || errors.Is(err, ErrStoreFull)
}

// detach is context.WithoutCancel where there is anything to cut off.
func detach(ctx context.Context) context.Context {
	if ctx.Done() == nil {
		return ctx
	}
	return context.WithoutCancel(ctx)
}
