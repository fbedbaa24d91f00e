package storetest

import (
	"fmt"

	"github.com/idemmail/idemmail"
)

// A move is something that happens to a key after an operator has read it.
type move struct {
	what string
	// run takes a new key to where an entry is read of it, then answers that
	// entry and a check that the key is as the move left it.
	run func(p *probe) (e idemmail.Entry, unchanged func(when string))
}

var moves = []move{
	{"its owner completed it", func(p *probe) (idemmail.Entry, func(string)) {
		key := p.key()
		token := p.take(key, long)
		e := p.entry(key)
		p.settle(key, token, 7, long)
		return e, func(when string) { p.done(key, 7, when) }
	}},
	{"its owner completed it with status unknown", func(p *probe) (idemmail.Entry, func(string)) {
		key := p.key()
		token := p.take(key, long)
		e := p.entry(key)
		if err := p.store.Complete(p.ctx, key, token, idemmail.Record{State: idemmail.StateDone, Fingerprint: mine, Receipt: unknown(7)}, long); err != nil {
			p.stopf("Complete: %w", err)
		}
		return e, func(when string) { p.done(key, 7, when) }
	}},
	{"its owner released it", func(p *probe) (idemmail.Entry, func(string)) {
		key := p.key()
		token := p.take(key, long)
		e := p.entry(key)
		p.give(key, token)
		return e, func(when string) { p.free(key, when) }
	}},
	{"its owner released it and another reserved it", func(p *probe) (idemmail.Entry, func(string)) {
		key := p.key()
		token := p.take(key, long)
		e := p.entry(key)
		p.give(key, token)
		p.take(key, long)
		return e, func(when string) { p.pending(key, when) }
	}},
	{"another operator resolved it", func(p *probe) (idemmail.Entry, func(string)) {
		key, _ := p.abandon(1, long)
		e := p.entry(key)
		if err := p.keeper().Resolve(p.ctx, e, receipt(7), long); err != nil {
			p.stopf("Resolve: %w", err)
		}
		return e, func(when string) { p.done(key, 7, when) }
	}},
	{"another operator freed it and it was sent again", func(p *probe) (idemmail.Entry, func(string)) {
		key, _ := p.abandon(1, long)
		e := p.entry(key)
		if err := p.keeper().Forget(p.ctx, e); err != nil {
			p.stopf("Forget: %w", err)
		}
		p.settle(key, p.take(key, long), 7, long)
		return e, func(when string) { p.done(key, 7, when) }
	}},
}

// endedEntries are read while their keys hold, and those end after.
func (p *probe) endedEntries() []idemmail.Entry {
	done, token := p.abandon(1, long)
	entries := []idemmail.Entry{p.entry(done)}
	p.settle(done, token, 1, p.short())
	pending := p.key()
	p.take(pending, p.short())
	// On a machine that dozed it has ended already.
	if e, err := p.keeper().Lookup(p.ctx, pending); err == nil && e != nil {
		entries = append(entries, *e)
	}
	p.outlive(p.short())
	return entries
}

