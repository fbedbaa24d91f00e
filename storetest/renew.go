package storetest

import (
	"errors"

	"github.com/idemmail/idemmail"
)

var renewRules = []rule{
	{
		name: "renew",
		wants: "Renew under the token that holds the key pending lets the lease begin anew; " +
			"a send that lasts longer than its lease is otherwise overtaken by the next attempt",
		of:    renews,
		needs: needExpiry,
		run: func(p *probe) {
			for _, lease := range p.leases() {
				key := p.key()
				began := p.now()
				token := p.take(key, lease)
				p.pass(lease / 2)
				if err := p.renewer().Renew(p.ctx, key, token, long); err != nil {
					if p.since(began) > lease-p.margin() {
						continue // it may have ended
					}
					p.stopf("Renew within the lease: %w", err)
				}
				p.outlive(lease / 2)
				p.pending(key, "renewed, and after the first lease")
				p.ok(p.complete(key, token, 1, long), "completing with the token that was renewed")
				p.done(key, 1, "renewed and completed")
				return
			}
		},
	},
	{
		name:  "renew-ends",
		wants: "a renewed lease ends when the time that it was renewed for has passed, counted from the renewal, also where that is sooner",
		of:    renews,
		needs: append([]string{"no-expiry", "renew"}, needExpiry...),
		run: func(p *probe) {
			key, forever := p.key(), p.key()
			token := p.take(key, long)
			p.ok(p.renewer().Renew(p.ctx, key, token, p.short()), "renewing")
			token = p.take(forever, idemmail.NoExpiry)
			p.ok(p.renewer().Renew(p.ctx, forever, token, p.short()), "renewing what was reserved with NoExpiry")
			p.outlive(p.short())
			p.free(key, "after the renewed lease")
			p.free(forever, "reserved with NoExpiry, renewed with a lease, and after it")
		},
	},
	{
		name:  "renew-keeps",
		wants: "Renew changes the lease and the age alone: the key keeps its fingerprint and stays pending",
		of:    renews,
		needs: append([]string{"renew"}, needReserve...),
		run: func(p *probe) {
			key := p.key()
			p.ok(p.renewer().Renew(p.ctx, key, p.take(key, long), long), "renewing")
			held := p.held(key, "renewed")
			if held != nil && (held.State != idemmail.StatePending || held.Receipt != nil || held.Fingerprint != mine) {
				p.failf("reserved for %q and renewed, the key shows %s", mine, show(held))
			}
		},
	},
	{
		name:  "renew-no-expiry",
		wants: "Renew with NoExpiry holds the key for ever, whatever its lease was",
		of:    renews,
		needs: append([]string{"renew", "no-expiry"}, needExpiry...),
		run: func(p *probe) {
			limited, forever := p.key(), p.key()
			p.ok(p.renewer().Renew(p.ctx, limited, p.take(limited, long), idemmail.NoExpiry), "renewing with NoExpiry")
			p.ok(p.renewer().Renew(p.ctx, forever, p.take(forever, idemmail.NoExpiry), idemmail.NoExpiry), "renewing NoExpiry with NoExpiry")
			p.endure()
			p.pending(limited, "renewed with NoExpiry")
			p.pending(forever, "reserved and renewed with NoExpiry")
		},
	},
	{
		name:  "renew-age",
		wants: "Renew lets the record's age begin anew: under AtMostOnce a send that is still renewed must not be called abandoned",
		of:    renews,
		needs: append([]string{"renew-no-expiry", "renew", "age"}, needReserve...),
		run: func(p *probe) {
			limited, forever := p.key(), p.key()
			ofLimited, ofForever := p.take(limited, long), p.take(forever, idemmail.NoExpiry)
			p.grow()
			born := p.born(func() {
				p.ok(p.renewer().Renew(p.ctx, limited, ofLimited, long), "renewing")
				p.ok(p.renewer().Renew(p.ctx, forever, ofForever, idemmail.NoExpiry), "renewing what was reserved with NoExpiry")
			})
			for _, key := range []string{limited, forever} {
				p.heldAge(key, "renewed", born)
			}
			p.grow()
			for _, key := range []string{limited, forever} {
				p.heldAge(key, "some time after the renewal", born)
			}
		},
	},
	{
		name: "renew-lost",
		wants: "Renew of a key that the token does not hold pending (missing, done, another's) answers ErrLeaseLost and leaves it: " +
			"the sender learns by it that it must stop",
		of:    renews,
		needs: append([]string{"renew"}, needComplete...),
		run: func(p *probe) {
			lost := func(key, token, what string) {
				p.is(p.renewer().Renew(p.ctx, key, token, long), idemmail.ErrLeaseLost, "renewing %s", what)
			}
			key := p.key()
			stale := p.take(key, long)
			p.give(key, stale)
			lost(key, stale, "a key that was released")
			token, ok := p.free(key, "after a Renew of a key that was released")
			if !ok {
				return
			}
			never := p.key()
			lost(never, stale, "a key that was never reserved")
			p.free(never, "after a Renew of a key that was never reserved")

			lost(key, stale, "with the token of an earlier reservation")
			lost(key, p.take(p.key(), long), "with the token of another key")
			p.pending(key, "after a Renew under another token")
			p.ok(p.complete(key, token, 1, long), "completing with the token that holds the key")
			lost(key, token, "a done key")
			lost(key, stale, "a done key with another token")
			p.done(key, 1, "after a Renew of a done key")
		},
	},
	{
		name: "renew-ended",
		wants: "Renew of a reservation or a receipt whose time has passed, or that another has taken over, answers ErrLeaseLost " +
			"and leaves the key; nor may it prolong what it does not hold",
		of:    renews,
		needs: append([]string{"renew-lost", "renew"}, needExpiry...),
		run: func(p *probe) {
			expired, done, taken := p.key(), p.key(), p.key()
			ofExpired, stale := p.take(expired, p.short()), p.take(taken, p.short())
			ofDone := p.take(done, long)
			p.settle(done, ofDone, 1, p.short())
			p.outlive(p.short())
			p.is(p.renewer().Renew(p.ctx, expired, ofExpired, long), idemmail.ErrLeaseLost, "renewing after the lease")
			p.free(expired, "after a Renew that came after the lease")
			p.is(p.renewer().Renew(p.ctx, done, ofDone, long), idemmail.ErrLeaseLost, "renewing a done key after its TTL")
			p.free(done, "after a Renew that came after the TTL")

			p.take(taken, p.short())
			p.is(p.renewer().Renew(p.ctx, taken, stale, long), idemmail.ErrLeaseLost, "renewing what another has taken over")
			p.outlive(p.short())
			p.free(taken, "after a Renew under the old token, and after the new owner's lease")
		},
	},
	{
		name:  "renew-done-ttl",
		wants: "Renew of a done key does not prolong its TTL",
		of:    renews,
		needs: append([]string{"renew-lost"}, needExpiry...),
		run: func(p *probe) {
			key, token := p.sent(1, p.short())
			p.is(p.renewer().Renew(p.ctx, key, token, long), idemmail.ErrLeaseLost, "renewing a done key")
			p.outlive(p.short())
			p.free(key, "after a Renew of a done key, and after its TTL")
		},
	},
	{
		name:  "renew-refused",
		wants: "Renew refuses a lease of zero, and any negative one but NoExpiry, with an error and leaves the lease as it was",
		of:    renews,
		needs: append([]string{"renew"}, needExpiry...),
		run: func(p *probe) {
			ending, lasting := p.keys(len(refused)), p.keys(len(refused))
			for i, lease := range refused {
				for _, key := range []string{ending[i], lasting[i]} {
					was := long
					if key == ending[i] {
						was = p.short()
					}
					if p.renewer().Renew(p.ctx, key, p.take(key, was), lease) == nil {
						p.failf("Renew with a lease of %v must be refused; it answered no error", lease)
					}
				}
			}
			p.outlive(p.short())
			for i := range refused {
				p.free(ending[i], "after a Renew that was refused, and after the lease")
				p.pending(lasting[i], "after a Renew that was refused, and within the lease")
			}
		},
	},
	{
		name:  "renew-durations",
		wants: "Renew rounds a tiny lease up and does not overflow with a long one",
		of:    renews,
		needs: append([]string{"renew-ends", "renew", "tiny-durations", "long-durations"}, needExpiry...),
		run: func(p *probe) {
			little, much := p.keys(len(tiny)), p.keys(len(endless))
			for i, lease := range tiny {
				p.ok(p.renewer().Renew(p.ctx, little[i], p.take(little[i], long), lease), "renewing with a lease of %v", lease)
			}
			for i, lease := range endless {
				p.ok(p.renewer().Renew(p.ctx, much[i], p.take(much[i], long), lease), "renewing with a lease of %v", lease)
			}
			p.outlive(p.short())
			for i, lease := range tiny {
				p.free(little[i], "long after it was renewed for "+lease.String())
			}
			p.endure()
			for i, lease := range endless {
				p.pending(much[i], "renewed for "+lease.String())
			}
		},
	},
	{
		name:  "renew-context",
		wants: "Renew under a context that has ended answers an error that wraps the context's",
		of:    renews,
		needs: append([]string{"renew"}, needReserve...),
		run: func(p *probe) {
			for _, ctx := range p.ended() {
				key := p.key()
				p.is(p.renewer().Renew(ctx, key, p.take(key, long), long), ctx.Err(), "Renew")
			}
		},
	},
	{
		name: "race-renew-settle",
		wants: "a Renew never undoes a Complete or a Release under the same token that come at the same moment: " +
			"it checks and writes in one step",
		of:    renews,
		needs: append([]string{"renew-lost"}, needComplete...),
		run: func(p *probe) {
			n := 0
			p.again(func() {
				key := p.key()
				token := p.take(key, long)
				n++
				p.together(2, func(i int) {
					switch {
					case i == 0:
						if err := p.renewer().Renew(p.ctx, key, token, long); err != nil && !errors.Is(err, idemmail.ErrLeaseLost) {
							p.failf("renewing: %w", err)
						}
					case n%2 == 0:
						p.ok(p.complete(key, token, 1, long), "completing what the token holds")
					default:
						p.ok(p.store.Release(p.ctx, key, token), "releasing what the token holds")
					}
				})
				if n%2 == 0 {
					p.done(key, 1, "after a Complete and a Renew under one token")
				} else {
					p.free(key, "after a Release and a Renew under one token")
				}
			})
		},
	},
	{
		name:  "race-renew-expired",
		wants: "a late Renew answers ErrLeaseLost and leaves the reservation that takes the key over at the same moment",
		of:    renews,
		needs: append([]string{"race-expired", "renew-ended"}, needExpiry...),
		run: func(p *probe) {
			p.takeovers(func(s stage) {
				winner := p.contend(s.key, nil, func() {
					p.is(p.renewer().Renew(p.ctx, s.key, s.token, long), idemmail.ErrLeaseLost, "a late Renew")
				})
				p.won(s.key, winner, "after a race between a late Renew and those who take the key over")
			})
		},
	},
}
