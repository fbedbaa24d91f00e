package storetest_test

import (
	"context"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/storetest"
	"github.com/stretchr/testify/require"
)

// refConfig tests reference stores; dress answers what the kit gets to see.
func refConfig(clock *fakeClock, dress func(*refStore) idemmail.Store) storetest.Config {
	c := storetest.Config{Open: func() (idemmail.Store, error) { return dress(newRefStore(time.Now)), nil }}
	if clock != nil {
		c.Open = func() (idemmail.Store, error) { return dress(newRefStore(clock.now)), nil }
		c.Advance = clock.advance
	}
	return c
}

func whole(s *refStore) idemmail.Store { return s }

func TestReferenceStoreWithAdvance(t *testing.T) {
	t.Parallel()
	storetest.Run(t, refConfig(newFakeClock(), whole))
}

func TestMemStoreWithAdvance(t *testing.T) {
	t.Parallel()
	clock := newFakeClock()
	storetest.Run(t, storetest.Config{
		Open: func() (idemmail.Store, error) {
			return idemmail.NewMemStore(idemmail.MemStoreOptions{Now: clock.now}), nil
		},
		Advance: clock.advance,
	})
}

func TestMemStoreInRealTime(t *testing.T) {
	t.Parallel()
	storetest.Run(t, storetest.Config{
		Open: func() (idemmail.Store, error) { return idemmail.NewMemStore(idemmail.MemStoreOptions{}), nil },
	})
}

// A correct store breaks no rule, whatever it offers, and whatever its clock
// is like.
func TestCorrectStores(t *testing.T) {
	defer storetest.SetRaceRounds(40)()
	for _, dress := range []struct {
		offers   string
		as       func(s *refStore) idemmail.Store
		advanced bool // only with an Advance
	}{
		{"everything", whole, false},
		{"Store", func(s *refStore) idemmail.Store { return struct{ idemmail.Store }{s} }, false},
		{"Renewer", func(s *refStore) idemmail.Store {
			return struct {
				idemmail.Store
				idemmail.Renewer
			}{s, s}
		}, false},
		{"BatchStore", func(s *refStore) idemmail.Store {
			return struct {
				idemmail.Store
				idemmail.Renewer
				idemmail.BatchStore
			}{s, s, s}
		}, false},
		{"Reconciler", func(s *refStore) idemmail.Store {
			return struct {
				idemmail.Store
				idemmail.Reconciler
			}{s, s}
		}, false},
		{"a clock in seconds", func(s *refStore) idemmail.Store {
			now := s.now
			s.now = func() time.Time { return now().Truncate(time.Second) }
			s.end = func(now time.Time, d time.Duration) time.Time {
				if d == idemmail.NoExpiry {
					return time.Time{}
				}
				return now.Add(max(d.Truncate(time.Second), time.Second)) // MaxInt64 has no whole second above it
			}
			return s
		}, true},
		{"a clock that runs by itself as well", func(s *refStore) idemmail.Store {
			now, start := s.now, time.Now()
			s.now = func() time.Time { return now().Add(time.Since(start)) }
			return s
		}, true},
		{"ages that Advance does not move", func(s *refStore) idemmail.Store {
			s.clockOfAges = time.Now
			return s
		}, true},
		{"a record that is listed twice", func(s *refStore) idemmail.Store {
			s.listsTwice = true
			return s
		}, false},
		{"what it may have taken is freed a little later", func(s *refStore) idemmail.Store {
			return &overrides{refStore: s, reserve: func(s *refStore, ctx context.Context, key, fp string, lease time.Duration) (string, *idemmail.Record, error) {
				ctxErr := ctx.Err()
				ctx = context.WithoutCancel(ctx)
				token, held, err := s.Reserve(ctx, key, fp, lease)
				if ctxErr != nil {
					if token != "" {
						time.AfterFunc(50*time.Millisecond, func() { _ = s.Release(ctx, key, token) })
					}
					return "", nil, ctxErr
				}
				return token, held, err
			}}
		}, false},
	} {
		t.Run(dress.offers, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				require.NoError(t, storetest.Check(refConfig(newFakeClock(), dress.as)))
			})
			if dress.advanced {
				return
			}
			synctest.Test(t, func(t *testing.T) {
				require.NoError(t, storetest.Check(refConfig(nil, dress.as)))
			})
		})
	}
}

func TestEveryRuleIsBrokenBySomeStore(t *testing.T) {
	fired := make(map[string]bool)
	for _, b := range allBroken() {
		for _, name := range b.rules {
			fired[name] = true
		}
	}
	var unbroken []string
	for _, name := range storetest.RuleNames() {
		if !fired[name] {
			unbroken = append(unbroken, name)
		}
	}
	require.Empty(t, unbroken, "no broken store breaks these rules")
}

