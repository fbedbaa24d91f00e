package idemmail_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
)

// unsettled returns the keys that are listed, sorted.
func unsettled(t testing.TB, s *idemmail.MemStore, prefix string, olderThan time.Duration) []string {
	t.Helper()
	var keys []string
	for e, err := range s.Unsettled(t.Context(), prefix, olderThan) {
		require.NoError(t, err)
		keys = append(keys, e.Key)
	}
	slices.Sort(keys)
	return keys
}

func TestMemStoreLookup(t *testing.T) {
	s, clock := newMemStore(0)
	require.Nil(t, lookup(t, s, "k"))
	token := mustReserve(t, s, "k", "fp", time.Minute)
	ends := clock.Now().Add(time.Minute)
	clock.Advance(time.Second)
	require.Equal(t, &idemmail.Entry{
		Key: "k", Token: token,
		Record:    idemmail.Record{State: idemmail.StatePending, Fingerprint: "fp", Age: time.Second},
		ExpiresAt: ends,
	}, lookup(t, s, "k"))

	done := memDone("fp", idemmail.StatusSent)
	require.NoError(t, s.Complete(t.Context(), "k", token, done, idemmail.NoExpiry))
	require.Equal(t, &idemmail.Entry{Key: "k", Token: token, Record: done}, lookup(t, s, "k"))
}

// By the system's clock, an entry's times are those that clocks on walls show.
func TestMemStoreWithoutClock(t *testing.T) {
	s := idemmail.NewMemStore(idemmail.MemStoreOptions{})
	before := time.Now()
	mustReserve(t, s, "k", "fp", time.Hour)
	after := time.Now()
	e := lookup(t, s, "k")
	require.WithinRange(t, e.ExpiresAt, before.Add(time.Hour-time.Millisecond), after.Add(time.Hour+time.Millisecond))
	require.Equal(t, e.ExpiresAt.Round(0), e.ExpiresAt, "without a monotonic reading, which means nothing elsewhere")
	require.Less(t, e.Record.Age, time.Hour)
}

func TestMemStoreUnsettled(t *testing.T) {
	s, clock := newMemStore(0)
	mustSettle(t, s, "ns:unknown", idemmail.StatusUnknown, idemmail.NoExpiry)
	mustSettle(t, s, "ns:unknown, ends", idemmail.StatusUnknown, time.Hour)
	mustSettle(t, s, "ns:sent", idemmail.StatusSent, time.Hour)
	mustSettle(t, s, "ns:failed", idemmail.StatusFailed, time.Hour)
	mustSettle(t, s, "NS:unknown", idemmail.StatusUnknown, time.Hour)
	mustReserve(t, s, "ns:pending", "fp", idemmail.NoExpiry)
	mustReserve(t, s, "ns:pending, ends", "fp", 20*time.Second)
	mustReserve(t, s, "n", "fp", time.Hour)
	clock.Advance(10 * time.Second)
	mustReserve(t, s, "ns:pending, new", "fp", time.Hour)

	require.Equal(t, []string{"ns:pending", "ns:pending, ends", "ns:unknown", "ns:unknown, ends"},
		unsettled(t, s, "ns:", 10*time.Second), "an age of just so much is old enough")
	require.Equal(t, []string{"ns:unknown", "ns:unknown, ends"}, unsettled(t, s, "ns:", 10*time.Second+1))
	require.Equal(t, []string{"ns:pending", "ns:pending, ends", "ns:pending, new"}, unsettled(t, s, "ns:pending", 0))
	require.Len(t, unsettled(t, s, "", -time.Second), 7)
	require.Empty(t, unsettled(t, s, "%", 0))
	require.Empty(t, unsettled(t, s, "ns*", 0))

	clock.Advance(time.Hour)
	require.Equal(t, []string{"ns:pending", "ns:unknown"}, unsettled(t, s, "", 0), "what has expired is not listed")
	for e := range s.Unsettled(t.Context(), "ns:unknown", 0) {
		require.Equal(t, *lookup(t, s, "ns:unknown"), e)
	}
}

