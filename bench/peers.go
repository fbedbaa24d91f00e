package main

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/hashicorp/golang-lru/v2/expirable"
	"github.com/maypok86/otter/v2"

	"github.com/idemmail/idemmail"
)

// A peerRecord is what a store on somebody's cache keeps under a key.
type peerRecord struct {
	token       string
	fingerprint string
	expires     time.Time
	receipt     *idemmail.Receipt // nil: pending
}

func newReservation(fingerprint string) *peerRecord {
	return &peerRecord{token: rand.Text(), fingerprint: fingerprint, expires: time.Now().Add(lease)}
}

func (r *peerRecord) done(receipt idemmail.Receipt) *peerRecord {
	return &peerRecord{token: r.token, fingerprint: r.fingerprint, expires: time.Now().Add(ttl), receipt: &receipt}
}

func (r *peerRecord) expired() bool { return time.Now().After(r.expires) }

// An lruStore is a store on one of golang-lru's caches, as most would build it:
// unlike a MemStore, it drops the oldest key for a new one though it is pending.
type lruStore struct {
	mu    sync.Mutex // what is read must be what is replaced
	cache interface {
		Peek(key string) (*peerRecord, bool)
		Add(key string, r *peerRecord) (evicted bool)
	}
}

// newLRUStore makes one whose cache knows no time: what has expired stays until
// it is the oldest.
func newLRUStore(t testing.TB, maxEntries int) *lruStore {
	cache, err := lru.New[string, *peerRecord](maxEntries)
	must(t, err)
	return &lruStore{cache: cache}
}

// newExpirableStore makes one whose cache drops what has expired.
func newExpirableStore(maxEntries int) *lruStore {
	return &lruStore{cache: expirable.NewLRU[string, *peerRecord](maxEntries, nil, ttl)}
}

func (s *lruStore) reserve(key, fingerprint string) (token string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if held, ok := s.cache.Peek(key); ok && !held.expired() {
		return ""
	}
	r := newReservation(fingerprint)
	s.cache.Add(key, r)
	return r.token
}

func (s *lruStore) complete(key, token string, receipt idemmail.Receipt) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	held, ok := s.cache.Peek(key)
	if !ok || held.token != token {
		return false
	}
	s.cache.Add(key, held.done(receipt))
	return true
}

// An otterStore is a store on otter. Besides pending keys, it drops new ones
// for old ones that were read.
type otterStore struct {
	cache *otter.Cache[string, *peerRecord]
}

func newOtterStore(t testing.TB, maxEntries int) *otterStore {
	cache, err := otter.New(&otter.Options[string, *peerRecord]{MaximumSize: maxEntries})
	must(t, err)
	t.Cleanup(func() { cache.StopAllGoroutines() })
	return &otterStore{cache: cache}
}

func (s *otterStore) reserve(key, fingerprint string) (token string) {
	r := newReservation(fingerprint)
	s.cache.Compute(key, func(held *peerRecord, found bool) (*peerRecord, otter.ComputeOp) {
		if found && !held.expired() {
			return nil, otter.CancelOp
		}
		token = r.token
		return r, otter.WriteOp
	})
	return token
}

func (s *otterStore) complete(key, token string, receipt idemmail.Receipt) (kept bool) {
	s.cache.Compute(key, func(held *peerRecord, found bool) (*peerRecord, otter.ComputeOp) {
		if !found || held.token != token {
			return nil, otter.CancelOp
		}
		kept = true
		return held.done(receipt), otter.WriteOp
	})
	return kept
}

// newWatermill answers a handler behind watermill's deduplicator, by SHA-256.
// It knows a message by its payload, and has neither receipts nor leases nor a
// bound.
func newWatermill(t testing.TB, handler message.HandlerFunc) message.HandlerFunc {
	tags, err := middleware.NewMapExpiringKeyRepository(ttl)
	must(t, err)
	deduplicator := middleware.Deduplicator{
		KeyFactory: middleware.NewMessageHasherSHA256(math.MaxInt64),
		Repository: tags,
		Timeout:    time.Minute,
	}
	return deduplicator.Middleware(handler)
}

// jsonFingerprint is the fingerprint that most would write first.
func jsonFingerprint(t testing.TB, m *idemmail.Message) [sha256.Size]byte {
	text, err := json.Marshal(m)
	must(t, err)
	return sha256.Sum256(text)
}
