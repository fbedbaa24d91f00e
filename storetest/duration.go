package storetest

import (
	"math"
	"time"
)

// refused are durations that mean nothing, as a lease or as a TTL.
var refused = []time.Duration{0, -2, -time.Second, -long, math.MinInt64}

// endless are durations that overflow where they are added to a clock, or
// counted in another unit, without care.
var endless = []time.Duration{math.MaxInt64, math.MaxInt64 - 1, math.MaxInt64 - time.Hour, 250 * year}

// tiny are durations below the unit of many stores.
var tiny = []time.Duration{1, 999, time.Microsecond, 999 * time.Microsecond}

var durationRules = []rule{
	{
		name: "refused-lease",
		wants: "Reserve refuses a lease of zero, and any negative one but NoExpiry, with an error and writes nothing; " +
			"to many servers zero means for ever",
		needs: needReserve,
		run: func(p *probe) {
			for _, lease := range refused {
				key := p.key()
				token, held, err := p.store.Reserve(p.ctx, key, mine, lease)
				if err == nil {
					p.failf("Reserve with a lease of %v must be refused; it answered the token %q and %s", lease, token, show(held))
					continue
				}
				p.free(key, "after a Reserve that was refused")
			}
		},
	},
	{
		name:  "refused-ttl",
		wants: "Complete refuses a TTL of zero, and any negative one but NoExpiry, with an error and writes nothing",
		needs: needComplete,
		run: func(p *probe) {
			for _, ttl := range refused {
				key, free := p.key(), p.key()
				token := p.take(key, long)
				if p.complete(key, token, 1, ttl) == nil {
					p.failf("Complete with a TTL of %v must be refused; it answered no error", ttl)
					continue
				}
				p.pending(key, "after a Complete that was refused")
				p.ok(p.complete(key, token, 2, long), "completing with a good TTL after one that was refused")
				if p.complete(key, token, 3, ttl) == nil {
					p.failf("Complete of a done key with a TTL of %v must be refused; it answered no error", ttl)
					continue
				}
				p.done(key, 2, "after a second Complete that was refused")
				if p.complete(free, token, 4, ttl) == nil {
					p.failf("Complete of a free key with a TTL of %v must be refused; it answered no error", ttl)
					continue
				}
				p.free(free, "after a Complete that was refused")
			}
		},
	},
	{
		name: "tiny-durations",
		wants: "a duration below the store's unit is rounded up: it is no error, and it ends; " +
			"rounded down to zero it is one that some servers refuse and others keep for ever",
		needs: needExpiry,
		run: func(p *probe) {
			reserved, completed := p.keys(len(tiny)), p.keys(len(tiny))
			for i, d := range tiny {
				p.take(reserved[i], d)
				token := p.take(completed[i], long)
				p.ok(p.complete(completed[i], token, 1, d), "completing with a TTL of %v", d)
			}
			p.outlive(p.short())
			for i, d := range tiny {
				p.free(reserved[i], "long after it was reserved for "+d.String())
				p.free(completed[i], "long after it was completed for "+d.String())
			}
		},
	},
	{
		name: "long-durations",
		wants: "no duration overflows: the longest ones are kept for ever, or nearly; " +
			"one that wraps around ends before it began",
		needs: needComplete,
		run: func(p *probe) {
			reserved, completed := p.keys(len(endless)), p.keys(len(endless))
			for i, d := range endless {
				p.take(reserved[i], d)
				token := p.take(completed[i], d)
				p.ok(p.complete(completed[i], token, i, d), "completing with a TTL of %v", d)
			}
			p.endure()
			for i, d := range endless {
				p.pending(reserved[i], "reserved for "+d.String())
				p.done(completed[i], i, "completed for "+d.String())
			}
		},
	},
}
