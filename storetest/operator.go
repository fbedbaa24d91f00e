package storetest

import (
	"fmt"

	"github.com/idemmail/idemmail"
)

var operatorRules = []rule{
	{
		name:  "settle-keys",
		wants: "Resolve and Forget take a key exactly as Reserve does",
		of:    reconciles,
		needs: append([]string{"resolve", "forget", "lookup-keys"}, needComplete...),
		run: func(p *probe) {
			keys := oddKeys(p.prefix)
			for _, key := range keys {
				p.take(key, long)
			}
			for i, key := range keys {
				switch e := p.entry(key); i % 3 {
				case 0:
					p.ok(p.keeper().Forget(p.ctx, e), "forgetting the key %q", key)
				case 1:
					p.ok(p.keeper().Resolve(p.ctx, e, receipt(i), long), "resolving the key %q", key)
				}
			}
			for i, key := range keys {
				_, held := p.ask(key, other, long)
				switch i % 3 {
				case 0:
					if held != nil {
						p.failf("the key %q, which was forgotten, is held by %s", key, show(held))
					}
				case 1:
					if held == nil || held.State != idemmail.StateDone || numberOf(held.Receipt) != i {
						p.failf("the key %q, resolved with receipt %d, shows %s", key, i, show(held))
					}
				default:
					if held == nil || held.State != idemmail.StatePending {
						p.failf("the key %q, which was left alone, shows %s", key, show(held))
					}
				}
			}
		},
	},
	{
		name:  "reconcile-context",
		wants: "Lookup, Unsettled, Resolve and Forget under a context that has ended answer an error that wraps the context's",
		of:    reconciles,
		needs: append([]string{"unsettled"}, needComplete...),
		run: func(p *probe) {
			for _, ctx := range p.ended() {
				key, _ := p.abandon(1, long)
				e := p.entry(key)
				_, err := p.keeper().Lookup(ctx, key)
				p.is(err, ctx.Err(), "Lookup")
				var last error
				for _, err := range p.keeper().Unsettled(ctx, p.prefix, 0) {
					last = err
				}
				p.is(last, ctx.Err(), "Unsettled, at its end,")
				p.is(p.keeper().Resolve(ctx, e, receipt(2), long), ctx.Err(), "Resolve")
				key, _ = p.abandon(1, long)
				p.is(p.keeper().Forget(ctx, p.entry(key)), ctx.Err(), "Forget")
			}
		},
	},
	{
		name:  "reconcile-aliasing",
		wants: "what Lookup and Unsettled answer, and what Resolve is given, shares no memory with what the store keeps",
		of:    reconciles,
		needs: append([]string{"lookup", "unsettled", "resolve", "aliasing"}, needComplete...),
		run: func(p *probe) {
			key := p.key()
			p.keep(key, idemmail.Record{State: idemmail.StateDone, Fingerprint: mine, Receipt: fullReceipt()}, long)
			e := p.entry(key)
			spoil(e.Record.Receipt)
			p.unspoiled(key, "what Lookup had answered")
			e = p.listed(p.prefix, 0)[key]
			spoil(e.Record.Receipt)
			p.unspoiled(key, "what Unsettled had answered")
			given := fullReceipt()
			given.Status = idemmail.StatusSent
			p.ok(p.keeper().Resolve(p.ctx, p.entry(key), given, long), "Resolve")
			spoil(given)
			want := fullReceipt()
			want.Status = idemmail.StatusSent
			p.shows(key, want, "what Resolve was given")
		},
	},
	{
		name: "unsettled-settles",
		wants: "keys may be looked up, resolved, forgotten and reserved while a listing goes on, as an operator's loop does: " +
			"a store that holds a lock or its only connection for the listing hangs",
		of:    reconciles,
		needs: append([]string{"unsettled", "resolve", "forget"}, needComplete...),
		run: func(p *probe) {
			keys := p.keys(30)
			for _, key := range keys {
				p.take(key, long)
			}
			var errs []error // the loop's body must not end the rule
			seen := make(map[string]bool)
			fresh := p.key()
			for e, err := range p.keeper().Unsettled(p.ctx, p.prefix, 0) {
				if err != nil {
					errs = append(errs, fmt.Errorf("while listing, Unsettled: %w", err))
					continue
				}
				if e.Key == fresh || seen[e.Key] {
					continue // may be listed or not, or twice
				}
				seen[e.Key] = true
				if _, err := p.keeper().Lookup(p.ctx, e.Key); err != nil {
					errs = append(errs, fmt.Errorf("while listing, Lookup: %w", err))
				}
				if len(seen)%2 == 0 {
					err = p.keeper().Resolve(p.ctx, e, receipt(1), long)
				} else {
					err = p.keeper().Forget(p.ctx, e)
				}
				if err != nil {
					errs = append(errs, fmt.Errorf("while listing, settling the key: %w", err))
				}
				if _, _, err := p.store.Reserve(p.ctx, fresh, mine, long); err != nil {
					errs = append(errs, fmt.Errorf("while listing, Reserve: %w", err))
				}
			}
			for _, err := range errs {
				p.failf("%w", err)
			}
			if len(seen) != len(keys) {
				p.failf("%d of %d keys were listed while they were settled", len(seen), len(keys))
			}
		},
	},
	{
		name:  "race-operators",
		wants: "of operators who settle one key at the same moment, and its owner, exactly one succeeds: the fence is checked in the same step as the write",
		of:    reconciles,
		needs: append([]string{"complete-free", "resolve-token", "resolve-fenced", "forget-fenced"}, needComplete...),
		run: func(p *probe) {
			n := 0
			p.again(func() {
				key := p.key()
				token := p.take(key, long)
				e := p.entry(key)
				forgets := n%2 == 0 // a Forget frees the key, so then the owner may complete as well
				n++
				errs := make([]error, 3)
				p.together(len(errs), func(i int) {
					switch {
					case i == 2:
						errs[i] = p.complete(key, token, i, long)
					case forgets && i == 1:
						errs[i] = p.keeper().Forget(p.ctx, e)
					default:
						errs[i] = p.keeper().Resolve(p.ctx, e, receipt(i), long)
					}
				})
				winners, kept := 0, -1
				for i, err := range errs {
					want := idemmail.ErrChanged
					if i == 2 {
						want = idemmail.ErrLeaseLost
					}
					if err != nil {
						p.is(err, want, "settling a key that another settled at the same moment")
						continue
					}
					winners++
					if !forgets || i != 1 {
						kept = i
					}
				}
				freed := forgets && errs[1] == nil && errs[2] == nil // and then completed by its owner
				if winners != 1 && !(winners == 2 && freed) {
					p.failf("of two operators and the owner who settled one key at the same moment %d succeeded", winners)
					return
				}
				if kept < 0 {
					p.failf("an operator freed the key, and the owner's Complete at the same moment was refused")
					return
				}
				p.done(key, kept, "after a race of two operators and the owner")
			})
		},
	},
}