var settleRules = []rule{
	{
		name: "resolve",
		wants: "Resolve keeps the key done with the operator's receipt and the record's own fingerprint, " +
			"whether it was pending or done, by what Lookup and Unsettled answer",
		of:    reconciles,
		needs: append([]string{"lookup", "unsettled"}, needComplete...),
		run: func(p *probe) {
			pending := p.key()
			p.take(pending, long)
			abandoned, _ := p.abandon(1, long)
			for _, key := range []string{pending, abandoned} {
				e := p.entry(key)
				// The fence is token and state; nothing else of the entry counts.
				bare := idemmail.Entry{Key: e.Key, Token: e.Token, Record: idemmail.Record{State: e.Record.State, Fingerprint: "changed by the caller"}}
				given := fullReceipt()
				given.Status = idemmail.StatusSent
				if err := p.keeper().Resolve(p.ctx, bare, given, long); err != nil {
					p.failf("Resolve of a %s key: %w", e.Record.State, err)
					continue
				}
				held := p.held(key, "resolved")
				if held == nil {
					continue
				}
				if held.State != idemmail.StateDone || held.Fingerprint != mine {
					p.failf("a %s key, reserved for %q and resolved, shows %s", e.Record.State, mine, show(held))
				}
				for _, d := range differences(given, held.Receipt) {
					p.failf("a %s key, resolved: %s", e.Record.State, d)
				}
			}
			entries := p.listed(p.prefix, 0)
			if len(entries) != 0 {
				p.failf("resolved as sent, %d of 2 keys are still listed as unsettled", len(entries))
			}
		},
	},
	{
		name:  "forget",
		wants: "Forget frees the key, whether it was pending or done, so that the mail can go",
		of:    reconciles,
		needs: append([]string{"no-expiry", "lookup-nothing", "lookup"}, needComplete...),
		run: func(p *probe) {
			pending := p.key()
			p.take(pending, idemmail.NoExpiry)
			abandoned, _ := p.abandon(1, idemmail.NoExpiry)
			for _, key := range []string{pending, abandoned} {
				e := p.entry(key)
				bare := idemmail.Entry{Key: e.Key, Token: e.Token, Record: idemmail.Record{State: e.Record.State}}
				p.ok(p.keeper().Forget(p.ctx, bare), "Forget of a %s key", e.Record.State)
				p.nothing(key, "forgotten")
				p.free(key, "forgotten")
			}
		},
	},
	{
		name: "resolve-token",
		wants: "Resolve gives the record a new token: the owner that comes back late is answered ErrLeaseLost, " +
			"and the entry has served",
		of:    reconciles,
		needs: append([]string{"resolve", "complete-foreign", "release-foreign"}, needComplete...),
		run: func(p *probe) {
			pending := p.key()
			ofPending := p.take(pending, long)
			abandoned, ofAbandoned := p.abandon(1, long)
			for _, s := range []stage{{pending, ofPending}, {abandoned, ofAbandoned}} {
				key, token, e := s.key, s.token, p.entry(s.key)
				p.ok(p.keeper().Resolve(p.ctx, e, receipt(2), long), "Resolve of a %s key", e.Record.State)
				p.is(p.complete(key, token, 3, long), idemmail.ErrLeaseLost, "completing with the old token what was %s and then resolved", e.Record.State)
				p.is(p.store.Release(p.ctx, key, token), idemmail.ErrLeaseLost, "releasing with the old token what was %s and then resolved", e.Record.State)
				p.is(p.keeper().Resolve(p.ctx, e, receipt(4), long), idemmail.ErrChanged, "resolving a second time by the same entry")
				p.done(key, 2, "resolved, and left alone by all others")
			}
		},
	},
	{
		name:  "resolve-ttl",
		wants: "the TTL of Resolve says how long the record is kept, whatever was left of its lease or TTL, and NoExpiry keeps it for ever",
		of:    reconciles,
		needs: append([]string{"resolve", "no-expiry"}, needExpiry...),
		run: func(p *probe) {
			ending, lasting := p.key(), p.key()
			p.take(ending, idemmail.NoExpiry)
			p.take(lasting, long)
			p.ok(p.keeper().Resolve(p.ctx, p.entry(ending), receipt(1), p.short()), "Resolve")
			p.ok(p.keeper().Resolve(p.ctx, p.entry(lasting), receipt(2), idemmail.NoExpiry), "Resolve with NoExpiry")
			p.outlive(p.short())
			p.free(ending, "resolved, and after its TTL")
			p.endure()
			p.done(lasting, 2, "resolved with NoExpiry")
		},
	},
	{
		name:  "resolve-refused",
		wants: "Resolve refuses a TTL of zero, and any negative one but NoExpiry, with an error and changes nothing",
		of:    reconciles,
		needs: append([]string{"resolve"}, needComplete...),
		run: func(p *probe) {
			for _, ttl := range refused {
				key := p.key()
				p.take(key, long)
				if p.keeper().Resolve(p.ctx, p.entry(key), receipt(1), ttl) == nil {
					p.failf("Resolve with a TTL of %v must be refused; it answered no error", ttl)
					continue
				}
				p.pending(key, "after a Resolve that was refused")
			}
		},
	},
	{
		name: "resolve-fenced",
		wants: "Resolve answers ErrChanged and changes nothing where the key no longer holds the entry's token in the entry's state: " +
			"the operator decided on what is no more",
		of:    reconciles,
		needs: append([]string{"resolve", "forget"}, needComplete...),
		run: func(p *probe) {
			for _, m := range moves {
				e, unchanged := m.run(p)
				p.is(p.keeper().Resolve(p.ctx, e, receipt(9), long), idemmail.ErrChanged, "Resolve of a key after %s", m.what)
				unchanged("after a Resolve of a key that had changed: " + m.what)
			}
		},
	},
	{
		name: "forget-fenced",
		wants: "Forget answers ErrChanged and changes nothing where the key no longer holds the entry's token in the entry's state: " +
			"otherwise it frees a mail that went",
		of:    reconciles,
		needs: append([]string{"resolve", "forget"}, needComplete...),
		run: func(p *probe) {
			for _, m := range moves {
				e, unchanged := m.run(p)
				p.is(p.keeper().Forget(p.ctx, e), idemmail.ErrChanged, "Forget of a key after %s", m.what)
				unchanged("after a Forget of a key that had changed: " + m.what)
			}
		},
	},
	{
		name:  "settle-ended",
		wants: "Resolve and Forget of a key whose time has passed answer ErrChanged and leave it free",
		of:    reconciles,
		needs: append([]string{"ttl-not-lease", "complete-again", "resolve", "forget"}, needExpiry...),
		run: func(p *probe) {
			for _, e := range p.endedEntries() {
				p.is(p.keeper().Resolve(p.ctx, e, receipt(9), long), idemmail.ErrChanged, "Resolve of a %s key after its time", e.Record.State)
				p.is(p.keeper().Forget(p.ctx, e), idemmail.ErrChanged, "Forget of a %s key after its time", e.Record.State)
				p.free(e.Key, fmt.Sprintf("a %s key whose time had passed when it was settled", e.Record.State))
			}
		},
	},
}
