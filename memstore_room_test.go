package idemmail_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
)

// keysOf returns those of the keys that are held.
func keysOf(t testing.TB, s *idemmail.MemStore, keys ...string) string {
	t.Helper()
	var held []string
	for _, key := range keys {
		if lookup(t, s, key) != nil {
			held = append(held, key)
		}
	}
	return strings.Join(held, " ")
}

// requireFull checks that there is no room for a new key, and that finding so
// changed nothing.
func requireFull(t testing.TB, s *idemmail.MemStore) {
	t.Helper()
	n := s.Len()
	token, held, err := s.Reserve(t.Context(), "one too many", "fp", time.Minute)
	require.ErrorIs(t, err, idemmail.ErrStoreFull)
	require.Empty(t, token)
	require.Nil(t, held)
	err = s.Complete(t.Context(), "one too many", "t", memDone("fp", idemmail.StatusSent), time.Minute)
	require.ErrorIs(t, err, idemmail.ErrStoreFull)
	require.Nil(t, lookup(t, s, "one too many"))
	require.Equal(t, n, s.Len())
}

func TestMemStoreMaxEntries(t *testing.T) {
	for _, test := range []struct{ maxEntries, keys, want int }{
		{0, 100_001, 100_000},
		{1, 3, 1},
		{-1, 100_001, 100_001},
	} {
		s, _ := newMemStore(test.maxEntries)
		for i := range test.keys {
			if err := s.Complete(t.Context(), benchKey(i), "t", memDone("fp", idemmail.StatusSent), time.Hour); err != nil {
				t.Fatal(err)
			}
		}
		require.Equal(t, test.want, s.Len(), "MaxEntries %d", test.maxEntries)
	}
}

func TestMemStoreDropsExpiredFirst(t *testing.T) {
	for _, expired := range []string{"pending", "done"} {
		t.Run(expired, func(t *testing.T) {
			s, clock := newMemStore(3)
			mustSettle(t, s, "oldest", idemmail.StatusSent, time.Hour)
			if expired == "done" {
				mustSettle(t, s, "expired", idemmail.StatusSent, time.Second)
			} else {
				mustReserve(t, s, "expired", "fp", time.Second)
			}
			mustSettle(t, s, "newest", idemmail.StatusSent, time.Minute)
			clock.Advance(time.Second)
			mustReserve(t, s, "new", "fp", time.Minute)
			require.Equal(t, "oldest newest new", keysOf(t, s, "oldest", "expired", "newest", "new"))
		})
	}
}

func TestMemStoreDropsTheOldestDone(t *testing.T) {
	s, clock := newMemStore(3)
	a := mustReserve(t, s, "a", "fp", time.Hour)
	mustSettle(t, s, "b", idemmail.StatusSent, idemmail.NoExpiry)
	mustSettle(t, s, "c", idemmail.StatusUnknown, time.Minute)
	clock.Advance(time.Second)
	require.NoError(t, s.Complete(t.Context(), "a", a, memDone("fp", idemmail.StatusSent), 2*time.Second))
	all := []string{"a", "b", "c", "d", "e", "f", "g"}

	// b was completed first, though others were reserved before and end sooner.
	mustReserve(t, s, "d", "fp", time.Hour)
	require.Equal(t, "a c d", keysOf(t, s, all...))
	require.NoError(t, s.Complete(t.Context(), "e", "t", memDone("fp", idemmail.StatusSent), time.Hour))
	require.Equal(t, "a d e", keysOf(t, s, all...))
	// Completed again, a is the newest.
	require.NoError(t, s.Complete(t.Context(), "a", a, memDone("fp", idemmail.StatusSent), time.Hour))
	mustReserve(t, s, "f", "fp", time.Hour)
	require.Equal(t, "a d f", keysOf(t, s, all...))
	mustReserve(t, s, "g", "fp", time.Hour)
	require.Equal(t, "d f g", keysOf(t, s, all...))
	requireFull(t, s)
}

func TestMemStoreNeverDropsPending(t *testing.T) {
	s, clock := newMemStore(2)
	a := mustReserve(t, s, "a", "fp", time.Minute)
	mustReserve(t, s, "b", "fp", idemmail.NoExpiry)
	clock.Advance(time.Minute - 1)
	requireFull(t, s)

	require.NoError(t, s.Renew(t.Context(), "a", a, time.Minute))
	clock.Advance(time.Minute - 1)
	requireFull(t, s)
	_, held, err := s.Reserve(t.Context(), "a", "fp", time.Minute)
	require.NoError(t, err, "a full store answers what it holds")
	require.NotNil(t, held)

	clock.Advance(1)
	mustReserve(t, s, "c", "fp", time.Minute)
	require.Equal(t, "b c", keysOf(t, s, "a", "b", "c"))
}