// The store may be used, and changed, while a listing goes on.
func TestMemStoreUnsettledStreams(t *testing.T) {
	const n = 5000
	s, _ := newMemStore(-1)
	for i := range n {
		mustReserveFast(t, s, fmt.Sprint("k", i), time.Hour)
	}
	listing := s.Unsettled(t.Context(), "k", 0)
	seen := make(map[string]bool)
	for e, err := range listing {
		require.NoError(t, err)
		require.False(t, seen[e.Key], "%s is listed twice", e.Key)
		seen[e.Key] = true
		require.NoError(t, s.Forget(t.Context(), e))
		mustReserveFast(t, s, fmt.Sprint("other", len(seen)), time.Hour)
	}
	require.Len(t, seen, n)
	require.Equal(t, n, s.Len())

	for range listing {
		t.Fatal("all were forgotten")
	}
	for range s.Unsettled(t.Context(), "other", 0) {
		break // ends it early
	}
	require.Equal(t, n, s.Len(), "and the store goes on")

	require.PanicsWithValue(t, "caller's", func() {
		for range s.Unsettled(t.Context(), "other", 0) {
			panic("caller's")
		}
	})
	require.Equal(t, n, s.Len(), "and the store goes on")
}

func TestMemStoreUnsettledEndsWithItsContext(t *testing.T) {
	s, _ := newMemStore(-1)
	for i := range 5000 {
		mustReserveFast(t, s, fmt.Sprint("k", i), time.Hour)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var entries, errs int
	for e, err := range s.Unsettled(ctx, "", 0) {
		if err != nil {
			require.ErrorIs(t, err, context.Canceled)
			require.Zero(t, e)
			errs++
			continue
		}
		entries++
		cancel()
	}
	require.Equal(t, 1, entries)
	require.Equal(t, 1, errs)

	// Also where there is nothing to show.
	ctx, cancel = context.WithCancel(t.Context())
	reads := 0
	s = idemmail.NewMemStore(idemmail.MemStoreOptions{MaxEntries: -1, Now: func() time.Time {
		if reads++; reads == 6000 {
			cancel()
		}
		return time.Unix(0, 0)
	}})
	for i := range 5000 {
		mustReserveFast(t, s, fmt.Sprint("k", i), time.Hour)
	}
	errs = 0
	for _, err := range s.Unsettled(ctx, "none", 0) {
		require.ErrorIs(t, err, context.Canceled)
		errs++
	}
	require.Equal(t, 1, errs)
	require.Equal(t, 6000, reads, "it ended there")
}

// Another caller's turn comes while a large store is looked through, though
// nothing is found in it.
func TestMemStoreUnsettledLetsOthersIn(t *testing.T) {
	const n = 50_000
	var (
		asking, answered atomic.Bool
		looking          bool
		looks            int
	)
	s := idemmail.NewMemStore(idemmail.MemStoreOptions{MaxEntries: -1, Now: func() time.Time {
		if looking && !answered.Load() {
			for !asking.Load() {
				runtime.Gosched()
			}
			if looks++; looks%500 == 0 {
				time.Sleep(time.Millisecond) // which the other one spends waiting for the lock
			}
		}
		return time.Unix(0, 0)
	}})
	for i := range n {
		mustReserveFast(t, s, benchKey(i), time.Hour)
	}
	looking = true
	var wg sync.WaitGroup
	wg.Go(func() {
		asking.Store(true)
		if err := s.Release(context.Background(), "other", ""); err != nil {
			t.Error(err)
		}
		answered.Store(true)
	})
	for range s.Unsettled(t.Context(), "none", 0) {
		t.Fatal("nothing is to be listed")
	}
	require.Less(t, looks, n, "the other one had to wait for the end")
	wg.Wait()
}

func TestMemStoreResolve(t *testing.T) {
	for _, state := range []idemmail.State{idemmail.StatePending, idemmail.StateDone} {
		t.Run(string(state), func(t *testing.T) {
			s, clock := newMemStore(0)
			token := mustReserve(t, s, "k", "1:aa", idemmail.NoExpiry)
			if state == idemmail.StateDone {
				require.NoError(t, s.Complete(t.Context(), "k", token, memDone("1:aa", idemmail.StatusUnknown), idemmail.NoExpiry))
			}
			e := lookup(t, s, "k")
			clock.Advance(time.Minute)
			sent := &idemmail.Receipt{Status: idemmail.StatusSent, MessageID: "m@example.org"}
			require.NoError(t, s.Resolve(t.Context(), *e, sent, time.Hour))

			after := lookup(t, s, "k")
			require.NotEmpty(t, after.Token)
			require.NotEqual(t, token, after.Token)
			require.Equal(t, &idemmail.Entry{
				Key: "k", Token: after.Token,
				Record:    idemmail.Record{State: idemmail.StateDone, Fingerprint: "1:aa", Receipt: sent},
				ExpiresAt: clock.Now().Add(time.Hour),
			}, after)
			require.Empty(t, unsettled(t, s, "", 0))

			require.ErrorIs(t, s.Resolve(t.Context(), *e, sent, time.Hour), idemmail.ErrChanged)
			require.ErrorIs(t, s.Forget(t.Context(), *e), idemmail.ErrChanged)
			require.ErrorIs(t, s.Complete(t.Context(), "k", token, memDone("x", idemmail.StatusUnknown), time.Hour), idemmail.ErrLeaseLost)
			require.ErrorIs(t, s.Release(t.Context(), "k", token), idemmail.ErrLeaseLost)
			require.Equal(t, after, lookup(t, s, "k"))
		})
	}
}

func TestMemStoreForget(t *testing.T) {
	s, _ := newMemStore(0)
	token := mustReserve(t, s, "k", "fp", time.Hour)
	require.NoError(t, s.Forget(t.Context(), *lookup(t, s, "k")))
	require.Zero(t, s.Len())
	require.ErrorIs(t, s.Renew(t.Context(), "k", token, time.Hour), idemmail.ErrLeaseLost)

	mustSettle(t, s, "k", idemmail.StatusUnknown, idemmail.NoExpiry)
	require.NoError(t, s.Forget(t.Context(), *lookup(t, s, "k")))
	mustReserve(t, s, "k", "another", time.Hour)
}

// Both are fenced by the token and the state.
func TestMemStoreChanged(t *testing.T) {
	sent := &idemmail.Receipt{Status: idemmail.StatusSent}
	for _, test := range []struct {
		name   string
		change func(s *idemmail.MemStore, e *idemmail.Entry) error
	}{
		{"completed", func(s *idemmail.MemStore, e *idemmail.Entry) error {
			return s.Complete(context.Background(), "k", e.Token, memDone("fp", idemmail.StatusUnknown), time.Hour)
		}},
		{"released", func(s *idemmail.MemStore, e *idemmail.Entry) error {
			return s.Release(context.Background(), "k", e.Token)
		}},
		{"taken over", func(s *idemmail.MemStore, e *idemmail.Entry) error {
			if err := s.Release(context.Background(), "k", e.Token); err != nil {
				return err
			}
			_, _, err := s.Reserve(context.Background(), "k", "fp", time.Hour)
			return err
		}},
		{"another state", func(_ *idemmail.MemStore, e *idemmail.Entry) error {
			e.Record.State = idemmail.StateDone
			return nil
		}},
		{"another token", func(_ *idemmail.MemStore, e *idemmail.Entry) error {
			e.Token = ""
			return nil
		}},
		{"another key", func(_ *idemmail.MemStore, e *idemmail.Entry) error {
			e.Key = "other"
			return nil
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s, _ := newMemStore(0)
			mustReserve(t, s, "k", "fp", time.Hour)
			e := lookup(t, s, "k")
			require.NoError(t, test.change(s, e))
			before := lookup(t, s, "k")
			require.ErrorIs(t, s.Resolve(t.Context(), *e, sent, time.Hour), idemmail.ErrChanged)
			require.ErrorIs(t, s.Forget(t.Context(), *e), idemmail.ErrChanged)
			require.Equal(t, before, lookup(t, s, "k"))
		})
	}
}

func TestMemStoreResolvesAsSentAlone(t *testing.T) {
	s, _ := newMemStore(0)
	mustReserve(t, s, "k", "fp", time.Hour)
	e := lookup(t, s, "k")
	for _, status := range []idemmail.Status{idemmail.StatusUnknown, idemmail.StatusFailed, ""} {
		require.Error(t, s.Resolve(t.Context(), *e, &idemmail.Receipt{Status: status}, time.Hour))
		require.Equal(t, e, lookup(t, s, "k"))
	}
	require.NoError(t, s.Resolve(t.Context(), *e, nil, time.Hour))
	require.Equal(t, &idemmail.Receipt{Status: idemmail.StatusSent}, lookup(t, s, "k").Record.Receipt, "a bare one")
}
