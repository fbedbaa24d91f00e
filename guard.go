package idemmail

import (
	"context"
	"errors"
	"math"
	"slices"
	"time"
)

// A Guard is the engine: it lets a function run once under a key.
// [IdempotencyTransport] is a Guard around a mail transport; NewGuard makes one
// for any other work that must not happen twice, such as somebody's own mailer
// or the handler of a webhook. Options that concern messages (Key, RawKey,
// Fingerprint, MessageIDDomain) do not concern it.
//
// A Guard is safe for concurrent use and has nothing to close.
type Guard struct {
	options Options // with defaults
	keeper  *keeper
	lines   lines
	id      string // stands in receipts as Transport
}

// NewGuard returns a Guard with the options, of which Namespace is required.
// The error names every field that breaks its rule.
func NewGuard(options Options) (*Guard, error) {
	if err := options.validate(); err != nil {
		return nil, err
	}
	options = options.withDefaults()
	if options.Store == nil {
		options.Store = NewMemStore(MemStoreOptions{})
	}
	return &Guard{
		options: options,
		keeper:  newKeeper(options.Store, options.StoreTimeout, options.Lease),
		id:      options.Namespace,
	}, nil
}

// Do runs send once under the key. A later Do under the key is answered with
// the receipt of the first and does not run send. The fingerprint tells one
// piece of work from another under the key; it is kept as "c:"+fingerprint and
// compared whole, or, where it is not text (not valid UTF-8, or with NUL), as
// "c:" and its SHA-256 in hexadecimal. With an empty key send runs as it is,
// unless Options.RequireKey refuses that.
//
// What send returns is read as [Transport] says: a nil receipt and a nil error
// mean that it is done. The context that send gets ends with ctx, when MaxSend
// has passed, and when the lease is lost.
//
// The receipt is never nil for a key that is not empty. The error is nil when
// the work was done, now or before; otherwise it is a [*SendError], which
// matches ErrInFlight, ErrKeyReused, ErrInvalidKey, ErrNotBegun, ErrAborted,
// ErrAbandoned, ErrStoreFailed, ErrDuplicate or ErrDeliveryUnknown, and the
// error of send.
func (g *Guard) Do(ctx context.Context, key, fingerprint string, send func(context.Context) (*Receipt, error)) (*Receipt, error) {
	if key == "" && !g.options.RequireKey {
		return send(ctx)
	}
	c := g.newCall(key)
	if !g.admit(ctx, c) {
		return c.result()
	}
	c.fingerprint = customFingerprint(fingerprint)
	if going := g.reserve(ctx, c.one()); len(going) > 0 {
		g.deliver(ctx, going, func(ctx context.Context) {
			c.sent.Receipt, c.sent.Err = send(ctx)
		})
	}
	return c.result()
}

func (g *Guard) newCall(key string) *call {
	return &call{key: key, began: time.Now(), patient: true, alone: true}
}

// storeKey is a key as the store knows it.
func (g *Guard) storeKey(key string) string { return g.options.Namespace + ":" + key }

// admit refuses a call whose key may not be used, or that comes too late.
func (g *Guard) admit(ctx context.Context, c *call) bool {
	err := checkKey(c.key)
	if c.key == "" {
		err = errKeyRequired
	}
	switch {
	case err != nil:
		g.refuse(c, CodeInvalidKey, err)
	case ended(ctx) != nil:
		g.refuse(c, CodeNotBegun, ended(ctx))
	default:
		c.storeKey = g.storeKey(c.key)
		return true
	}
	g.report(ctx, c)
	return false
}

var errKeyRequired = errors.New("message has no idempotency key, and Options.RequireKey is set")

// reserve takes the keys of the calls, answers every call that is not to be
// sent, and returns the others. The slice that it is given is used up.
func (g *Guard) reserve(ctx context.Context, calls []*call) (going []*call) {
	g.keeper.reserve(ctx, calls, g.lease())
	if err := ended(ctx); err != nil {
		for _, c := range calls {
			c.held = nil // too late to be judged from it
			g.refuse(c, CodeNotBegun, err)
		}
		g.settle(ctx, calls)
		return nil
	}
	for _, c := range calls {
		if g.judge(ctx, c); c.decided() {
			g.report(ctx, c)
		}
	}
	return slices.DeleteFunc(calls, (*call).decided)
}

// judge answers a call from what the store said of its key. It leaves the
// call undecided where it is to be sent: the key is reserved, or the store
// failed and FailOpen lets the message go without a reservation.
func (g *Guard) judge(ctx context.Context, c *call) {
	switch {
	case c.token != "":
	case c.held != nil:
		g.answerFrom(ctx, c, c.held)
		if c.kind == EventInFlight && c.patient && g.options.WaitInFlight > 0 {
			g.await(ctx, c)
		}
	default:
		g.reportStore(ctx, c, EventStoreFailed, c.failure)
		// Where the lease is lost another send has the key: a duplicate, not a
		// mail that would otherwise be lost.
		if !g.options.FailOpen || errors.Is(c.failure, ErrBadRecord) || errors.Is(c.failure, ErrLeaseLost) {
			g.refuse(c, CodeStoreFailed, c.failure)
		}
	}
}

// deliver sends the calls, weighs what became of each, and settles their keys.
// Settling cannot be skipped: a call that send or Classify did not come back
// from, by a panic or by runtime.Goexit, is settled as panicked on the way out.
func (g *Guard) deliver(ctx context.Context, calls []*call, send func(context.Context)) {
	defer g.settle(ctx, calls)
	hold, sending := g.hold(ctx, calls)
	defer hold.end()
	send(sending)
	why := ended(sending)
	if sending.Err() != nil {
		why = context.Cause(sending)
	}
	for _, c := range calls {
		g.weigh(c, why)
	}
}

// ended is ctx.Err(), but takes a deadline for passed as soon as it is: a
// connection that has the same deadline may fail a moment before the context
// does.
func ended(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if deadline, ok := ctx.Deadline(); ok && !time.Now().Before(deadline) {
		return context.DeadlineExceeded
	}
	return nil
}

// settle keeps or frees the keys that the calls hold, and reports the calls.
func (g *Guard) settle(ctx context.Context, calls []*call) {
	for _, c := range calls {
		if !c.decided() {
			g.refuse(c, CodePanicked, nil)
		}
		c.keepFor = g.ttl(c)
	}
	g.keeper.complete(ctx, calls)
	g.keeper.release(ctx, calls)
	for _, c := range calls {
		if c.token != "" && c.failure != nil {
			g.reportUnsettled(ctx, c)
		}
		g.report(ctx, c)
		g.lines.wake(c.key)
	}
}

// lease is how long the store is to hold a key for its send.
func (g *Guard) lease() time.Duration {
	if g.options.AtMostOnce {
		return NoExpiry
	}
	return g.options.Lease
}

// ttl is how long a call's receipt is kept.
func (g *Guard) ttl(c *call) time.Duration {
	ttl := g.options.TTL
	if ttl == NoExpiry || g.options.AtMostOnce && c.receipt.Status == StatusUnknown {
		return NoExpiry
	}
	if ahead := time.Until(c.sendAt); ahead > 0 { // no overflow: Until saturates
		return ttl + min(ahead, math.MaxInt64-ttl)
	}
	return ttl
}
