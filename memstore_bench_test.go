package idemmail_test

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/idemmail/idemmail"
)

// A mapStore is the least that could do the job of a [idemmail.MemStore]: one
// mutex, one map, and a ring of keys that says which is the oldest. It has no
// tokens, no time, and no copies. What a MemStore costs is told as a multiple
// of it.
type mapStore struct {
	mu      sync.Mutex
	records map[string]*idemmail.Record
	ring    []string
	oldest  int
}

func newMapStore(maxEntries int) *mapStore {
	return &mapStore{records: make(map[string]*idemmail.Record), ring: make([]string, maxEntries)}
}

func (s *mapStore) reserve(key, fingerprint string) (held *idemmail.Record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if held := s.records[key]; held != nil {
		return held
	}
	delete(s.records, s.ring[s.oldest])
	s.records[key] = &idemmail.Record{State: idemmail.StatePending, Fingerprint: fingerprint}
	s.ring[s.oldest] = key
	s.oldest = (s.oldest + 1) % len(s.ring)
	return nil
}

func (s *mapStore) complete(key string, r idemmail.Receipt) {
	s.mu.Lock()
	defer s.mu.Unlock()
	held := s.records[key]
	held.State, held.Receipt = idemmail.StateDone, &r
}

// benchKey is a key of 32 bytes.
func benchKey(i int) string {
	var digits [32]byte
	copy(digits[:], "orders:confirmation/000000000000")
	for j := len(digits) - 1; i > 0; j, i = j-1, i/10 {
		digits[j] = byte('0' + i%10)
	}
	return string(digits[:])
}

const benchFingerprint = "1:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// BenchmarkMemStoreNew reserves and completes a new key in a store that is
// full, so that each one drops the oldest.
func BenchmarkMemStoreNew(b *testing.B) {
	receipt := memReceipt(1, time.Now().UTC())
	for _, maxEntries := range []int{100_000, 1_000_000} {
		s := idemmail.NewMemStore(idemmail.MemStoreOptions{MaxEntries: maxEntries})
		m := newMapStore(maxEntries)
		viaStore := func(i int) {
			key := benchKey(i)
			token, _, err := s.Reserve(context.Background(), key, benchFingerprint, time.Minute)
			if err != nil || token == "" {
				b.Fatal(token, err)
			}
			rec := idemmail.Record{State: idemmail.StateDone, Fingerprint: benchFingerprint, Receipt: receipt}
			if err := s.Complete(context.Background(), key, token, rec, time.Hour); err != nil {
				b.Fatal(err)
			}
		}
		viaMap := func(i int) {
			key := benchKey(i)
			if m.reserve(key, benchFingerprint) != nil {
				b.Fatal("held")
			}
			m.complete(key, *receipt)
		}
		for _, how := range []struct {
			name string
			send func(i int)
		}{{"MemStore", viaStore}, {"map", viaMap}} {
			next := 0
			b.Run(strconv.Itoa(maxEntries)+"/"+how.name, func(b *testing.B) {
				b.ReportAllocs()
				for ; next < maxEntries; next++ {
					how.send(next)
				}
				for b.Loop() {
					how.send(next)
					next++
				}
			})
		}
	}
}

// BenchmarkMemStoreReplay reserves keys that are done.
func BenchmarkMemStoreReplay(b *testing.B) {
	const n = 100_000
	receipt := memReceipt(1, time.Now().UTC())
	s := idemmail.NewMemStore(idemmail.MemStoreOptions{MaxEntries: n})
	m := newMapStore(n)
	keys := make([]string, n)
	for i := range keys {
		keys[i] = benchKey(i)
		rec := idemmail.Record{State: idemmail.StateDone, Fingerprint: benchFingerprint, Receipt: receipt}
		if err := s.Complete(context.Background(), keys[i], "t", rec, time.Hour); err != nil {
			b.Fatal(err)
		}
		m.reserve(keys[i], benchFingerprint)
		m.complete(keys[i], *receipt)
	}
	const stride = 7919 // prime: keys come in no order of the store's
	b.Run("MemStore", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i += stride {
			if _, held, _ := s.Reserve(context.Background(), keys[i%n], benchFingerprint, time.Minute); held == nil {
				b.Fatal("not held")
			}
		}
	})
	b.Run("map", func(b *testing.B) {
		b.ReportAllocs()
		var kept *idemmail.Record
		for i := 0; b.Loop(); i += stride {
			held := m.reserve(keys[i%n], benchFingerprint)
			if held == nil {
				b.Fatal("not held")
			}
			// The copy of the record and the receipt, which no store can spare.
			record, receipt := *held, *held.Receipt
			record.Receipt = &receipt
			kept = &record
		}
		_ = kept
	})
}

// memReceipt has 200 bytes of text, in strings of its own.
func memReceipt(i int, at time.Time) *idemmail.Receipt {
	return &idemmail.Receipt{
		Status:     idemmail.StatusSent,
		Transport:  fmt.Sprintf("smtp%06d", i%10),
		MessageID:  fmt.Sprintf("%040d@mail.example.org", i),
		ProviderID: fmt.Sprintf("%030d", i),
		Response:   fmt.Sprintf("250 2.0.0 Ok: queued as %074d", i),
		At:         at,
	}
}
