package storetest

import (
	"math"
	"time"

	"github.com/idemmail/idemmail"
)

// entry looks a key up that must be held.
func (p *probe) entry(key string) idemmail.Entry {
	e, err := p.keeper().Lookup(p.ctx, key)
	if err != nil {
		p.stopf("Lookup(%q): %w", key, err)
	}
	if e == nil {
		p.stopf("Lookup(%q) of a held key answered nothing", key)
	}
	return *e
}

// nothing notes whether Lookup finds anything.
func (p *probe) nothing(key, when string) {
	e, err := p.keeper().Lookup(p.ctx, key)
	switch {
	case err != nil:
		p.failf("%s, Lookup must answer nil and nil; it answered %w", when, err)
	case e != nil:
		p.failf("%s, Lookup must answer nil and nil; it answered the entry of %q with %s", when, e.Key, show(&e.Record))
	}
}

// abandon keeps a new key done with status unknown; it answers key and token.
func (p *probe) abandon(number int, ttl time.Duration) (key, token string) {
	key = p.key()
	return key, p.keep(key, idemmail.Record{State: idemmail.StateDone, Fingerprint: mine, Receipt: unknown(number)}, ttl)
}

// matches notes where an entry is not what is wanted.
func (p *probe) matches(method string, e idemmail.Entry, key string, want idemmail.Record) {
	if e.Key != key {
		p.failf("%s of the key %q answered an entry with the key %q", method, key, e.Key)
	}
	if e.Token == "" {
		p.failf("%s: the entry has no token, so nothing fences Resolve and Forget", method)
	}
	if e.Record.State != want.State || e.Record.Fingerprint != want.Fingerprint {
		p.failf("%s: the entry must have state %q and fingerprint %q; it has %s", method, want.State, want.Fingerprint, show(&e.Record))
	}
	for _, d := range differences(want.Receipt, e.Record.Receipt) {
		p.failf("%s: %s", method, d)
	}
}

var lookupRules = []rule{
	{
		name:  "lookup",
		wants: "Lookup answers what holds a key: its state, fingerprint, receipt and token, of a pending and of a done record alike",
		of:    reconciles,
		needs: append([]string{"fingerprint", "receipt-fields"}, needComplete...),
		run: func(p *probe) {
			pending, done := p.key(), p.key()
			p.take(pending, long)
			p.matches("Lookup of a pending key", p.entry(pending), pending, idemmail.Record{State: idemmail.StatePending, Fingerprint: mine})
			rec := idemmail.Record{State: idemmail.StateDone, Fingerprint: mine, Receipt: fullReceipt()}
			p.keep(done, rec, long)
			p.matches("Lookup of a done key", p.entry(done), done, rec)
			p.pending(pending, "looked up")
		},
	},
	{
		name:  "lookup-nothing",
		wants: "Lookup of a key that nothing holds answers nil and a nil error, also where a record has ended but is not cleaned up",
		of:    reconciles,
		needs: append([]string{"lookup"}, needExpiry...),
		run: func(p *probe) {
			p.nothing(p.key(), "never reserved")
			released, expired := p.key(), p.key()
			p.give(released, p.take(released, long))
			p.nothing(released, "released")
			p.take(expired, p.short())
			done, _ := p.sent(1, p.short())
			p.outlive(p.short())
			p.nothing(expired, "after its lease")
			p.nothing(done, "after its TTL")
		},
	},
	{
		name: "lookup-expires",
		wants: "ExpiresAt is when the record ends, by the store's clock, and zero for one that never does; " +
			"an operator sees by it how much time is left",
		of:    reconciles,
		needs: append([]string{"long-durations", "complete-again", "lookup", "no-expiry", "renew"}, needExpiry...),
		run:   lookupExpires,
	},
	{
		name:  "lookup-age",
		wants: "Lookup answers the record's age, by the store's clock",
		of:    reconciles,
		needs: append([]string{"lookup", "age"}, needComplete...),
		run: func(p *probe) {
			pending := p.key()
			var done string
			reserved := p.born(func() { p.take(pending, idemmail.NoExpiry) })
			completed := p.born(func() { done, _ = p.abandon(1, long) })
			p.grow()
			asked := p.now()
			p.age("a pending key", p.entry(pending).Record.Age, reserved, asked)
			asked = p.now()
			p.age("a done key", p.entry(done).Record.Age, completed, asked)
		},
	},
	{
		name:  "lookup-keys",
		wants: "Lookup takes a key exactly as Reserve does",
		of:    reconciles,
		needs: append([]string{"lookup-nothing", "lookup", "keys"}, needReserve...),
		run: func(p *probe) {
			keys := oddKeys(p.prefix)
			for i, key := range keys {
				if i%2 == 0 {
					p.takeFor(key, key, long)
				}
			}
			for i, key := range keys {
				e, err := p.keeper().Lookup(p.ctx, key)
				switch {
				case err != nil:
					p.failf("Lookup(%q): %w", key, err)
				case i%2 != 0 && e != nil:
					p.failf("Lookup(%q), which was never reserved, answered the entry of %q", key, e.Key)
				case i%2 == 0 && e == nil:
					p.failf("Lookup(%q), which was reserved, answered nothing", key)
				case i%2 == 0 && (e.Key != key || e.Record.Fingerprint != key):
					p.failf("Lookup(%q) answered the entry of %q with %s", key, e.Key, show(&e.Record))
				}
			}
		},
	},
}

