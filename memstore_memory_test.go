//go:build !race

package idemmail_test

// The race detector allocates too, so memory is measured without it.

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
)

// What has expired is dropped as new keys come, without any call of Len.
func TestMemStoreMillionShortKeys(t *testing.T) {
	clock := newMemClock()
	s := idemmail.NewMemStore(idemmail.MemStoreOptions{MaxEntries: 2000, Now: clock.Now})
	before := heapInUse()
	for i := range 1_000_000 {
		// 1,000 are alive at a time. With 2,000 allowed, a store that did not
		// drop the others would be full: pending keys are never dropped early.
		clock.Advance(time.Microsecond)
		mustReserveFast(t, s, benchKey(i), time.Millisecond)
	}
	require.Equal(t, 1000, s.Len())
	require.Less(t, int(heapInUse()-before), 2000*500)

	clock.Advance(time.Millisecond)
	require.Zero(t, s.Len())
	require.Less(t, int(heapInUse()-before), 16<<10, "an empty store keeps nothing")
	runtime.KeepAlive(s)
}

// A burst that has expired leaves with the keys that come after it, whatever
// their durations were.
func TestMemStoreBurst(t *testing.T) {
	const burst = 100_000
	s, clock := newMemStore(-1)
	before := heapInUse()
	for i := range burst {
		mustReserveFast(t, s, benchKey(i), time.Second+time.Duration(i))
	}
	clock.Advance(2 * time.Second)
	for i := range burst + 1 { // each drops one of the burst, and the one before it
		mustReserveFast(t, s, benchKey(burst+i), time.Nanosecond)
		clock.Advance(time.Nanosecond)
	}
	require.Less(t, int(heapInUse()-before), 64<<10)
	runtime.KeepAlive(s)
}

// Nothing is kept of a duration that no key has any more, though the store is
// never empty.
func TestMemStoreManyDurationsComeAndGo(t *testing.T) {
	clock := newMemClock()
	s := idemmail.NewMemStore(idemmail.MemStoreOptions{Now: clock.Now})
	mustReserve(t, s, "stays", "fp", time.Hour)
	before := heapInUse()
	for i := range 100_000 {
		mustReserveFast(t, s, "goes", time.Duration(i+1))
		clock.Advance(time.Duration(i + 1))
		if s.Len() != 1 {
			t.Fatal("it stays")
		}
	}
	require.Less(t, int(heapInUse()-before), 64<<10)
	require.NotNil(t, lookup(t, s, "stays"))
}

// A kept key of 32 bytes, with the fingerprint of a message and a receipt of
// 200 bytes of text, takes 720 bytes at most, and hardly more after all the keys
// have changed.
func TestMemStoreBytesPerKey(t *testing.T) {
	const (
		n     = 100_000
		limit = 720
	)
	clock := newMemClock()
	s := idemmail.NewMemStore(idemmail.MemStoreOptions{MaxEntries: n, Now: clock.Now})
	settle := func(i int) {
		// Every string is one of its own, as those of real receipts are.
		key := benchKey(i)
		fingerprint := fmt.Sprintf("1:%064x", i)
		token, _, err := s.Reserve(t.Context(), key, fingerprint, time.Minute)
		if err != nil || token == "" {
			t.Fatalf("Reserve answered %q, %v", token, err)
		}
		rec := idemmail.Record{State: idemmail.StateDone, Fingerprint: fingerprint, Receipt: memReceipt(i, clock.Now())}
		if err := s.Complete(t.Context(), key, token, rec, 24*time.Hour); err != nil {
			t.Fatal(err)
		}
		clock.Advance(time.Millisecond)
	}
	before := heapInUse()
	perKey := func() int { return int(heapInUse()-before) / s.Len() }
	for i := range n {
		settle(i)
	}
	full := perKey()
	require.LessOrEqual(t, full, limit)
	for i := n; i < 2*n; i++ {
		settle(i)
	}
	churned := perKey()
	require.Equal(t, n, s.Len())
	require.LessOrEqual(t, churned, limit)
	require.InDelta(t, full, churned, 40, "steady under churn")
	t.Logf("%d bytes a key, %d under churn", full, churned)
	runtime.KeepAlive(s)
}

// A new send costs what it has to: the entry until the store is full, the
// token, and the packed receipt. A replay costs the record and the receipt.
func TestMemStoreAllocations(t *testing.T) {
	const n = 1000
	s := idemmail.NewMemStore(idemmail.MemStoreOptions{MaxEntries: n})
	rec := idemmail.Record{State: idemmail.StateDone, Fingerprint: "fp", Receipt: memReceipt(1, time.Now().UTC())}
	keys := make([]string, 10*n)
	for i := range keys {
		keys[i] = benchKey(i)
	}
	next := 0
	send := func() {
		token, held, err := s.Reserve(t.Context(), keys[next], "fp", time.Minute)
		if held != nil || err != nil {
			t.Fatal(held, err)
		}
		if err := s.Complete(t.Context(), keys[next], token, rec, time.Hour); err != nil {
			t.Fatal(err)
		}
		next++
	}
	require.LessOrEqual(t, testing.AllocsPerRun(n, send), 3.0)
	require.LessOrEqual(t, testing.AllocsPerRun(n, send), 2.0, "once it is full")
	require.LessOrEqual(t, testing.AllocsPerRun(100, func() {
		if _, held, _ := s.Reserve(t.Context(), keys[next-1], "fp", time.Minute); held == nil {
			t.Fatal("not held")
		}
	}), 2.0)
}

// heapInUse is what is reachable.
func heapInUse() int64 {
	runtime.GC()
	runtime.GC() // what the first one's finalizers and pools held
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
