package idemmail

import (
	"context"
	"fmt"
	"iter"
	"strings"
	"time"
)

// Lookup implements [Reconciler].
func (s *MemStore) Lookup(ctx context.Context, key string) (*Entry, error) {
	if err := checkContext(ctx); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.elapsed()
	e := s.find(key, now)
	if e == nil {
		return nil, nil
	}
	entry := s.show(e, now)
	return &entry, nil
}

// Unsettled implements [Reconciler]. It looks at every key of the store, but
// lets other callers at it after every few hundred, and while the caller has an
// entry in hand; the caller may use the store meanwhile. An entry shows its
// key as it was when the listing came to it.
func (s *MemStore) Unsettled(ctx context.Context, prefix string, olderThan time.Duration) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		s.mu.Lock()
		defer s.mu.Unlock()
		unlocked := func(e Entry, err error) bool {
			s.mu.Unlock()
			defer s.mu.Lock() // whatever becomes of yield
			return yield(e, err)
		}
		if err := checkContext(ctx); err != nil {
			unlocked(Entry{}, err)
			return
		}
		// A map may be changed while it is ranged over, as long as this does
		// not happen while the loop moves on: hence the lock.
		looked := 0
		for _, e := range s.entries {
			now := s.elapsed()
			looked++
			switch {
			case strings.HasPrefix(e.key, prefix) && e.unsettled(now, olderThan):
				looked = 0
				if !unlocked(s.show(e, now), nil) {
					return
				}
			case looked == entriesPerLock:
				looked = 0
				s.mu.Unlock()
				s.mu.Lock()
			}
			if err := checkContext(ctx); err != nil {
				unlocked(Entry{}, err)
				return
			}
		}
	}
}

// Resolve implements [Reconciler].
func (s *MemStore) Resolve(ctx context.Context, e Entry, r *Receipt, ttl time.Duration) error {
	if err := checkContext(ctx); err != nil {
		return err
	}
	if r == nil {
		r = &Receipt{Status: StatusSent}
	}
	if r.Status != StatusSent {
		return fmt.Errorf("idemmail: MemStore: only a receipt of status sent resolves a key, not %q", r.Status)
	}
	if err := checkLifetime("TTL", ttl); err != nil {
		return err
	}
	receipt := packReceipt(r)
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.elapsed()
	held := s.unchanged(e, now)
	if held == nil {
		return ErrChanged
	}
	s.unfile(held)
	held.token = s.newToken()
	held.receipt, held.unknown = receipt, false
	s.file(held, now, ttl)
	return nil
}

// Forget implements [Reconciler].
func (s *MemStore) Forget(ctx context.Context, e Entry) error {
	if err := checkContext(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	held := s.unchanged(e, s.elapsed())
	if held == nil {
		return ErrChanged
	}
	s.drop(held)
	return nil
}

// unchanged returns what e showed, or nil where the record has moved on.
func (s *MemStore) unchanged(e Entry, now time.Duration) *memEntry {
	held := s.find(e.Key, now)
	if held == nil || held.token != e.Token || held.state() != e.Record.State {
		return nil
	}
	return held
}

// unsettled reports whether an entry waits for an operator.
func (e *memEntry) unsettled(now time.Duration, olderThan time.Duration) bool {
	if e.expired(now) {
		return false
	}
	return e.unknown || e.state() == StatePending && e.age(now) >= olderThan
}

// show returns a copy of what an entry keeps, for an operator.
func (s *MemStore) show(e *memEntry, now time.Duration) Entry {
	shown := Entry{Key: e.key, Token: e.token, Record: e.record(now)}
	if e.lifetime != NoExpiry {
		shown.ExpiresAt = s.clock().Round(0).Add(e.since - now).Add(e.lifetime)
	}
	return shown
}
