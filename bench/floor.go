package main

import (
	"sync"

	"github.com/idemmail/idemmail"
)

// A bareStore is the least that could do the job of a store in memory: one
// mutex, one map, and a ring of keys that says which is the oldest. It has no
// tokens and no time.
type bareStore struct {
	mu      sync.Mutex
	records map[string]*idemmail.Record
	ring    []string
	oldest  int
}

func newBareStore(maxEntries int) *bareStore {
	return &bareStore{records: make(map[string]*idemmail.Record), ring: make([]string, maxEntries)}
}

// reserve answers what holds the key, which the caller may not change.
func (s *bareStore) reserve(key, fingerprint string) (held *idemmail.Record) {
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

func (s *bareStore) complete(key string, r idemmail.Receipt) {
	s.mu.Lock()
	defer s.mu.Unlock()
	held := s.records[key]
	held.State, held.Receipt = idemmail.StateDone, &r
}

// replay answers a copy of the record under a key and of its receipt, which no
// store can spare, and the compiler must not.
//
//go:noinline
func (s *bareStore) replay(key, fingerprint string) *idemmail.Record {
	record := *s.reserve(key, fingerprint)
	receipt := *record.Receipt
	record.Receipt = &receipt
	return &record
}
