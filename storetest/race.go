package storetest

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/idemmail/idemmail"
)

// racers ask for one key at the same moment.
const racers = 8

// A stage is a key that a race is run on, and the token that held it.
type stage struct{ key, token string }

// takeovers makes keys that have ended, half of them reserved and half done,
// and calls f with one after another: as many as there is time for, and until
// one went wrong.
func (p *probe) takeovers(f func(s stage)) {
	stages := p.expired()
	p.again(func() {
		if len(stages) > 0 {
			f(stages[0])
			stages = stages[1:]
		}
	})
}

func (p *probe) expired() []stage {
	var stages []stage
	p.again(func() {
		s := stage{key: p.key()}
		if len(stages)%2 == 0 {
			s.token = p.take(s.key, p.short())
		} else {
			s.token = p.take(s.key, long)
			p.settle(s.key, s.token, 1, p.short())
		}
		stages = append(stages, s)
	})
	p.outlive(p.short())
	return stages
}

// contend lets racers reserve the key while each of beside runs, and answers
// the token of the one who won, "" for none. It notes two winners, and a loser
// who was shown a record that is neither the winner's nor, reserved or
// completed by the rule itself, in a state of seen.
func (p *probe) contend(key string, seen []idemmail.State, beside ...func()) (token string) {
	type answer struct {
		token string
		held  *idemmail.Record
		err   error
	}
	answers := make([]answer, racers)
	p.together(racers+len(beside), func(i int) {
		if i >= racers {
			beside[i-racers]()
			return
		}
		a := &answers[i]
		a.token, a.held, a.err = p.store.Reserve(p.ctx, key, fmt.Sprint("1:racer ", i), long)
	})
	winner := -1
	for i, a := range answers {
		switch {
		case a.err != nil:
			p.failf("Reserve in a race: %w", a.err)
		case a.held != nil:
		case winner >= 0:
			p.failf("two of %d who reserved one key at the same moment were answered a token", racers)
		default:
			winner, token = i, a.token
		}
	}
	fingerprint := fmt.Sprint("1:racer ", winner)
	for _, a := range answers {
		switch {
		case a.held == nil:
		case a.held.State == idemmail.StatePending && a.held.Fingerprint == fingerprint:
		case slices.Contains(seen, a.held.State) && a.held.Fingerprint == mine:
		default:
			p.failf("one reserved with fingerprint %q; another who asked at the same moment was answered %s", fingerprint, show(a.held))
		}
	}
	return token
}

// walked is how many keys are walked at a time.
const walked = 50

// walk lets walkers reserve the same free keys in the same order. They fall
// into step, so that they meet at one key or another within a window of well
// under a microsecond, which a race for one key hardly ever finds.
func (p *probe) walk(keys []string) {
	const walkers = 4
	won := make([]atomic.Int64, len(keys))
	p.together(walkers, func(int) {
		for i, key := range keys {
			token, held, err := p.store.Reserve(p.ctx, key, mine, long)
			if err != nil {
				p.failf("Reserve in a race: %w", err)
				return
			}
			if held == nil && token != "" {
				won[i].Add(1)
			}
		}
	})
	for i := range won {
		if n := won[i].Load(); n != 1 && !p.wrong() {
			p.failf("of %d who reserved one key at nearly the same moment %d were answered a token", walkers, n)
		}
	}
}

// won notes whether the key is not the winner's.
func (p *probe) won(key, token, when string) {
	if token == "" {
		p.failf("%s, nobody was answered a token", when)
		return
	}
	p.pending(key, when)
	p.ok(p.complete(key, token, 2, long), "%s, completing with the winner's token", when)
	p.done(key, 2, when+" and the winner completed")
}

