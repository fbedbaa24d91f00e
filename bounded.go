package idemmail

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// storeGrace is how long a store whose context has ended may take to return
// before it is left behind.
const storeGrace = 100 * time.Millisecond

// Awaited reports whether the end of ctx is watched by whoever called the store
// with it: a [Guard] makes each call of its store in a goroutine of its own and
// leaves it behind soon after its context ends. A store that would need another
// goroutine for that, because its client does not notice every end of a
// context, can do without it in such a call. So can one that would free by
// itself what it reserved too late: the Guard takes the answer however late it
// comes, and frees the key. Who passes such a context on and does not wait for
// the answer himself has to give it an end of his own.
//
// It reports false for the context of any other caller, and for one that was
// made from a Guard's and ends by itself.
func Awaited(ctx context.Context) bool {
	done, ok := ctx.Value(awaitedKey{}).(<-chan struct{})
	return ok && done == ctx.Done()
}

// awaitedKey is under which a context has the Done of the one that is awaited.
type awaitedKey struct{}

// bounded calls a store and returns soon after timeout or the end of ctx,
// whether or not the store does. A store that does not is left behind in its
// goroutine; what it answers in the end goes to late, if there is one. A panic
// in the store, or a runtime.Goexit, is an error of the store.
func bounded[T any](ctx context.Context, timeout time.Duration, do func(context.Context) T, late func(T)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	ctx = context.WithValue(ctx, awaitedKey{}, ctx.Done())
	type answer struct {
		value T
		err   error
	}
	answers := make(chan answer)
	gone := make(chan struct{})
	defer close(gone)
	go func() {
		a := answer{err: errors.New("store ended the goroutine of its call")} // unless it returns
		defer func() {
			if p := recover(); p != nil {
				a.err = fmt.Errorf("store panicked: %v", p)
			}
			select {
			case answers <- a:
			case <-gone:
				if late != nil && a.err == nil {
					late(a.value)
				}
			}
		}()
		a.value = do(ctx)
		a.err = nil
	}()

	select {
	case a := <-answers:
		return a.value, a.err
	case <-ctx.Done():
	}
	grace := time.NewTimer(storeGrace)
	defer grace.Stop()
	select {
	case a := <-answers:
		return a.value, a.err
	case <-grace.C:
		var none T
		return none, fmt.Errorf("store did not return in time: %w", context.Cause(ctx))
	}
}

// A boundedStore is a store each of whose calls is bounded. The receipts that
// it passes on, in and out, are copies: a store that was left behind may still
// read them when their caller has changed his, and one that answers what it
// keeps must not find it changed.
type boundedStore struct {
	store   Store
	timeout time.Duration
}

func (s boundedStore) Reserve(ctx context.Context, key, fingerprint string, lease time.Duration) (string, *Record, error) {
	r, err := bounded(ctx, s.timeout, func(ctx context.Context) ReserveResult {
		token, held, err := s.store.Reserve(ctx, key, fingerprint, lease)
		return ReserveResult{Token: token, Held: held, Err: err}
	}, func(late ReserveResult) {
		if late.Token == "" {
			return
		}
		s.insistLate(ctx, func(ctx context.Context) (done bool) { return final(s.Release(ctx, key, late.Token)) })
	})
	if err != nil {
		return "", nil, err
	}
	return r.Token, r.Held.clone(), r.Err
}

func (s boundedStore) Complete(ctx context.Context, key, token string, rec Record, ttl time.Duration) error {
	rec.Receipt = rec.Receipt.clone()
	return s.one(ctx, func(ctx context.Context) error { return s.store.Complete(ctx, key, token, rec, ttl) })
}

func (s boundedStore) Release(ctx context.Context, key, token string) error {
	return s.one(ctx, func(ctx context.Context) error { return s.store.Release(ctx, key, token) })
}

