package storetest

import (
	"time"

	"github.com/idemmail/idemmail"
)

// What the other rules build on. A store for which one of these does not hold
// would break most of the others as well, and they could tell nothing more.
var (
	needReserve  = []string{"reserve", "lease-holds", "release", "tokens-differ"}
	needComplete = append([]string{"complete", "ttl-holds"}, needReserve...)
	needExpiry   = append([]string{"lease-ends", "ttl-ends"}, needComplete...)
)

var basicRules = []rule{
	{
		name: "reserve",
		wants: "Reserve answers a token for a free key, and from then on the record that holds it; " +
			"a store that lets a second send have the key sends the mail twice",
		run: func(p *probe) {
			// That the lease is short-lived, or NoExpiry unknown, is for
			// other rules to tell.
			var heldOnce bool
			for _, lease := range []time.Duration{long, idemmail.NoExpiry} {
				key := p.key()
				p.take(key, lease)
				if _, held := p.ask(key, other, lease); held != nil {
					heldOnce = true
				}
			}
			if !heldOnce {
				p.failf("a second Reserve of a key that was just reserved was not answered the record that holds it")
			}
		},
	},
	{
		name: "lease-holds",
		wants: "a reservation lasts for its whole lease; " +
			"where it ends before, the next attempt sends while the first one still does",
		needs: []string{"reserve"},
		run: func(p *probe) {
			for _, lease := range p.leases() {
				key := p.key()
				began := p.now()
				p.take(key, lease)
				_, first := p.ask(key, other, lease)
				if first == nil && p.since(began) < lease-p.margin() {
					p.failf("the key was free at once; its lease was %v", lease)
					return
				}
				p.pass(lease - 2*p.margin())
				_, held := p.ask(key, other, lease)
				passed := p.since(began)
				if held != nil {
					return
				}
				if passed < lease-p.margin() {
					p.failf("the key was free after %v at most; its lease was %v", passed, lease)
					return
				}
			}
		},
	},
	{
		name: "release",
		wants: "Release under the token that holds the key frees it; " +
			"a key that stays after a send that failed answers every retry 'in flight' and the mail never goes",
		needs: []string{"reserve", "lease-holds"},
		run: func(p *probe) {
			key := p.key()
			p.give(key, p.take(key, long))
			p.free(key, "after its release")
			p.pending(key, "reserved again after its release")
		},
	},
	{
		name:  "tokens-differ",
		wants: "each reservation has a token of its own, also one of a key that was reserved before: two equal ones fence nothing",
		needs: []string{"release"},
		run: func(p *probe) {
			seen := make(map[string]bool)
			again := p.key()
			for range 100 {
				for _, key := range []string{p.key(), again} {
					token := p.take(key, long)
					if seen[token] {
						p.stopf("the token %q was given twice", token)
					}
					seen[token] = true
					if key == again {
						p.give(key, token)
					}
				}
			}
		},
	},
	{
		name: "complete",
		wants: "Complete under the token that holds the key keeps the record done with its receipt; " +
			"a store that loses it sends the mail again, or answers a retry with nothing",
		needs: []string{"reserve", "lease-holds"},
		run: func(p *probe) {
			var last *idemmail.Record
			for _, ttl := range []time.Duration{long, idemmail.NoExpiry} {
				key := p.key()
				p.settle(key, p.take(key, long), 1, ttl)
				_, last = p.ask(key, other, long)
				if last != nil && last.State == idemmail.StateDone && numberOf(last.Receipt) == 1 {
					return
				}
			}
			p.failf("once completed, Reserve must answer the done record with receipt 1; it answered %s", show(last))
		},
	},
	{
		name: "ttl-holds",
		wants: "a done record is kept for its whole TTL; " +
			"where it ends before, a late retry sends the mail again",
		needs: []string{"complete"},
		run: func(p *probe) {
			for _, ttl := range p.leases() {
				key := p.key()
				token := p.take(key, long)
				began := p.now()
				p.settle(key, token, 1, ttl)
				p.pass(ttl - 2*p.margin())
				_, held := p.ask(key, other, long)
				passed := p.since(began)
				if held != nil {
					return
				}
				if passed < ttl-p.margin() {
					p.failf("the key was free after %v at most; its TTL was %v", passed, ttl)
					return
				}
			}
		},
	},
	{
		name: "lease-ends",
		wants: "a reservation is over once its lease has passed, whether or not it was cleaned up; " +
			"a key whose process died is stuck otherwise, and its mail never goes",
		needs: []string{"reserve", "lease-holds"},
		run: func(p *probe) {
			key := p.key()
			p.take(key, p.short())
			p.outlive(p.short())
			p.free(key, "after its lease")
		},
	},
	{
		name: "ttl-ends",
		wants: "a done record is over once its TTL has passed; " +
			"receipts that never end fill the store, and block keys that may be used again",
		needs: []string{"complete", "ttl-holds"},
		run: func(p *probe) {
			key, _ := p.sent(1, p.short())
			p.outlive(p.short())
			p.free(key, "after its TTL")
		},
	},
}