var raceRules = []rule{
	{
		name: "race-fresh",
		wants: "of many who reserve a free key at the same moment exactly one is answered a token, and the others its record, " +
			"without an error; reading first and writing after is not enough",
		needs: needComplete,
		run: func(p *probe) {
			n := 0
			p.again(func() {
				key := p.key()
				if n++; n%2 == 0 { // free again, rather than never used
					p.give(key, p.take(key, long))
				}
				p.won(key, p.contend(key, nil), "after a race for a free key")
			})
			start := time.Now()
			for keys := 10 * n; keys > 0 && !p.wrong() && time.Since(start) < raceBudget; keys -= walked {
				p.walk(p.keys(walked))
			}
		},
	},
	{
		name: "race-expired",
		wants: "of many who reserve a key whose record has ended exactly one is answered a token, and the others its record, " +
			"without an error; the check of the time belongs into the same step as the write",
		needs: needExpiry,
		run: func(p *probe) {
			p.takeovers(func(s stage) {
				p.won(s.key, p.contend(s.key, nil), "after a race for a key whose record had ended")
			})
			var keys []string
			for _, s := range p.expired() {
				keys = append(keys, s.key)
			}
			if !p.wrong() {
				p.walk(keys)
			}
		},
	},
	{
		name: "race-release",
		wants: "a Release frees only its own reservation, also when others reserve at the same moment; " +
			"comparing the token first and deleting after frees a key that another has just taken",
		needs: append([]string{"race-fresh", "release-foreign"}, needComplete...),
		run: func(p *probe) {
			p.again(func() {
				key := p.key()
				token := p.take(key, long)
				var errs [2]error // the later one may find another's reservation
				winner := p.contend(key, []idemmail.State{idemmail.StatePending},
					func() { errs[0] = p.store.Release(p.ctx, key, token) },
					func() { errs[1] = p.store.Release(p.ctx, key, token) })
				for _, err := range errs {
					if err != nil && !errors.Is(err, idemmail.ErrLeaseLost) {
						p.failf("releasing what the token held: %w", err)
					}
				}
				if errs[0] != nil && errs[1] != nil {
					p.failf("of two Releases of what the token held both were answered an error: %w", errs[0])
				}
				if winner != "" { // all may have come before the Release
					p.won(key, winner, "after a race for a key that was released")
				}
			})
		},
	},
	{
		name:  "race-release-expired",
		wants: "a late Release leaves the reservation that takes the key over at the same moment",
		needs: append([]string{"race-expired", "release-expired", "takeover-release"}, needExpiry...),
		run: func(p *probe) {
			p.takeovers(func(s stage) {
				winner := p.contend(s.key, nil, func() {
					if err := p.store.Release(p.ctx, s.key, s.token); err != nil && !errors.Is(err, idemmail.ErrLeaseLost) {
						p.failf("a late Release: %w", err)
					}
				})
				p.won(s.key, winner, "after a race between a late Release and those who take the key over")
			})
		},
	},
	{
		name: "race-complete-expired",
		wants: "of a late Complete and a Reserve that takes the key over exactly one succeeds: " +
			"the receipt is kept, or its sender learns that the mail may go twice",
		needs: append([]string{"race-expired", "fingerprint", "complete-expired", "takeover-complete"}, needExpiry...),
		run: func(p *probe) {
			p.takeovers(func(s stage) {
				var err error
				winner := p.contend(s.key, []idemmail.State{idemmail.StateDone}, func() { err = p.complete(s.key, s.token, 1, long) })
				switch {
				case err == nil && winner == "":
					p.done(s.key, 1, "after a late Complete that was answered no error")
				case err == nil:
					p.failf("a late Complete was answered no error, and a Reserve at the same moment a token")
				case errors.Is(err, idemmail.ErrLeaseLost):
					p.won(s.key, winner, "after a late Complete that was answered ErrLeaseLost")
				default:
					p.failf("a late Complete: %w", err)
				}
			})
		},
	},
	{
		name:  "race-late-completes",
		wants: "of two late Completes under different tokens exactly one succeeds, and its receipt is the one that is kept",
		needs: append([]string{"complete-free", "complete-foreign"}, needComplete...),
		run: func(p *probe) {
			p.again(func() {
				key := p.key()
				tokens := [2]string{p.take(p.key(), long), p.take(p.key(), long)}
				var errs [2]error
				p.together(2, func(i int) { errs[i] = p.complete(key, tokens[i], i, long) })
				winner := 0
				if errs[0] != nil {
					winner = 1
				}
				if errs[winner] != nil || !errors.Is(errs[1-winner], idemmail.ErrLeaseLost) {
					p.failf("the two were answered %v and %v", errs[0], errs[1])
					return
				}
				p.done(key, winner, "after two late Completes")
			})
		},
	},
	{
		name:  "race-settle",
		wants: "a Complete stays, also when a Release under the same token comes at the same moment",
		needs: append([]string{"complete-free", "release-done"}, needComplete...),
		run: func(p *probe) {
			p.again(func() {
				key := p.key()
				token := p.take(key, long)
				p.together(2, func(i int) {
					if i == 0 {
						p.ok(p.complete(key, token, 1, long), "completing what the token held or had freed")
						return
					}
					if err := p.store.Release(p.ctx, key, token); err != nil && !errors.Is(err, idemmail.ErrLeaseLost) {
						p.failf("releasing: %w", err)
					}
				})
				p.done(key, 1, "after a Complete and a Release under one token")
			})
		},
	},
	{
		name:  "concurrent-keys",
		wants: "methods are safe for concurrent use, and goroutines with keys of their own do not disturb each other",
		needs: needComplete,
		run: func(p *probe) {
			const goroutines, rounds = 16, 10
			start := time.Now()
			p.together(goroutines, func(i int) {
				for round := range rounds {
					if round > 0 && time.Since(start) > time.Second {
						return
					}
					if err := p.cycle(i*rounds + round); err != nil {
						p.failf("among %d goroutines with keys of their own: %w", goroutines, err)
						return
					}
				}
			})
		},
	},
}

// cycle takes a new key through all that a send does.
func (p *probe) cycle(number int) error {
	key := p.key()
	token, err := p.try(key, mine, long)
	if err != nil {
		return err
	}
	if err := p.store.Release(p.ctx, key, token); err != nil {
		return fmt.Errorf("Release(%q): %w", key, err)
	}
	if token, err = p.try(key, mine, long); err != nil {
		return err
	}
	if err := p.complete(key, token, number, long); err != nil {
		return fmt.Errorf("Complete(%q): %w", key, err)
	}
	_, held, err := p.store.Reserve(p.ctx, key, other, long)
	if err != nil {
		return fmt.Errorf("Reserve(%q): %w", key, err)
	}
	if held == nil || numberOf(held.Receipt) != number {
		return fmt.Errorf("Reserve(%q), done with receipt %d, was answered %s", key, number, show(held))
	}
	return nil
}
