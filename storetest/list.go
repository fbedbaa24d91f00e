package storetest

import (
	"errors"
	"iter"
	"time"

	"github.com/idemmail/idemmail"
)

// listed collects what Unsettled answers under a prefix, by key. Other data on
// the same store is none of the rule's business, nor is a key that comes twice.
func (p *probe) listed(prefix string, olderThan time.Duration) map[string]idemmail.Entry {
	entries := make(map[string]idemmail.Entry)
	var failed error
	for e, err := range p.keeper().Unsettled(p.ctx, prefix, olderThan) {
		switch {
		case err == nil:
			entries[e.Key] = e
		case !errors.Is(err, idemmail.ErrBadRecord):
			failed = err
		}
	}
	if failed != nil {
		p.stopf("Unsettled(%q): %w", prefix, failed)
	}
	return entries
}

var listRules = []rule{
	{
		name: "unsettled",
		wants: "Unsettled lists keys that are pending, and those done with status unknown, with all that Lookup shows of them, " +
			"and none that are settled or free",
		of:    reconciles,
		needs: append([]string{"no-expiry", "lookup"}, needComplete...),
		run: func(p *probe) {
			pending, forever, abandoned, kept, failed, released := p.key(), p.key(), p.key(), p.key(), p.key(), p.key()
			p.take(pending, long)
			p.take(forever, idemmail.NoExpiry)
			rec := idemmail.Record{State: idemmail.StateDone, Fingerprint: mine, Receipt: fullReceipt()} // status unknown
			p.keep(abandoned, rec, long)
			p.keep(kept, rec, idemmail.NoExpiry)
			settled, _ := p.sent(1, long)
			failure := record(2)
			failure.Receipt.Status = idemmail.StatusFailed
			p.keep(failed, failure, long)
			p.give(released, p.take(released, long))

			open := idemmail.Record{State: idemmail.StatePending, Fingerprint: mine}
			entries := p.listed(p.prefix, 0)
			for _, want := range []struct {
				what, key string
				record    idemmail.Record
				forever   bool
			}{
				{"pending", pending, open, false},
				{"pending for ever", forever, open, true},
				{"done with status unknown", abandoned, rec, false},
				{"done with status unknown, for ever", kept, rec, true},
			} {
				e, ok := entries[want.key]
				if !ok {
					p.failf("a key that is %s must be listed", want.what)
					continue
				}
				p.matches("Unsettled, a key that is "+want.what, e, want.key, want.record)
				if e.ExpiresAt.IsZero() != want.forever {
					p.failf("a key that is %s: ExpiresAt is %v", want.what, e.ExpiresAt)
				}
				p.ok(p.keeper().Forget(p.ctx, e), "Forget of a key that is %s, by the entry that was listed", want.what)
				delete(entries, want.key)
			}
			for _, not := range [][2]string{{"sent", settled}, {"failed", failed}, {"released", released}} {
				if _, ok := entries[not[1]]; ok {
					p.failf("a key that is %s must not be listed", not[0])
					delete(entries, not[1])
				}
			}
			for key := range entries {
				p.failf("the key %q was listed, which is none of those", key)
			}
		},
	},
	{
		name:  "unsettled-prefix",
		wants: "the prefix is taken literally: no character is a pattern, case counts, and it is one of the whole key from its beginning",
		of:    reconciles,
		needs: append([]string{"unsettled", "keys"}, needReserve...),
		run:   unsettledPrefix,
	},
	{
		name:  "unsettled-expired",
		wants: "Unsettled leaves out what has ended, whether or not it was cleaned up: there is nothing left to settle",
		of:    reconciles,
		needs: append([]string{"unsettled"}, needExpiry...),
		run: func(p *probe) {
			pending := p.key()
			p.take(pending, p.short())
			done, _ := p.abandon(1, p.short())
			p.outlive(p.short())
			entries := p.listed(p.prefix, 0)
			if _, ok := entries[pending]; ok {
				p.failf("a pending key was listed after its lease")
			}
			if _, ok := entries[done]; ok {
				p.failf("a key done with status unknown was listed after its TTL")
			}
		},
	},
	{
		name: "unsettled-age",
		wants: "a pending key is listed when its age is olderThan or more, by the store's clock; one that is done with status unknown always is: " +
			"a young reservation has an owner who lives",
		of:    reconciles,
		needs: append([]string{"unsettled", "age"}, needReserve...),
		run:   unsettledAge,
	},
	{
		name:  "unsettled-many",
		wants: "Unsettled lists every key, however many there are",
		of:    reconciles,
		needs: append([]string{"unsettled"}, needReserve...),
		run: func(p *probe) {
			const count = 1100 // more than a page of anything
			keys := p.keys(count)
			if batches.offered(p.store) {
				p.takeMany(keys)
			} else {
				for _, key := range keys {
					p.take(key, long)
				}
			}
			entries := p.listed(p.prefix, 0)
			missing := 0
			for _, key := range keys {
				if _, ok := entries[key]; !ok {
					missing++
				}
			}
			if missing > 0 {
				p.failf("%d of %d pending keys were not listed", missing, count)
			}
		},
	},
	{
		name:  "unsettled-ends-early",
		wants: "a listing may be ended early: nothing is yielded after that, and the store goes on, without a lock or a connection that stays taken",
		of:    reconciles,
		needs: append([]string{"unsettled"}, needReserve...),
		run: func(p *probe) {
			for _, key := range p.keys(20) {
				p.take(key, long)
			}
			for range 20 { // more than a pool has connections
				for range p.keeper().Unsettled(p.ctx, p.prefix, 0) {
					break
				}
			}
			next, stop := iter.Pull2(p.keeper().Unsettled(p.ctx, p.prefix, 0))
			_, err, ok := next()
			stop()
			if err != nil || !ok {
				p.failf("Unsettled, pulled once, answered %v, %v", ok, err)
			}
			key := p.key()
			token := p.take(key, long)
			p.settle(key, token, 1, long)
			p.done(key, 1, "after listings that were ended early")
			if n := len(p.listed(p.prefix, 0)); n != 20 {
				p.failf("after listings that were ended early, %d of 20 keys were listed", n)
			}
		},
	},
}

