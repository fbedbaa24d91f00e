package storetest

import (
	"errors"
	"fmt"
	"slices"

	"github.com/idemmail/idemmail"
)

var batchRules = []rule{
	{
		name:  "batch-renewer",
		wants: "a BatchStore is a Renewer too: a batch that lasts must keep its leases",
		of:    batches,
		run: func(p *probe) {
			if !renews.offered(p.store) {
				p.failf("the store has no Renew")
			}
		},
	},
	{
		name:  "batch",
		wants: "each method answers one result per request, in order, as the method of one key would; the keys are the same ones",
		of:    batches,
		needs: append([]string{"token-or-record", "fingerprint", "held-pending"}, needComplete...),
		run: func(p *probe) {
			keys := p.keys(7)
			tokens := p.takeMany(keys)
			for i, res := range p.reserveMany(reserveRequests(keys, long)) {
				if res.Err != nil || res.Token != "" || res.Held == nil || res.Held.State != idemmail.StatePending || res.Held.Fingerprint != printOf(i) {
					p.failf("ReserveMany of held keys, request %d: it was answered the token %q, %s and the error %v", i, res.Token, show(res.Held), res.Err)
				}
			}
			renewals := make([]idemmail.RenewRequest, len(keys))
			completions := make([]idemmail.CompleteRequest, len(keys))
			for i, key := range keys {
				p.pending(key, "reserved by ReserveMany")
				renewals[i] = idemmail.RenewRequest{Key: key, Token: tokens[i], Lease: long}
				completions[i] = completed(i, key, tokens[i])
			}
			none := func(int) bool { return false }
			p.lost("RenewMany", p.renewMany(renewals), none)
			p.lost("CompleteMany", p.completeMany(completions), none)
			for i, key := range keys {
				p.done(key, i, "completed by CompleteMany")
			}
			for i, res := range p.reserveMany(reserveRequests(keys, long)) {
				if res.Err != nil || res.Token != "" || res.Held == nil || res.Held.State != idemmail.StateDone || numberOf(res.Held.Receipt) != i || res.Held.Fingerprint != printOf(i) {
					p.failf("ReserveMany of done keys, request %d: it was answered the token %q, %s and the error %v", i, res.Token, show(res.Held), res.Err)
				}
			}

			freed := p.keys(5)
			releases := make([]idemmail.ReleaseRequest, len(freed))
			for i, token := range p.takeMany(freed) {
				releases[i] = idemmail.ReleaseRequest{Key: freed[i], Token: token}
			}
			p.lost("ReleaseMany", p.releaseMany(releases), none)
			for _, key := range freed {
				p.free(key, "released by ReleaseMany")
			}
		},
	},
	{
		name:  "batch-empty",
		wants: "a call without requests answers no results and does no harm",
		of:    batches,
		run: func(p *probe) {
			p.reserveMany(nil)
			p.reserveMany([]idemmail.ReserveRequest{})
			p.completeMany(nil)
			p.completeMany([]idemmail.CompleteRequest{})
			p.releaseMany(nil)
			p.releaseMany([]idemmail.ReleaseRequest{})
			p.renewMany(nil)
			p.renewMany([]idemmail.RenewRequest{})
		},
	},
	{
		name: "batch-mixed",
		wants: "each request is judged for itself, and the failure of one is no failure of another: " +
			"free, held, done, expired, refused, and another's keys in one call",
		of:    batches,
		needs: append([]string{"batch", "refused-lease", "refused-ttl", "renew-lost", "renew-refused", "complete-foreign", "release-foreign"}, needExpiry...),
		run:   batchMixed,
	},
	{
		name:  "batch-large",
		wants: "1,200 keys in one call are answered as few are, in order",
		of:    batches,
		needs: append([]string{"batch"}, needComplete...),
		run:   batchLarge,
	},
	{
		name:  "batch-aliasing",
		wants: "what a store was given in a batch, and what it answers, shares no memory with what it keeps",
		of:    batches,
		needs: append([]string{"batch", "aliasing", "receipt-fields"}, needComplete...),
		run: func(p *probe) {
			keys := p.keys(2)
			reqs := make([]idemmail.CompleteRequest, len(keys))
			for i, token := range p.takeMany(keys) {
				rec := idemmail.Record{State: idemmail.StateDone, Fingerprint: mine, Receipt: fullReceipt()}
				reqs[i] = idemmail.CompleteRequest{Key: keys[i], Token: token, Record: rec, TTL: long}
			}
			p.lost("CompleteMany", p.completeMany(reqs), func(int) bool { return false })
			for _, req := range reqs {
				spoil(req.Record.Receipt)
				p.unspoiled(req.Key, "a receipt that it was given in a batch")
			}
			for _, res := range p.reserveMany(reserveRequests(keys, long)) {
				if res.Held != nil {
					spoil(res.Held.Receipt)
					*res.Held = idemmail.Record{}
				}
			}
			for _, key := range keys {
				p.unspoiled(key, "a record that it had answered in a batch")
			}
		},
	},
	{
		name:  "batch-context",
		wants: "a context that has ended is an error that wraps it in each result, and the keys stay free",
		of:    batches,
		needs: append([]string{"batch", "context-ended-reserve"}, needReserve...),
		run: func(p *probe) {
			for _, ctx := range p.ended() {
				keys := p.keys(3)
				reserved := p.batch().ReserveMany(ctx, reserveRequests(keys, long))
				for i, res := range answered(p, "ReserveMany", len(keys), reserved) {
					p.is(res.Err, ctx.Err(), "ReserveMany, request %d,", i)
					if res.Err != nil {
						p.freed(keys[i], "after a ReserveMany under a context that had ended")
					}
				}
				keys = p.keys(3)
				completions := make([]idemmail.CompleteRequest, len(keys))
				releases := make([]idemmail.ReleaseRequest, len(keys))
				renewals := make([]idemmail.RenewRequest, len(keys))
				for i, token := range p.takeMany(keys) {
					renewals[i] = idemmail.RenewRequest{Key: keys[i], Token: token, Lease: long}
					releases[i] = idemmail.ReleaseRequest{Key: keys[i], Token: token}
					completions[i] = completed(i, keys[i], token)
				}
				for _, call := range []struct {
					method string
					errs   []error
				}{
					{"RenewMany", p.batch().RenewMany(ctx, renewals)},
					{"ReleaseMany", p.batch().ReleaseMany(ctx, releases)},
					{"CompleteMany", p.batch().CompleteMany(ctx, completions)},
				} {
					for i, err := range answered(p, call.method, len(keys), call.errs) {
						p.is(err, ctx.Err(), "%s, request %d,", call.method, i)
					}
				}
			}
		},
	},
	{
		name: "race-batch",
		wants: "of two ReserveMany of the same keys in opposite orders, and single ones besides, exactly one has each key, " +
			"and none fails: rows that are locked in the callers' order end in a deadlock",
		of:    batches,
		needs: append([]string{"batch", "race-fresh", "race-expired"}, needExpiry...),
		run: func(p *probe) {
			ended := p.expired()
			p.again(func() {
				keys := p.keys(20)
				for i := range min(len(ended), len(keys)/2) {
					keys[2*i] = ended[i].key
				}
				ended = ended[min(len(ended), len(keys)/2):]
				wins := make([][]string, 3) // by caller: the tokens, "" where it lost
				p.together(len(wins), func(caller int) {
					order := slices.Clone(keys)
					if caller == 1 {
						slices.Reverse(order)
					}
					tokens := make([]string, len(order))
					if caller == 2 {
						for i, key := range order {
							token, held, err := p.store.Reserve(p.ctx, key, mine, long)
							p.ok(err, "Reserve")
							if held == nil {
								tokens[i] = token
							}
						}
					} else {
						results := p.batch().ReserveMany(p.ctx, reserveRequests(order, long))
						for i, res := range results[:min(len(results), len(tokens))] {
							p.ok(res.Err, "ReserveMany, request %d", i)
							if res.Held == nil {
								tokens[i] = res.Token
							}
						}
					}
					if caller == 1 {
						slices.Reverse(tokens)
					}
					wins[caller] = tokens
				})
				for i, key := range keys {
					var won []string
					for _, tokens := range wins {
						if tokens != nil && tokens[i] != "" {
							won = append(won, tokens[i])
						}
					}
					if len(won) != 1 {
						p.failf("of three who reserved a key at the same moment %d were answered a token", len(won))
						return
					}
					p.ok(p.complete(key, won[0], 1, long), "completing with the winner's token")
				}
			})
		},
	},
}