// A get-then-set with nothing but a microsecond's work in between: what a first
// attempt at a store looks like.
func TestNarrowRaceIsFound(t *testing.T) {
	if runtime.GOMAXPROCS(0) == 1 {
		t.Skip("nothing runs at the same moment on one processor")
	}
	err := storetest.Check(refConfig(newFakeClock(), func(s *refStore) idemmail.Store {
		s.hesitates, s.briefly = "Reserve", true
		return s
	}))
	require.Contains(t, strings.Join(names(t, err), " "), "race-", "%v", err)
}

func TestOpenIsCalledOncePerRule(t *testing.T) {
	defer storetest.SetRaceRounds(20)()
	var opened atomic.Int64
	synctest.Test(t, func(t *testing.T) {
		clock := newFakeClock()
		one := newRefStore(clock.now) // the same each time: keys of different rules never meet
		require.NoError(t, storetest.Check(storetest.Config{
			Open:    func() (idemmail.Store, error) { opened.Add(1); return one, nil },
			Advance: clock.advance,
		}))
	})
	require.EqualValues(t, len(storetest.RuleNames()), opened.Load())
}

func TestOpenFails(t *testing.T) {
	for what, open := range map[string]func() (idemmail.Store, error){
		"no Open":          nil,
		"an error":         func() (idemmail.Store, error) { return nil, errBroken },
		"nil and no error": func() (idemmail.Store, error) { return nil, nil },
		"a panic":          func() (idemmail.Store, error) { panic(errBroken) },
		"no return at all": func() (idemmail.Store, error) { runtime.Goexit(); return nil, nil },
	} {
		t.Run(what, func(t *testing.T) {
			err := storetest.Check(storetest.Config{Open: open})
			require.Error(t, err)
			if what == "an error" {
				require.ErrorIs(t, err, errBroken)
			}
			require.Len(t, names(t, err), 1, "said once: %v", err)
		})
	}
}

func TestOpenFailsOnce(t *testing.T) {
	calls := 0
	clock := newFakeClock()
	err := storetest.Check(storetest.Config{Advance: clock.advance, Open: func() (idemmail.Store, error) {
		if calls++; calls == 3 {
			return nil, errBroken
		}
		return newRefStore(clock.now), nil
	}})
	require.ErrorIs(t, err, errBroken)
	require.Equal(t, 3, calls, "the rules after it are not run")
}

// A store that does not come back ends the check, whether or not it heeds its
// context.
func TestHangingStores(t *testing.T) {
	release := make(chan struct{})
	defer close(release)
	for what, hang := range map[string]func(ctx context.Context){
		"until the context ends": func(ctx context.Context) { <-ctx.Done() },
		"for ever":               func(context.Context) { <-release },
	} {
		t.Run(what, func(t *testing.T) {
			defer storetest.SetLimits(50*time.Millisecond, 50*time.Millisecond)()
			opened := 0
			err := storetest.Check(storetest.Config{Open: func() (idemmail.Store, error) {
				opened++
				return &overrides{refStore: newRefStore(time.Now), reserve: func(_ *refStore, ctx context.Context, _, _ string, _ time.Duration) (string, *idemmail.Record, error) {
					hang(ctx)
					return "", nil, ctx.Err()
				}}, nil
			}})
			require.Equal(t, []string{"reserve"}, names(t, err))
			require.ErrorContains(t, err, "not run")
			require.Equal(t, 1, opened, "the rules after it would hang as well")
		})
	}
}

func TestErrorsOfTheStoreAreWrapped(t *testing.T) {
	err := storetest.Check(refConfig(newFakeClock(), func(s *refStore) idemmail.Store {
		return &overrides{refStore: s, reserve: func(*refStore, context.Context, string, string, time.Duration) (string, *idemmail.Record, error) {
			return "", nil, errBroken
		}}
	}))
	require.ErrorIs(t, err, errBroken)
}

// The error is what an implementer reads: the rule's name, what the contract
// wants, and what the store did.
func TestErrorReads(t *testing.T) {
	err := storetest.Check(refConfig(newFakeClock(), func(s *refStore) idemmail.Store {
		return &overrides{refStore: s, release: func(_ *refStore, ctx context.Context, _, _ string) error { return ctx.Err() }}
	}))
	lines := strings.Split(err.Error(), "\n")
	require.Len(t, lines, 2)
	require.True(t, strings.HasPrefix(lines[0], "storetest: release: Release under the token that holds the key frees it"), lines[0])
	require.Equal(t, "\t"+`after its release, the key must be free; Reserve answered a record (state "pending", fingerprint "1:mine", no receipt)`, lines[1])
}

// Run is tested in a process of its own only where it must fail; here it skips
// what does not concern the store.
func TestRunSkipsWhatTheStoreDoesNotOffer(t *testing.T) {
	defer storetest.SetRaceRounds(20)()
	storetest.Run(t, refConfig(newFakeClock(), func(s *refStore) idemmail.Store { return struct{ idemmail.Store }{s} }))
}
