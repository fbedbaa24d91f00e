package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/idemmail/idemmail"
)

const (
	lease = 10 * time.Minute
	ttl   = 24 * time.Hour
)

const (
	storeFull     = "new key, full at 100,000: makes room each time"
	storeLarge    = "new key, full at 1,000,000"
	storeReplay   = "replay at 100,000 keys, against the map and a copy of the receipt"
	storeLRU      = "golang-lru v2 as the store, full at 100,000, against a MemStore"
	storeExpiring = "golang-lru v2's expirable kind, the same"
	storeOtter    = "otter v2 as the store, the same"
	storeGrowth   = "new key, full at 1,000,000 against full at 100,000"
	storeGrowing  = "100,000 new keys into an empty store"
	storeParallel = "new keys from two goroutines, throughput against one"
	storeBytes    = "bytes a kept key: 32 bytes, with a receipt of 200 bytes of text"
	storeChurned  = "the same, after all the keys have changed"
)

func storeChapter() chapter {
	return chapter{
		title: "Memory store",
		text: "`MemStore` against the least that could do its job: one mutex, one map, and a ring of keys that says which is the oldest. " +
			"A new key is reserved and completed.",
		rows: []row{
			{id: "S1", what: storeFull, atMost: 1.7, why: "a token that cannot be guessed, and the receipt packed into one piece for half the memory, " +
				"take a third of the map's time each"},
			{id: "S1", what: storeLarge, atMost: 1.75, why: "the same"},
			{id: "S2", what: storeReplay, atMost: 2.0},
			{id: "S3", what: storeLRU, atLeast: 1.4, why: "this cache knows no time: it does less, and drops keys that are pending or in their time before others that are over"},
			{id: "S3", what: storeExpiring, atLeast: 1.4},
			{id: "S3", what: storeOtter, atLeast: 1.4, why: "this cache does its upkeep in goroutines of its own: on a core that is free it costs its caller nothing"},
			{id: "S4", what: storeGrowth, atMost: 1.6},
			{what: storeGrowing},
			{what: storeParallel},
			{id: "S5", what: storeBytes, atMost: 720, unit: "bytes"},
			{id: "S5", what: storeChurned, atMost: 720, unit: "bytes"},
		},
		measure: measureStore,
	}
}

func measureStore(t testing.TB, s scale, f *findings) {
	full, fullFloor := fullStores(t, s.full)
	taken := s.compare(t, s.rounds, fullFloor, full)
	f.add(t, storeFull, taken[1].over(taken[0]))

	large, largeFloor := fullStores(t, s.large)
	taken = s.compare(t, s.rounds, largeFloor, large)
	f.add(t, storeLarge, taken[1].over(taken[0]))
	taken = s.compare(t, s.rounds, full, large)
	f.add(t, storeGrowth, taken[1].over(taken[0]))
	large, largeFloor = way{}, way{}

	taken = s.lasting(10).compare(t, s.rounds, full, fullLRU(t, newLRUStore(t, s.full), s.full), fullLRU(t, newExpirableStore(s.full), s.full), fullOtter(t, s.full))
	f.add(t, storeLRU, taken[1].over(taken[0]))
	f.add(t, storeExpiring, taken[2].over(taken[0]))
	f.add(t, storeOtter, taken[3].over(taken[0]))

	replays, replaysFloor := replays(t, s.full)
	taken = s.compare(t, s.rounds, replaysFloor, replays)
	f.add(t, storeReplay, taken[1].over(taken[0]))

	taken = s.once().compare(t, s.slow, growingBare(s.full), growing(t, s.full))
	f.add(t, storeGrowing, taken[1].over(taken[0]))

	one, two := newKeysFrom(t, s.full, 1), newKeysFrom(t, s.full, 2)
	taken = s.lasting(10).compare(t, s.rounds, one, two)
	f.add(t, storeParallel, taken[0].over(taken[1]))

	kept, churned := bytesPerKey(t, s.full)
	f.add(t, storeBytes, newSample(kept))
	f.add(t, storeChurned, newSample(churned))
}

// sendNew takes a key through a store as a send does.
func sendNew(ctx context.Context, store idemmail.Store, key string, receipt *idemmail.Receipt) error {
	token, held, err := store.Reserve(ctx, key, someFingerprint, lease)
	switch {
	case err != nil:
		return err
	case held != nil:
		return fmt.Errorf("%s is held", key)
	}
	rec := idemmail.Record{State: idemmail.StateDone, Fingerprint: someFingerprint, Receipt: receipt}
	return store.Complete(ctx, key, token, rec, ttl)
}

// fullStores are a MemStore and its floor, with as many keys as they take.
func fullStores(t testing.TB, maxEntries int) (store, floor way) {
	mem, bare := idemmail.NewMemStore(idemmail.MemStoreOptions{MaxEntries: maxEntries}), newBareStore(maxEntries)
	receipt := newReceipt(1)
	store = newKeys(func(key string) { must(t, sendNew(t.Context(), mem, key, receipt)) })
	floor = newKeys(func(key string) { sendBare(bare, key, receipt) })
	store.time(maxEntries)
	floor.time(maxEntries)
	return store, floor
}