func batchMixed(p *probe) {
	expired, held, done := p.key(), p.key(), p.key()
	p.take(expired, p.short())
	p.takeFor(other, held, long)
	rec := record(1)
	rec.Fingerprint = other
	p.keep(done, rec, long)
	p.outlive(p.short())

	reqs := reserveRequests([]string{p.key(), held, p.key(), done, expired, p.key()}, long)
	reqs[2].Lease = 0
	wantToken := []bool{true, false, false, false, true, true}
	tokens := make([]string, len(reqs))
	for i, res := range p.reserveMany(reqs) {
		tokens[i] = res.Token
		switch {
		case reqs[i].Lease == 0:
			if res.Err == nil {
				p.failf("ReserveMany, request %d with a lease of zero, must be refused; it answered no error", i)
			}
		case res.Err != nil:
			p.failf("ReserveMany, request %d: %w", i, res.Err)
		case wantToken[i] != (res.Token != "") || wantToken[i] != (res.Held == nil) ||
			res.Held != nil && res.Held.Fingerprint != other:
			p.failf("ReserveMany, request %d: it was answered the token %q and %s", i, res.Token, show(res.Held))
		}
	}
	p.free(reqs[2].Key, "after a request in ReserveMany that was refused")
	if p.wrong() {
		return
	}

	// One in three has a token that holds another key, and the last a duration
	// that is refused.
	const count = 10
	foreign := p.take(p.key(), long)
	keys := p.keys(count)
	tokens = p.takeMany(keys)
	renewals := make([]idemmail.RenewRequest, count)
	completions := make([]idemmail.CompleteRequest, count)
	releases := make([]idemmail.ReleaseRequest, count)
	releasable := p.keys(count)
	for i, token := range p.takeMany(releasable) {
		releases[i] = idemmail.ReleaseRequest{Key: releasable[i], Token: token}
	}
	for i, key := range keys {
		renewals[i] = idemmail.RenewRequest{Key: key, Token: tokens[i], Lease: long}
		completions[i] = completed(i, key, tokens[i])
		if third(i) {
			renewals[i].Token, completions[i].Token, releases[i].Token = foreign, foreign, foreign
		}
	}
	renewals[count-1].Lease, completions[count-1].TTL = 0, 0

	renewed := p.renewMany(renewals)
	p.lost("RenewMany", renewed[:count-1], third)
	completedErrs := p.completeMany(completions)
	p.lost("CompleteMany", completedErrs[:count-1], third)
	if renewed[count-1] == nil || completedErrs[count-1] == nil {
		p.failf("the last request, with a duration of zero, must be refused; RenewMany answered %v, CompleteMany %v", renewed[count-1], completedErrs[count-1])
	}
	p.lost("ReleaseMany", p.releaseMany(releases), third)
	for i := range count {
		if third(i) || i == count-1 {
			p.pending(keys[i], fmt.Sprintf("after CompleteMany, where request %d failed", i))
		} else {
			p.done(keys[i], i, "after CompleteMany")
		}
		if third(i) {
			p.pending(releasable[i], fmt.Sprintf("after ReleaseMany, where request %d failed", i))
		} else {
			p.free(releasable[i], "after ReleaseMany")
		}
	}
}

