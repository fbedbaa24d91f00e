package idemmail

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// A hold is a send's grip on its keys: it gives the send its context, which
// ends with the caller's, when MaxSend has passed, and when the lease of a
// call that is sent alone is lost; and it renews the leases of a send that
// lasts longer than a third of them. It runs on a timer, so a send that is
// over sooner costs no goroutine.
type hold struct {
	guard  *Guard
	caller context.Context // its end does not end the renewal: the send may go on
	cancel context.CancelCauseFunc
	limit  time.Time // when MaxSend has passed; zero: never
	calls  []*call
	timer  *time.Timer // nil: nothing to be done

	mu   sync.Mutex    // guards what follows; never held while the store is asked
	over bool          // the send has ended: what the store still answers is ignored
	busy chan struct{} // closed when the latest renewal has ended; nil: there was none
}

// errMaxSend is the cause of a context that MaxSend ended. It is a deadline
// like any other.
var errMaxSend = fmt.Errorf("idemmail: MaxSend has passed: %w", context.DeadlineExceeded)

// hold begins to hold the keys of the calls, until end.
func (g *Guard) hold(ctx context.Context, calls []*call) (*hold, context.Context) {
	sending, cancel := context.WithCancelCause(ctx)
	h := &hold{guard: g, caller: ctx, cancel: cancel, calls: calls}
	if g.options.MaxSend > 0 {
		h.limit = time.Now().Add(g.options.MaxSend)
	}
	h.mu.Lock() // the first tick waits until there is a timer to be set anew
	defer h.mu.Unlock()
	// A third leaves time for more tries before a lease ends. It began when it
	// was asked for, at the earliest.
	oldest := calls[0].asked
	for _, c := range calls {
		if c.asked.Before(oldest) {
			oldest = c.asked
		}
	}
	h.schedule(g.options.Lease/3 - time.Since(oldest))
	return h, sending
}

// end ends the hold. It waits for a renewal that is under way: none comes
// after the key was settled.
func (h *hold) end() {
	h.mu.Lock()
	h.over = true
	busy := h.busy
	h.mu.Unlock()
	if busy != nil {
		<-busy
	}
	if h.timer != nil {
		h.timer.Stop()
	}
	h.cancel(nil)
}

// schedule sets the timer for the next renewal, or for the end of MaxSend if
// that comes first.
func (h *hold) schedule(renewal time.Duration) {
	next := time.Duration(-1)
	if h.renews() {
		next = max(renewal, 1)
	}
	if !h.limit.IsZero() {
		if left := max(time.Until(h.limit), 0); next < 0 || left < next {
			next = left
		}
	}
	switch {
	case next < 0:
	case h.timer == nil:
		h.timer = time.AfterFunc(next, h.tick)
	default:
		h.timer.Reset(next)
	}
}

// renews reports whether any lease is left to be renewed.
func (h *hold) renews() bool {
	if h.guard.keeper.renewer == nil || h.guard.options.Lease == NoExpiry {
		return false
	}
	for _, c := range h.calls {
		if c.token != "" && !c.lost {
			return true
		}
	}
	return false
}

func (h *hold) tick() {
	h.mu.Lock()
	if h.over {
		h.mu.Unlock()
		return
	}
	busy := make(chan struct{})
	h.busy = busy
	h.mu.Unlock()
	defer close(busy)

	if !h.limit.IsZero() && !time.Now().Before(h.limit) {
		h.cancel(errMaxSend)
		return
	}
	h.renew()
}

// ended reports whether the send has ended.
func (h *hold) ended() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.over
}

// renew extends the leases once and sets the timer anew: sooner where the
// store failed, so that there are more tries before the lease ends.
func (h *hold) renew() {
	g, ctx := h.guard, detach(h.caller)
	if !h.limit.IsZero() { // a renewal that hangs holds up no more than itself
		limit := time.AfterFunc(time.Until(h.limit), func() { h.cancel(errMaxSend) })
		defer limit.Stop()
	}
	var leased []*call
	for _, c := range h.calls {
		if c.token != "" && !c.lost {
			leased = append(leased, c)
		}
	}
	errs := g.keeper.renew(ctx, leased, g.lease(), h.ended)
	if h.ended() {
		return
	}
	next := g.options.Lease / 3
	for i, c := range leased {
		switch err := errs[i]; {
		case err == nil:
			g.reportStore(ctx, c, EventRenewed, nil)
		case errors.Is(err, ErrLeaseLost):
			c.lost = true
			g.reportStore(ctx, c, EventLeaseLost, err)
			if c.alone {
				h.cancel(err)
			}
		default:
			g.reportStore(ctx, c, EventStoreFailed, err)
			next = g.options.Lease / 12
		}
	}
	h.schedule(next)
}
