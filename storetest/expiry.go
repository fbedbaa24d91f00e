package storetest

import (
	"time"

	"github.com/idemmail/idemmail"
)

var expiryRules = []rule{
	{
		name: "ttl-not-lease",
		wants: "the TTL of the last Complete says how long a done record is kept, and nothing is left of the lease " +
			"or of an earlier TTL",
		needs: append([]string{"complete-again"}, needExpiry...),
		run: func(p *probe) {
			lease := p.key()
			p.settle(lease, p.take(lease, p.short()), 1, long)
			longer, token := p.sent(2, p.short())
			p.settle(longer, token, 3, long)
			shorter, token := p.sent(4, long)
			p.settle(shorter, token, 5, p.short())
			p.outlive(p.short())
			p.done(lease, 1, "completed with a longer TTL than its lease was, and after that lease")
			p.done(longer, 3, "completed again with a longer TTL, and after the first one")
			p.free(shorter, "completed again with a shorter TTL, and after that one")
		},
	},
	{
		name: "no-expiry",
		wants: "NoExpiry (-1) as a lease or TTL means for ever, also after a duration that had an end; " +
			"AtMostOnce rests on it",
		needs: append([]string{"complete-again"}, needExpiry...),
		run: func(p *probe) {
			reserved, completed, outlasting, again := p.key(), p.key(), p.key(), p.key()
			p.take(reserved, idemmail.NoExpiry)
			p.settle(completed, p.take(completed, long), 1, idemmail.NoExpiry)
			p.settle(outlasting, p.take(outlasting, p.short()), 2, idemmail.NoExpiry)
			token := p.take(again, long)
			p.settle(again, token, 3, p.short())
			p.settle(again, token, 3, idemmail.NoExpiry)
			p.endure()
			p.pending(reserved, "reserved with NoExpiry")
			p.done(completed, 1, "completed with NoExpiry")
			p.done(outlasting, 2, "reserved for a while and completed with NoExpiry")
			p.done(again, 3, "completed for a while and again with NoExpiry")
		},
	},
	{
		name:  "no-expiry-ends",
		wants: "a TTL that follows a NoExpiry ends as any other does",
		needs: append([]string{"complete-again"}, needExpiry...),
		run: func(p *probe) {
			reserved, completed := p.key(), p.key()
			p.settle(reserved, p.take(reserved, idemmail.NoExpiry), 1, p.short())
			token := p.take(completed, long)
			p.settle(completed, token, 2, idemmail.NoExpiry)
			p.settle(completed, token, 2, p.short())
			p.outlive(p.short())
			p.free(reserved, "reserved with NoExpiry, and completed with a TTL that has passed")
			p.free(completed, "completed with NoExpiry, and again with a TTL that has passed")
		},
	},
	{
		name: "held-ends",
		wants: "a Reserve that finds the key held changes nothing: the record ends when it was to; " +
			"where asking prolongs it, a job that is retried often enough never gets its key",
		needs: needExpiry,
		run: func(p *probe) {
			done, _ := p.sent(1, p.short())
			_, _ = p.ask(done, other, p.short()/2) // held or, on a machine that dozed, taken for as long
			for _, lease := range p.leases() {
				key := p.key()
				p.take(key, lease)
				if _, held := p.ask(key, other, long); held == nil {
					continue // it had ended
				}
				p.outlive(lease)
				p.free(key, "asked for by another while it was held, and after its lease")
				p.free(done, "asked for by another while it was done, and after its TTL")
				return
			}
		},
	},
	{
		name: "age",
		wants: "a record's age is the time since it was reserved or completed, by the store's clock; " +
			"it tells an abandoned send from a slow one",
		needs: append([]string{"no-expiry"}, needComplete...),
		run: func(p *probe) {
			given := record(1)
			given.Age = 5 * time.Hour // to be ignored
			subjects := []struct {
				what string
				put  func(key string)
				born birth
			}{
				{what: "a reservation", put: func(key string) { p.take(key, long) }},
				{what: "a reservation for ever", put: func(key string) { p.take(key, idemmail.NoExpiry) }},
				{what: "a done record", put: func(key string) { p.settle(key, p.take(key, long), 1, long) }},
				{what: "a done record for ever", put: func(key string) { p.settle(key, p.take(key, long), 1, idemmail.NoExpiry) }},
				{what: "a done record that was given with an age", put: func(key string) { p.keep(key, given, long) }},
			}
			keys := p.keys(len(subjects))
			for i := range subjects {
				s := &subjects[i]
				s.born = p.born(func() { s.put(keys[i]) })
			}
			p.grow()
			for i, s := range subjects {
				p.heldAge(keys[i], s.what, s.born)
				p.heldAge(keys[i], s.what+", asked for a second time", s.born)
			}
		},
	},
	{
		name:  "age-restarts",
		wants: "completing, and completing again, lets a record's age begin anew",
		needs: append([]string{"complete-again", "age"}, needComplete...),
		run: func(p *probe) {
			key := p.key()
			token := p.take(key, long)
			for _, what := range []string{"completed", "completed again"} {
				p.grow()
				born := p.born(func() { p.settle(key, token, 1, long) })
				p.heldAge(key, what, born)
			}
		},
	},
}