func (s boundedStore) one(ctx context.Context, do func(context.Context) error) error {
	err, late := bounded(ctx, s.timeout, do, nil)
	if late != nil {
		return late
	}
	return err
}

// lateTimeouts is for how many StoreTimeouts the freeing of what was reserved
// too late is tried: nobody waits for that, and under AtMostOnce no lease ends.
const lateTimeouts = 4

func (s boundedStore) insistLate(ctx context.Context, step func(context.Context) (done bool)) {
	for range lateTimeouts {
		if insist(ctx, s.timeout, step) {
			return
		}
	}
}

// boundedRenewer is boundedStore for a store that renews.
type boundedRenewer struct {
	boundedStore
	renewer Renewer
}

func (s boundedRenewer) Renew(ctx context.Context, key, token string, lease time.Duration) error {
	return s.one(ctx, func(ctx context.Context) error { return s.renewer.Renew(ctx, key, token, lease) })
}

// boundedBatch is boundedStore for a store that takes many keys at once.
type boundedBatch struct {
	boundedStore
	batch BatchStore
}

func (s boundedBatch) ReserveMany(ctx context.Context, reqs []ReserveRequest) []ReserveResult {
	results, err := bounded(ctx, s.timeout, func(ctx context.Context) []ReserveResult {
		return s.batch.ReserveMany(ctx, reqs)
	}, func(late []ReserveResult) {
		s.insistLate(ctx, s.discard(reqs, late))
	})
	if err == nil && len(results) == len(reqs) {
		for i := range results {
			results[i].Held = results[i].Held.clone()
		}
		return results
	}
	if err == nil {
		err = errMiscounted(len(results), len(reqs))
		insist(ctx, s.timeout, s.discard(reqs, results))
	}
	results = make([]ReserveResult, len(reqs))
	for i := range results {
		results[i].Err = err
	}
	return results
}

// discard is the step that frees those of the keys that were reserved.
func (s boundedBatch) discard(reqs []ReserveRequest, results []ReserveResult) func(context.Context) (done bool) {
	var left []ReleaseRequest
	for i := range min(len(results), len(reqs)) {
		if token := results[i].Token; token != "" {
			left = append(left, ReleaseRequest{Key: reqs[i].Key, Token: token})
		}
	}
	return func(ctx context.Context) (done bool) {
		if len(left) == 0 {
			return true
		}
		var failed []ReleaseRequest
		for i, err := range s.ReleaseMany(ctx, left) {
			if !final(err) {
				failed = append(failed, left[i])
			}
		}
		left = failed
		return len(left) == 0
	}
}

func (s boundedBatch) CompleteMany(ctx context.Context, reqs []CompleteRequest) []error {
	for i := range reqs {
		reqs[i].Record.Receipt = reqs[i].Record.Receipt.clone()
	}
	return s.many(ctx, len(reqs), func(ctx context.Context) []error { return s.batch.CompleteMany(ctx, reqs) })
}

func (s boundedBatch) ReleaseMany(ctx context.Context, reqs []ReleaseRequest) []error {
	return s.many(ctx, len(reqs), func(ctx context.Context) []error { return s.batch.ReleaseMany(ctx, reqs) })
}

func (s boundedBatch) RenewMany(ctx context.Context, reqs []RenewRequest) []error {
	return s.many(ctx, len(reqs), func(ctx context.Context) []error { return s.batch.RenewMany(ctx, reqs) })
}

// many answers n errors, whatever the store does.
func (s boundedBatch) many(ctx context.Context, n int, do func(context.Context) []error) []error {
	errs, err := bounded(ctx, s.timeout, do, nil)
	if err == nil && len(errs) == n {
		return errs
	}
	if err == nil {
		err = errMiscounted(len(errs), n)
	}
	errs = make([]error, n)
	for i := range errs {
		errs[i] = err
	}
	return errs
}

func errMiscounted(got, want int) error {
	return fmt.Errorf("store answered %d results to %d requests", got, want)
}
