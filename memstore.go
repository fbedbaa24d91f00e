package idemmail

import (
	"context"
	crand "crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

const (
	defaultMaxEntries = 100_000

	// dropsPerInsert is how many expired entries make way for one new one:
	// more than one, so that what has expired dwindles, and few, so that no
	// caller pays for many others.
	dropsPerInsert = 2

	// smallMap is the number of entries up to which an empty map is kept.
	smallMap = 100

	// entriesPerLock bounds how many entries are looked at before the lock is
	// given to others, where all of them are to be seen.
	entriesPerLock = 512
)

// MemStoreOptions are the options of [NewMemStore].
type MemStoreOptions struct {
	// MaxEntries is how many keys are kept at most. 0 means 100,000; a
	// negative number means no bound but the time of the keys.
	MaxEntries int

	// Now is the store's clock; nil means time.Now. It is called while the
	// store is locked, so by one caller at a time, and must not call the
	// store. Where it goes back, keys are held for longer by as much, and ages
	// stay 0 until it has caught up; what had expired before may be gone.
	Now func() time.Time
}

// A MemStore keeps keys in memory. It deduplicates the messages of all
// transports that it is given to, but knows nothing of other processes, and
// forgets everything on a restart.
//
// It holds MaxEntries keys at most. Where a new key needs room it drops what
// has expired, and then the done key that was completed first, though it is
// still in its time: its message would be sent again. It never drops a pending
// key before its lease ends, nor a done one that was kept with [NoExpiry]
// whose receipt says unknown; where nothing else is left, Reserve and Complete
// of a new key answer [ErrStoreFull].
//
// A MemStore runs no goroutine and needs no closing: what has expired is
// dropped as new keys come, by Len, and when its key is asked for. No call
// waits for anything but other calls; each but Len and Unsettled costs O(log n)
// at most, and O(1) where durations are few. It is a [Store], a [BatchStore], a
// [Renewer] and a [Reconciler].
type MemStore struct {
	max int
	now func() time.Time // nil: the system's

	mu      sync.Mutex // guards what follows, and is held where now is called
	tokens  *rand.ChaCha8
	origin  time.Time // when the clock was first asked
	begun   bool      // it was
	entries map[string]*memEntry
	largest int       // that entries has been
	spare   *memEntry // one that was dropped, for the next key
	ends    memEnds   // of all entries that end
	done    memList   // the done entries that may be dropped for room, in order of completion
}

var (
	_ Store      = (*MemStore)(nil)
	_ BatchStore = (*MemStore)(nil)
	_ Renewer    = (*MemStore)(nil)
	_ Reconciler = (*MemStore)(nil)
)

// NewMemStore returns an empty store.
func NewMemStore(opts MemStoreOptions) *MemStore {
	s := &MemStore{
		max:  opts.MaxEntries,
		now:  opts.Now,
		done: memList{kind: byCompletion},
	}
	var seed [32]byte
	_, _ = crand.Read(seed[:])
	s.tokens = rand.NewChaCha8(seed)
	if s.max == 0 {
		s.max = defaultMaxEntries
	}
	s.reset()
	return s
}

// Len returns the number of keys that are within their time. It drops what has
// expired, a few hundred keys at a time so that others need not wait for it.
func (s *MemStore) Len() int {
	for {
		if n, swept := s.sweep(); swept {
			return n
		}
	}
}

// sweep drops some of what has expired, and reports how many entries are left
// and whether all of them are within their time.
func (s *MemStore) sweep() (n int, swept bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	swept = s.dropExpired(s.elapsed(), entriesPerLock) < entriesPerLock
	return len(s.entries), swept
}

// Reserve implements [Store].
func (s *MemStore) Reserve(ctx context.Context, key, fingerprint string, lease time.Duration) (token string, held *Record, err error) {
	if err := checkContext(ctx); err != nil {
		return "", nil, err
	}
	if err := checkLifetime("lease", lease); err != nil {
		return "", nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.elapsed()
	if e := s.find(key, now); e != nil {
		record := e.record(now)
		return "", &record, nil
	}
	if err := s.makeRoom(now); err != nil {
		return "", nil, err
	}
	e := s.newEntry(key, s.newToken(), fingerprint)
	s.file(e, now, lease)
	return e.token, nil, nil
}

// Complete implements [Store]. It refuses a record that is not done or has no
// receipt.
func (s *MemStore) Complete(ctx context.Context, key, token string, rec Record, ttl time.Duration) error {
	if err := checkContext(ctx); err != nil {
		return err
	}
	if err := checkDone(rec.State, rec.Receipt); err != nil {
		return err
	}
	if err := checkLifetime("TTL", ttl); err != nil {
		return err
	}
	receipt := packReceipt(rec.Receipt)
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.elapsed()
	e := s.find(key, now)
	switch {
	case e == nil:
		if err := s.makeRoom(now); err != nil {
			return err
		}
		e = s.newEntry(key, token, rec.Fingerprint)
	case e.token != token:
		return ErrLeaseLost
	default:
		s.unfile(e)
		e.fingerprint = rec.Fingerprint
	}
	e.receipt, e.unknown = receipt, rec.Receipt.Status == StatusUnknown
	s.file(e, now, ttl)
	return nil
}

// Release implements [Store].
func (s *MemStore) Release(ctx context.Context, key, token string) error {
	if err := checkContext(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.find(key, s.elapsed())
	switch {
	case e == nil:
		return nil
	case e.token != token || e.state() != StatePending:
		return ErrLeaseLost
	}
	s.drop(e)
	return nil
}

// Renew implements [Renewer].
func (s *MemStore) Renew(ctx context.Context, key, token string, lease time.Duration) error {
	if err := checkContext(ctx); err != nil {
		return err
	}
	if err := checkLifetime("lease", lease); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.elapsed()
	e := s.find(key, now)
	if e == nil || e.token != token || e.state() != StatePending {
		return ErrLeaseLost
	}
	s.unfile(e)
	s.file(e, now, lease)
	return nil
}

// elapsed returns the time since the clock was first asked. Durations take less
// room than times, and follow the monotonic clock where there is one; time.Since
// reads nothing else, which is half the cost of time.Now.
func (s *MemStore) elapsed() time.Duration {
	switch {
	case !s.begun:
		s.begun, s.origin = true, s.clock()
		return 0
	case s.now == nil:
		return time.Since(s.origin)
	default:
		return s.now().Sub(s.origin)
	}
}

// clock returns the time by the clock that operators know.
func (s *MemStore) clock() time.Time {
	if s.now == nil {
		return time.Now()
	}
	return s.now()
}

// find returns the entry that holds the key within its time, or nil; one whose
// time has passed is dropped.
func (s *MemStore) find(key string, now time.Duration) *memEntry {
	e := s.entries[key]
	if e != nil && e.expired(now) {
		s.drop(e)
		return nil
	}
	return e
}

// makeRoom sees to it that one more entry may be inserted.
func (s *MemStore) makeRoom(now time.Duration) error {
	s.dropExpired(now, dropsPerInsert)
	if s.max < 0 || len(s.entries) < s.max {
		return nil
	}
	if s.done.first == nil {
		return fmt.Errorf("%w: each of its %d keys is pending, or unknown and kept for ever", ErrStoreFull, len(s.entries))
	}
	s.drop(s.done.first)
	return nil
}

// dropExpired drops up to limit expired entries and returns how many it did.
func (s *MemStore) dropExpired(now time.Duration, limit int) int {
	for n := range limit {
		e := s.ends.next()
		if e == nil || !e.expired(now) {
			return n
		}
		s.drop(e)
	}
	return limit
}

// newToken returns a token that nobody can guess.
func (s *MemStore) newToken() string {
	var random [16]byte
	var text [2 * len(random)]byte
	_, _ = s.tokens.Read(random[:])
	hex.Encode(text[:], random[:])
	return string(text[:])
}

// newEntry puts an entry under a key that is free, after makeRoom. It has yet
// to be filed.
func (s *MemStore) newEntry(key, token, fingerprint string) *memEntry {
	e := s.spare
	if e == nil {
		e = new(memEntry)
	}
	s.spare = nil
	e.key, e.token, e.fingerprint = key, token, fingerprint
	s.entries[key] = e
	s.largest = max(s.largest, len(s.entries))
	return e
}

// drop frees the key of an entry. The entry must not be used any more: it may
// soon be another key's.
func (s *MemStore) drop(e *memEntry) {
	s.unfile(e)
	delete(s.entries, e.key)
	*e = memEntry{}
	s.spare = e
	if len(s.entries) == 0 && s.largest > smallMap {
		s.reset()
	}
}

// reset begins with new maps, where there are no entries: Go's never shrink.
func (s *MemStore) reset() {
	s.entries, s.largest = make(map[string]*memEntry), 0
	s.ends = memEnds{current: make(map[time.Duration]*memQueue)}
}

// file lets the lifetime of an entry begin, and puts it into the lists where
// it belongs.
func (s *MemStore) file(e *memEntry, now time.Duration, lifetime time.Duration) {
	e.since, e.lifetime = now, lifetime
	if lifetime != NoExpiry {
		s.ends.add(e)
	}
	if e.droppable() {
		s.done.push(e)
	}
}

// unfile takes an entry out of the lists again. It comes before any change to
// the entry.
func (s *MemStore) unfile(e *memEntry) {
	if e.queue != nil {
		s.ends.remove(e)
	}
	if e.droppable() {
		s.done.remove(e)
	}
}

func checkContext(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("idemmail: memory store: %w", err)
	}
	return nil
}

func checkLifetime(name string, d time.Duration) error {
	if d > 0 || d == NoExpiry {
		return nil
	}
	return fmt.Errorf("idemmail: memory store: a %s of %v: it must be positive, or NoExpiry", name, d)
}

// checkDone refuses what would be a done record that no version knows.
func checkDone(state State, r *Receipt) error {
	switch {
	case state != StateDone:
		return fmt.Errorf("idemmail: memory store: cannot complete a key with a record of state %q", state)
	case r == nil:
		return errors.New("idemmail: memory store: cannot complete a key without a receipt")
	}
	return nil
}
