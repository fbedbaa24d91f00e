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
			rounds := 30
			if strings.Contains(strings.Join(b.rules, " "), "race-") {
				rounds = 500
			}
			defer storetest.SetRaceRounds(rounds)()
			t.Run("advanced", func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					clock := newFakeClock()
					err := storetest.Check(storetest.Config{
						Open:    func() (idemmail.Store, error) { return b.wrong(newRefStore(clock.now)), nil },
						Advance: clock.advance,
					})
					require.ElementsMatch(t, b.rules, names(t, err), "%v", err)
				})
			})
			t.Run("real time", func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					err := storetest.Check(storetest.Config{
						Open: func() (idemmail.Store, error) { return b.wrong(newRefStore(time.Now)), nil },
					})
					require.ElementsMatch(t, b.rules, names(t, err), "%v", err)
				})
			})
		})
	}
}

// endAfter is the right answer of a store about when d is over.
func endAfter(now time.Time, d time.Duration) time.Time {
	if d == idemmail.NoExpiry {
		return time.Time{}
	}
	return now.Add(d)
}