func batchLarge(p *probe) {
	const count = 1200
	keys := p.keys(count)
	tokens := p.takeMany(keys)
	unlike := make(map[string]bool)
	var renewals []idemmail.RenewRequest
	var completions []idemmail.CompleteRequest
	var releases []idemmail.ReleaseRequest
	for i, key := range keys {
		unlike[tokens[i]] = true
		renewals = append(renewals, idemmail.RenewRequest{Key: key, Token: tokens[i], Lease: long})
		if i%2 == 0 {
			completions = append(completions, completed(i, key, tokens[i]))
		} else {
			releases = append(releases, idemmail.ReleaseRequest{Key: key, Token: tokens[i]})
		}
	}
	if len(unlike) != count {
		p.failf("ReserveMany gave %d keys %d different tokens", count, len(unlike))
	}
	for _, errs := range [][]error{p.renewMany(renewals), p.completeMany(completions), p.releaseMany(releases)} {
		if err := errors.Join(errs...); err != nil {
			p.stopf("a batch of %d: %w", len(errs), err)
		}
	}
	for i, res := range p.reserveMany(reserveRequests(keys, long)) {
		isDone := res.Held != nil && numberOf(res.Held.Receipt) == i
		if res.Err != nil || isDone != (i%2 == 0) || (res.Held == nil) != (i%2 != 0) {
			p.failf("ReserveMany of %d keys, every other one done, request %d: it was answered the token %q, %s and the error %v", count, i, res.Token, show(res.Held), res.Err)
			return
		}
	}
}
