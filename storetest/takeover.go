package storetest

import "github.com/idemmail/idemmail"

// takenOver makes a key whose lease passed and which another reservation took.
func (p *probe) takenOver() (key, stale, token string) {
	key = p.key()
	stale = p.take(key, p.short())
	p.outlive(p.short())
	return key, stale, p.take(key, long)
}

var takeoverRules = []rule{
	{
		name: "takeover-complete",
		wants: "Complete after another reservation took the key over answers ErrLeaseLost and leaves the new record; " +
			"otherwise the late one overwrites a send that is under way, and a third may begin",
		needs: append([]string{"complete-foreign"}, needExpiry...),
		run: func(p *probe) {
			key, stale, token := p.takenOver()
			p.is(p.complete(key, stale, 1, long), idemmail.ErrLeaseLost, "completing with the old token")
			p.pending(key, "after a Complete with the old token")
			p.ok(p.complete(key, token, 2, long), "completing with the new token")
			p.is(p.complete(key, stale, 1, long), idemmail.ErrLeaseLost, "completing with the old token what the new owner has completed")
			p.done(key, 2, "after a Complete with the old token")
		},
	},
	{
		name: "takeover-release",
		wants: "Release after another reservation took the key over answers ErrLeaseLost and leaves the new record; " +
			"otherwise it frees a key whose send is under way",
		needs: append([]string{"release-foreign"}, needExpiry...),
		run: func(p *probe) {
			key, stale, token := p.takenOver()
			p.is(p.store.Release(p.ctx, key, stale), idemmail.ErrLeaseLost, "releasing with the old token")
			p.pending(key, "after a Release with the old token")
			p.ok(p.complete(key, token, 1, long), "completing with the new token")
			p.is(p.store.Release(p.ctx, key, stale), idemmail.ErrLeaseLost, "releasing with the old token what the new owner has completed")
			p.done(key, 1, "after a Release with the old token")
		},
	},
	{
		name: "takeover-clean",
		wants: "a record taken over shows nothing of the old one: " +
			"neither its receipt nor its fingerprint, its age, its end or its token; the old receipt is another mail's",
		needs: append([]string{"takeover-complete", "receipt-lists", "complete-foreign", "age", "no-expiry"}, needExpiry...),
		run:   takeoverClean,
	},
	{
		name: "complete-expired",
		wants: "Complete of a key whose record has ended, its own or another's, keeps the new record: " +
			"nothing holds the key, and the mail went",
		needs: append([]string{"complete-free", "complete-again", "complete-foreign"}, needExpiry...),
		run: func(p *probe) {
			pending, done, twice := p.key(), p.key(), p.key()
			ofPending := p.take(pending, p.short())
			ofDone := p.take(done, long)
			p.settle(done, ofDone, 1, p.short())
			first := p.take(twice, long)
			p.give(twice, first)
			second := p.take(twice, p.short())
			p.outlive(p.short())

			p.ok(p.complete(pending, ofPending, 1, long), "completing after the own lease has passed")
			p.done(pending, 1, "completed after its lease")
			p.ok(p.complete(done, ofDone, 2, long), "completing again after the TTL has passed")
			p.done(done, 2, "completed again after its TTL")
			p.ok(p.complete(twice, first, 3, long), "completing after another's lease has passed too")
			p.done(twice, 3, "completed after another's lease")
			p.is(p.complete(twice, second, 4, long), idemmail.ErrLeaseLost, "completing after the lease has passed and another has completed")
			p.done(twice, 3, "after a Complete that came too late")
		},
	},
	{
		name:  "release-expired",
		wants: "Release of a key whose record has ended, its own or another's, is no error: nothing holds the key",
		needs: append([]string{"release-nothing"}, needExpiry...),
		run: func(p *probe) {
			own, others := p.key(), p.key()
			token := p.take(own, p.short())
			stale := p.take(others, long)
			p.give(others, stale)
			p.take(others, p.short())
			p.outlive(p.short())
			p.ok(p.store.Release(p.ctx, own, token), "releasing after the own lease has passed")
			p.free(own, "released after its lease")
			p.ok(p.store.Release(p.ctx, others, stale), "releasing after another's lease has passed")
			p.free(others, "released after another's lease")
		},
	},
}

func takeoverClean(p *probe) {
	// What is taken over: a reservation, a short-lived receipt with all its
	// fields, and a key whose new record never ends.
	pending, done, forever := p.key(), p.key(), p.key()
	p.take(pending, p.short())
	p.take(forever, p.short())
	stale := p.keep(done, idemmail.Record{State: idemmail.StateDone, Fingerprint: mine, Receipt: fullReceipt()}, p.short())
	p.grow()
	p.outlive(p.short())

	for _, key := range []string{pending, done, forever} {
		lease := long
		if key == forever {
			lease = idemmail.NoExpiry
		}
		var token string
		born := p.born(func() { token = p.takeFor(other, key, lease) })
		asked := p.now()
		held := p.held(key, "taken over")
		if held == nil {
			continue
		}
		if held.State != idemmail.StatePending || held.Receipt != nil || held.Fingerprint != other {
			p.failf("reserved for %q in place of a record that has ended, the key shows %s", other, show(held))
		}
		p.age("taken over", held.Age, born, asked)
		if key != done {
			continue
		}
		p.is(p.complete(done, stale, 1, long), idemmail.ErrLeaseLost, "completing with the token of the record that has ended")
		p.settle(done, token, 2, long)
		if held := p.held(done, "completed"); held != nil {
			for _, d := range differences(receipt(2), held.Receipt) {
				p.failf("the new owner's receipt is not what it kept: %s", d)
			}
		}
	}
	p.endure()
	p.held(forever, "reserved with NoExpiry in place of a record that had an end")
}