func sendBare(bare *bareStore, key string, receipt *idemmail.Receipt) {
	bare.reserve(key, someFingerprint)
	bare.complete(key, *receipt)
}

// newKeys is a way that does something with a new key.
func newKeys(send func(key string)) way {
	var keys fresh
	return way{keys.prepare, func(int) {
		for _, key := range keys.keys {
			send(key)
		}
	}}
}

func fullLRU(t testing.TB, store *lruStore, maxEntries int) way {
	receipt := newReceipt(1)
	w := newKeys(func(key string) {
		if !store.complete(key, store.reserve(key, someFingerprint), *receipt) {
			t.Fatal("golang-lru: lost ", key)
		}
	})
	w.time(maxEntries)
	return w
}

func fullOtter(t testing.TB, maxEntries int) way {
	store := newOtterStore(t, maxEntries)
	receipt := newReceipt(1)
	w := newKeys(func(key string) {
		store.complete(key, store.reserve(key, someFingerprint), *receipt) // it may have been dropped in between
	})
	w.time(maxEntries)
	return w
}

// replays are those of a MemStore and of its floor.
func replays(t testing.TB, n int) (store, floor way) {
	mem, bare := idemmail.NewMemStore(idemmail.MemStoreOptions{MaxEntries: n}), newBareStore(n)
	keys := fillKeys(n)
	for i, key := range keys {
		receipt := newReceipt(i)
		must(t, sendNew(t.Context(), mem, key, receipt))
		sendBare(bare, key, receipt)
	}
	store = eachOf(keys, func(key string) {
		if _, held, err := mem.Reserve(t.Context(), key, someFingerprint, lease); held == nil {
			t.Fatal("not held: ", err)
		}
	})
	floor = eachOf(keys, func(key string) { bare.replay(key, someFingerprint) })
	return store, floor
}

// growing fills empty stores.
func growing(t testing.TB, n int) way {
	receipt := newReceipt(1)
	return filling(n, func() func(string) {
		mem := idemmail.NewMemStore(idemmail.MemStoreOptions{MaxEntries: n})
		return func(key string) { must(t, sendNew(t.Context(), mem, key, receipt)) }
	})
}

func growingBare(n int) way {
	receipt := newReceipt(1)
	return filling(n, func() func(string) {
		bare := newBareStore(n)
		return func(key string) { sendBare(bare, key, receipt) }
	})
}

func filling(n int, open func() (send func(key string))) way {
	keys := fresh{}
	keys.prepare(n)
	return way{run: func(times int) {
		for range times {
			send := open()
			for _, key := range keys.keys {
				send(key)
			}
		}
	}}
}

// newKeysFrom is new keys for one store from several goroutines.
func newKeysFrom(t testing.TB, maxEntries, goroutines int) way {
	mem := idemmail.NewMemStore(idemmail.MemStoreOptions{MaxEntries: maxEntries})
	receipt := newReceipt(1)
	w := newKeysBy(t, goroutines, func(_ int, key string) error { return sendNew(t.Context(), mem, key, receipt) })
	w.time(maxEntries)
	return w
}

// newKeysBy is a way in which several goroutines do something with new keys,
// each with its share.
func newKeysBy(t testing.TB, goroutines int, send func(g int, key string) error) way {
	var keys fresh
	return way{keys.prepare, func(int) {
		errs := make([]error, goroutines)
		var all sync.WaitGroup
		for g := range goroutines {
			all.Go(func() {
				for i := g; i < len(keys.keys) && errs[g] == nil; i += goroutines {
					errs[g] = send(g, keys.keys[i])
				}
			})
		}
		all.Wait()
		must(t, errors.Join(errs...))
	}}
}

func must(t testing.TB, err error) {
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
}

// bytesPerKey answers what a key takes in a store that is full, and after all
// its keys were dropped for others.
func bytesPerKey(t testing.TB, n int) (kept, churned float64) {
	before := heapInUse()
	mem := idemmail.NewMemStore(idemmail.MemStoreOptions{MaxEntries: n})
	send := func(i int) { // every string is one of its own, as those of real receipts are
		fingerprint := fmt.Sprintf("1:%064x", i)
		token, _, err := mem.Reserve(t.Context(), newKey(i), fingerprint, lease)
		must(t, err)
		rec := idemmail.Record{State: idemmail.StateDone, Fingerprint: fingerprint, Receipt: newReceipt(i)}
		must(t, mem.Complete(t.Context(), newKey(i), token, rec, ttl))
	}
	perKey := func() float64 { return float64(heapInUse()-before) / float64(mem.Len()) }
	for i := range n {
		send(i)
	}
	kept = perKey()
	for i := range n {
		send(n + i)
	}
	churned = perKey()
	runtime.KeepAlive(mem)
	return kept, churned
}

func heapInUse() int64 {
	runtime.GC()
	runtime.GC() // what finalizers and pools still held
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