func unsettledPrefix(p *probe) {
	const suffix = "/x"
	odd := []string{"", "a", "A", "*", "?", "[a]", "[^a]", "a]", "\\", "\\*", "%", "_", "a%", "^", "$", ".", ".*", "(", "|", "{", "'", `"`, "é", "e\u0301", "👩", "\uffff", "\U0010ffff", "ß", "ss", "ı", "i"}
	bases := make([]string, len(odd))
	for i, o := range odd {
		bases[i] = p.prefix + o + suffix
		p.take(bases[i]+"1", long)
		p.abandonKey(bases[i] + "👩\U0010ffff")
		p.take("x"+bases[i], long) // begins with another character
	}
	for _, base := range bases {
		entries := p.listed(base, 0)
		for _, key := range []string{base + "1", base + "👩\U0010ffff"} {
			if _, ok := entries[key]; !ok {
				p.failf("under the prefix %q the key %q must be listed", base, key)
			}
			delete(entries, key)
		}
		for key := range entries {
			p.failf("under the prefix %q the key %q must not be listed", base, key)
		}
	}
	whole := p.listed(bases[0]+"1", 0)
	if _, ok := whole[bases[0]+"1"]; !ok || len(whole) != 1 {
		p.failf("a key is a prefix of itself: %d keys were listed under it", len(whole))
	}
	if entries := p.listed(p.prefix, 0); len(entries) != 2*len(odd) {
		p.failf("under the prefix that %d keys have in common %d were listed", 2*len(odd), len(entries))
	}
}

// abandonKey is abandon with a key that is given.
func (p *probe) abandonKey(key string) {
	p.keep(key, idemmail.Record{State: idemmail.StateDone, Fingerprint: mine, Receipt: unknown(1)}, long)
}

func unsettledAge(p *probe) {
	old := p.key()
	born := p.born(func() { p.take(old, long) })
	p.grow()
	young := p.key()
	began := p.now()
	p.take(young, long)
	abandoned, _ := p.abandon(1, long)

	// Whichever clock ages go by (see grow), the old key has reached this one.
	asked := p.now()
	if e, ok := p.listed(p.prefix, aging/2)[old]; !ok {
		p.failf("a key that had been pending for %v was not listed as older than %v", aging, aging/2)
	} else {
		p.age("a pending key that was listed", e.Record.Age, born, asked)
	}
	// The young key has not reached this one, but on a machine that dozed.
	limit, slip := aging/2, aging/4
	if p.advance != nil {
		limit, slip = p.short()/2, p.margin()
	}
	entries := p.listed(p.prefix, limit)
	if _, ok := entries[young]; ok && p.since(began) < limit-slip {
		p.failf("a key that had just been reserved was listed as older than %v", limit)
	}
	if _, ok := entries[abandoned]; !ok {
		p.failf("with olderThan %v, a key that had just been completed with status unknown was not listed", limit)
	}
	entries = p.listed(p.prefix, long)
	if _, ok := entries[old]; ok {
		p.failf("a key that was younger than %v was listed as older than that", long)
	}
	if _, ok := entries[abandoned]; !ok {
		p.failf("with olderThan %v, a key that had just been completed with status unknown was not listed", long)
	}
}
