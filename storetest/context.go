package storetest

import (
	"context"
	"errors"
	"time"
)

// ended answers contexts that have ended: one was cancelled, one is late.
func (p *probe) ended() []context.Context {
	cancelled, cancel := context.WithCancel(p.ctx)
	cancel()
	late, cancel := context.WithDeadline(p.ctx, time.Now().Add(-time.Hour))
	cancel()
	return []context.Context{cancelled, late}
}

// freed notes whether a key does not become free. A store may free what it may
// have taken after it has answered, so it gets a while.
func (p *probe) freed(key, when string) {
	const (
		patience = 2 * time.Second
		pause    = 10 * time.Millisecond
	)
	for deadline := time.Now().Add(patience); ; p.sleep(pause) {
		_, held := p.ask(key, other, long)
		if held == nil {
			return
		}
		if time.Now().After(deadline) {
			p.failf("%s, the key must be free; Reserve answered %s", when, show(held))
			return
		}
	}
}

var contextRules = []rule{
	{
		name: "context-ended-reserve",
		wants: "Reserve under a context that has ended answers an error that wraps the context's, and leaves the key free; " +
			"nobody will send under that token, so the key would be stuck",
		needs: needReserve,
		run: func(p *probe) {
			for _, ctx := range p.ended() {
				key := p.key()
				_, _, err := p.store.Reserve(ctx, key, mine, long)
				p.is(err, ctx.Err(), "Reserve")
				if err == nil {
					continue
				}
				p.freed(key, "after a Reserve under a context that had ended")
			}
		},
	},
	{
		name:  "context-ended",
		wants: "Complete and Release under a context that has ended answer an error that wraps the context's",
		needs: needComplete,
		run: func(p *probe) {
			for _, ctx := range p.ended() {
				key := p.key()
				token := p.take(key, long)
				p.is(p.store.Complete(ctx, key, token, record(1), long), ctx.Err(), "Complete")
				key = p.key()
				token = p.take(key, long)
				p.is(p.store.Release(ctx, key, token), ctx.Err(), "Release")
			}
		},
	},
	{
		name: "context-ends-later",
		wants: "what a call has done stays when its context ends afterwards: " +
			"callers cancel theirs as soon as they have the answer",
		needs: needComplete,
		run: func(p *probe) {
			ctx, cancel := context.WithCancel(p.ctx)
			reserved, completed := p.key(), p.key()
			_, _, errReserved := p.store.Reserve(ctx, reserved, mine, long)
			token, _, errToken := p.store.Reserve(ctx, completed, mine, long)
			err := p.store.Complete(ctx, completed, token, record(1), long)
			cancel()
			if err := errors.Join(errReserved, errToken, err); err != nil {
				p.stopf("under a context that had not ended: %w", err)
			}
			p.sleep(20 * time.Millisecond)
			p.pending(reserved, "after the context that it was reserved under has ended")
			p.done(completed, 1, "after the context that it was completed under has ended")
		},
	},
}