func lookupExpires(p *probe) {
	// The store's clock is not known, so ends are compared with each other.
	began := p.now()
	one, two, forever := p.key(), p.key(), p.key()
	token := p.take(one, long)
	p.take(two, 2*long)
	p.take(forever, idemmail.NoExpiry)
	done, _ := p.abandon(1, 3*long)
	kept, _ := p.abandon(2, idemmail.NoExpiry)
	ends := make(map[string]time.Time)
	for _, key := range []string{one, two, done} {
		ends[key] = p.entry(key).ExpiresAt
		if ends[key].IsZero() {
			p.stopf("a record with an end: ExpiresAt is zero")
		}
	}
	for _, key := range []string{forever, kept} {
		if at := p.entry(key).ExpiresAt; !at.IsZero() {
			p.failf("a record that never ends: ExpiresAt must be zero; it is %v", at)
		}
	}
	apart := func(what string, from, to time.Time, want time.Duration) {
		slip := p.since(began) + p.margin()
		if got := to.Sub(from); got < want-slip || got > want+slip {
			p.failf("%s: ExpiresAt must be about %v later; it is %v later", what, want, got)
		}
	}
	apart("reserved for twice the lease", ends[one], ends[two], long)
	apart("completed for three times the lease", ends[one], ends[done], 2*long)

	endlessKey := p.key()
	p.take(endlessKey, math.MaxInt64)
	if at := p.entry(endlessKey).ExpiresAt; !at.IsZero() && at.Before(ends[done]) {
		p.failf("reserved for %v: ExpiresAt is %v, before that of %v", time.Duration(math.MaxInt64), at, 3*long)
	}
	p.settle(one, token, 3, 4*long)
	apart("completed for four times the lease", ends[one], p.entry(one).ExpiresAt, 3*long)
	p.settle(one, token, 3, idemmail.NoExpiry)
	if at := p.entry(one).ExpiresAt; !at.IsZero() {
		p.failf("completed again with NoExpiry: ExpiresAt must be zero; it is %v", at)
	}
	if renewer, ok := p.store.(idemmail.Renewer); ok {
		key := p.key()
		token := p.take(key, long)
		p.ok(renewer.Renew(p.ctx, key, token, 5*long), "renewing")
		apart("renewed for five times the lease", ends[one], p.entry(key).ExpiresAt, 4*long)
	}
}