func TestMemStoreNeverDropsUnknownKeptForEver(t *testing.T) {
	s, clock := newMemStore(2)
	a := mustSettle(t, s, "a", idemmail.StatusUnknown, idemmail.NoExpiry)
	b := mustReserve(t, s, "b", "fp", time.Minute)
	require.NoError(t, s.Complete(t.Context(), "b", b, memDone("fp", idemmail.StatusUnknown), idemmail.NoExpiry), "a full store completes what it holds")
	clock.Advance(1e6 * time.Hour)
	requireFull(t, s)

	// Settled, they are like any other.
	require.NoError(t, s.Resolve(t.Context(), *lookup(t, s, "b"), &idemmail.Receipt{Status: idemmail.StatusSent}, idemmail.NoExpiry))
	require.NoError(t, s.Complete(t.Context(), "a", a, memDone("fp", idemmail.StatusUnknown), time.Hour))
	mustReserve(t, s, "c", "fp", time.Hour)
	require.Equal(t, "a c", keysOf(t, s, "a", "b", "c"))
	mustReserve(t, s, "d", "fp", time.Hour)
	require.Equal(t, "c d", keysOf(t, s, "a", "b", "c", "d"))
	requireFull(t, s)

	require.NoError(t, s.Forget(t.Context(), *lookup(t, s, "c")))
	mustReserve(t, s, "e", "fp", time.Hour)
}

// An expired key of the caller's own makes its own room.
func TestMemStoreTakesOverWhenFull(t *testing.T) {
	s, clock := newMemStore(2)
	mustSettle(t, s, "other", idemmail.StatusUnknown, idemmail.NoExpiry)
	mustReserve(t, s, "k", "fp", time.Second)
	clock.Advance(time.Second)
	mustReserve(t, s, "k", "fp", time.Second)
	clock.Advance(time.Second)
	require.NoError(t, s.Complete(t.Context(), "k", "late", memDone("fp", idemmail.StatusUnknown), idemmail.NoExpiry))
	requireFull(t, s)
}

// A clock that goes back holds keys for longer, loses none, and hides nothing
// that has expired behind what has not.
func TestMemStoreClockGoesBack(t *testing.T) {
	s, clock := newMemStore(3)
	ahead := mustReserve(t, s, "ahead", "fp", time.Minute)
	clock.Advance(-time.Hour)
	e := lookup(t, s, "ahead")
	require.Equal(t, ahead, e.Token)
	require.Zero(t, e.Record.Age, "an age is never negative")
	for range s.Unsettled(t.Context(), "", 1) {
		t.Fatal("an age of 0 is listed as older")
	}

	mustReserve(t, s, "a", "fp", time.Minute)
	clock.Advance(-time.Hour)
	mustReserve(t, s, "b", "fp", time.Minute)
	requireFull(t, s)
	clock.Advance(time.Minute)
	mustReserve(t, s, "c", "fp", time.Hour)
	require.Equal(t, "ahead a c", keysOf(t, s, "ahead", "a", "b", "c"))
	clock.Advance(time.Hour)
	require.Equal(t, "ahead", keysOf(t, s, "ahead", "a", "b", "c"))
	require.NoError(t, s.Renew(t.Context(), "ahead", ahead, time.Minute))
	clock.Advance(time.Minute)
	require.Zero(t, s.Len(), "a renewed lease begins by the clock as it is now")
}

// Each key of its own duration, in no order: the one to expire is found among
// all of them.
func TestMemStoreManyDurations(t *testing.T) {
	const n = 1000
	s, clock := newMemStore(n)
	random := rand.New(rand.NewPCG(1, 2))
	lease := func(i int) time.Duration { return time.Duration(i+1) * time.Second }
	for _, i := range random.Perm(n) {
		mustReserve(t, s, fmt.Sprint(i), "fp", lease(i))
	}
	start := clock.Now()
	for i := range n {
		clock.Advance(start.Add(lease(i)).Sub(clock.Now()) - 1)
		requireFull(t, s)
		clock.Advance(1)
		mustReserve(t, s, fmt.Sprint("new ", i), "fp", idemmail.NoExpiry)
		require.Nil(t, lookup(t, s, fmt.Sprint(i)))
	}
}

// mustReserveFast is mustReserve for a great many keys.
func mustReserveFast(t testing.TB, s *idemmail.MemStore, key string, lease time.Duration) {
	token, held, err := s.Reserve(context.Background(), key, "fp", lease)
	if token == "" || held != nil || err != nil {
		t.Fatalf("Reserve(%q) answered %q, %v, %v", key, token, held, err)
	}
}
