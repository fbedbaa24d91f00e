package storetest_test

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/storetest"
	"github.com/stretchr/testify/require"
)

// A broken store is the reference with one thing wrong, and the rules that
// must say so: these, and no others.
type broken struct {
	what  string
	wrong func(s *refStore) idemmail.Store
	rules []string
}

// set is a broken store whose fault is one of the reference's own.
func set(what string, fault func(s *refStore), rules ...string) broken {
	return broken{what, func(s *refStore) idemmail.Store { fault(s); return s }, rules}
}

// over is a broken store that answers some calls in its own way.
func over(what string, o overrides, rules ...string) broken {
	return broken{what, func(s *refStore) idemmail.Store { o.refStore = s; return &o }, rules}
}

// names answers the names of the broken rules in an error of Check.
func names(t *testing.T, err error) []string {
	t.Helper()
	if err == nil {
		return nil
	}
	joined, ok := err.(interface{ Unwrap() []error })
	require.True(t, ok, "the broken rules are joined: %v", err)
	var all []string
	for _, e := range joined.Unwrap() {
		parts := strings.SplitN(e.Error(), ": ", 3)
		require.Len(t, parts, 3, "storetest: name: what it wants")
		require.Equal(t, "storetest", parts[0])
		all = append(all, parts[1])
	}
	return all
}

func allBroken() []broken {
	return slices.Concat(
		brokenReserves, brokenTimes, brokenFences, brokenMemories, brokenContexts, brokenRenewals,
		brokenBatches, brokenReconcilers)
}

// TestBrokenStores feeds the kit each broken store twice: with a clock that it
// advances, and in real time (of a bubble, so that no machine is too slow).
func TestBrokenStores(t *testing.T) {
	for _, b := range allBroken() {
		t.Run(b.what, func(t *testing.T) {
			rounds, tries := 30, 1
			if strings.Contains(strings.Join(b.rules, " "), "race-") {
				rounds, tries = 500, 50
			}
			defer storetest.SetRaceRounds(rounds)()
			t.Run("advanced", func(t *testing.T) {
				requireRules(t, b.rules, tries, func() error {
					clock := newFakeClock()
					return storetest.Check(storetest.Config{
						Open:    func() (idemmail.Store, error) { return b.wrong(newRefStore(clock.now)), nil },
						Advance: clock.advance,
					})
				})
			})
			t.Run("real time", func(t *testing.T) {
				requireRules(t, b.rules, tries, func() error {
					return storetest.Check(storetest.Config{
						Open: func() (idemmail.Store, error) { return b.wrong(newRefStore(time.Now)), nil },
					})
				})
			})
		})
	}
}

// requireRules checks that each of the rules fires, and no other. A race that
// the scheduler did not let happen fires nothing, so a store that is broken in
// a race is given some tries for each of its rules to fire in one of them. Most
// broken stores do in two steps what the reference does in one; a try in which
// the scheduler got in between, so that another rule about races fired too,
// does not count.
func requireRules(t *testing.T, rules []string, tries int, check func() error) {
	t.Helper()
	const disturbed = 2 // tries that may not count
	fired := make(map[string]bool)
	var last error
	for range tries + disturbed {
		synctest.Test(t, func(*testing.T) { last = check() })
		all := names(t, last)
		others := slices.DeleteFunc(slices.Clone(all), func(name string) bool { return slices.Contains(rules, name) })
		for _, name := range others {
			require.True(t, strings.HasPrefix(name, "race-"), "%s fired too: %v", name, last)
		}
		if len(others) > 0 {
			continue
		}
		for _, name := range all {
			fired[name] = true
		}
		if len(fired) == len(rules) {
			return
		}
	}
	require.Len(t, fired, len(rules), "fired without others: %v, of %v; the last: %v", fired, rules, last)
}

// endAfter is the right answer of a store about when d is over.
func endAfter(now time.Time, d time.Duration) time.Time {
	if d == idemmail.NoExpiry {
		return time.Time{}
	}
	return now.Add(d)
}
