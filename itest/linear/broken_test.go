package linear

import (
	"context"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/itest/internal/soak"
)

// A slowStore takes its time before and after each step, so that the questions
// of several clients overlap though the store itself takes no time.
type slowStore struct {
	store interface {
		idemmail.Store
		idemmail.Renewer
		idemmail.Reconciler
	}
	pause time.Duration
}

func (s slowStore) dawdle() { time.Sleep(rand.N(s.pause)) }

func (s slowStore) Reserve(ctx context.Context, key, fingerprint string, lease time.Duration) (string, *idemmail.Record, error) {
	s.dawdle()
	defer s.dawdle()
	return s.store.Reserve(ctx, key, fingerprint, lease)
}

func (s slowStore) Complete(ctx context.Context, key, token string, rec idemmail.Record, ttl time.Duration) error {
	s.dawdle()
	defer s.dawdle()
	return s.store.Complete(ctx, key, token, rec, ttl)
}

func (s slowStore) Release(ctx context.Context, key, token string) error {
	s.dawdle()
	defer s.dawdle()
	return s.store.Release(ctx, key, token)
}

func (s slowStore) Renew(ctx context.Context, key, token string, lease time.Duration) error {
	s.dawdle()
	defer s.dawdle()
	return s.store.Renew(ctx, key, token, lease)
}

func (s slowStore) recordSlowly(seed uint64) *recorder {
	return record(seed, 4*s.pause, false, 2, 80, []idemmail.Store{s, s, s, s})
}

// The check accepts a sound store, whose clients' questions overlap, and in
// time that stands still but where the test waits.
func TestSlowMemStoreIsLinearizable(t *testing.T) {
	for range soak.Scaled(20, 2000) {
		synctest.Test(t, func(t *testing.T) {
			seed := rand.Uint64()
			store := idemmail.NewMemStore(idemmail.MemStoreOptions{})
			r := slowStore{store, pause}.recordSlowly(seed)
			require.NoError(t, r.broken)
			require.NoError(t, check(slack{}, r.history), "seed %d", seed)
		})
	}
}

// The check finds each fault within a few histories.
func TestBrokenStoresAreCaught(t *testing.T) {
	for _, fault := range []string{
		"reserve reads first and writes after",
		"reserve takes over a live record",
		"reserve shows the fingerprint of the record before",
		"lease ends early",
		"lease ends late",
		"record never ends",
		"complete does nothing",
		"complete goes by no token",
		"complete reads first and writes after",
		"complete refuses a key that nothing holds",
		"complete loses the fingerprint",
		"complete keeps the lease for its TTL",
		"release does nothing",
		"release goes by no token",
		"release frees a done key",
		"renew does nothing",
		"renew revives what has ended",
		"renew goes by no token",
		"renew leaves the age",
	} {
		t.Run(fault, func(t *testing.T) {
			require.Error(t, brokenHistories(t, fault, 0, slack{}), "not caught")
			require.Error(t, brokenHistories(t, fault, pause, apart), "not caught where calls look at the clock early")
		})
	}
	t.Run("none", func(t *testing.T) {
		require.NoError(t, brokenHistories(t, "", 0, slack{}))
		require.NoError(t, brokenHistories(t, "", pause, apart))
	})
}

const pause = time.Millisecond

var apart = slack{endsApart: true, agesApart: true}

// brokenHistories checks histories of a store with the fault until one is found
// to be wrong, but 50 at most.
func brokenHistories(t *testing.T, fault string, early time.Duration, sl slack) (err error) {
	for range 50 {
		synctest.Test(t, func(t *testing.T) {
			store := &brokenStore{fault: fault, early: early, records: make(map[string]brokenRecord)}
			r := slowStore{store, pause}.recordSlowly(rand.Uint64())
			require.NoError(t, r.broken)
			err = check(sl, r.history)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// A brokenStore is a store with one fault.
type brokenStore struct {
	idemmail.Reconciler // nil: not to be asked
	fault               string
	early               time.Duration // how long at most before its step a call looks at the clock

	mu      sync.Mutex
	tokens  int
	records map[string]brokenRecord
}

type brokenRecord struct {
	idemmail.Record
	token      string
	born, ends time.Time
}

// transact changes the record of a key in one step, or in two where that is
// the fault.
func (s *brokenStore) transact(key, inTwo string, change func(now time.Time, r brokenRecord, alive bool) (brokenRecord, error)) error {
	now := time.Now()
	time.Sleep(rand.N(s.early + 1))
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.records[key]
	alive := r.token != "" && (now.Before(r.ends) || s.fault == "record never ends")
	r, err := change(now, r, alive)
	if s.fault != "" && s.fault == inTwo {
		s.mu.Unlock()
		time.Sleep(time.Millisecond)
		s.mu.Lock()
	}
	if err == nil {
		s.records[key] = r
	}
	return err
}

func (s *brokenStore) until(now time.Time, life time.Duration) time.Time {
	switch {
	case life == idemmail.NoExpiry:
		life = time.Hour
	case s.fault == "lease ends early":
		life /= 2
	case s.fault == "lease ends late":
		life *= 2
	}
	return now.Add(life)
}

func (s *brokenStore) Reserve(_ context.Context, key, fingerprint string, lease time.Duration) (token string, held *idemmail.Record, err error) {
	err = s.transact(key, "reserve reads first and writes after", func(now time.Time, r brokenRecord, alive bool) (brokenRecord, error) {
		if alive && s.fault != "reserve takes over a live record" {
			copied := r.Record
			copied.Age = max(0, now.Sub(r.born))
			held = &copied
			return r, nil
		}
		if s.fault == "reserve shows the fingerprint of the record before" && r.token != "" {
			fingerprint = r.Fingerprint
		}
		s.tokens++
		token = strconv.Itoa(s.tokens)
		return brokenRecord{idemmail.Record{State: idemmail.StatePending, Fingerprint: fingerprint}, token, now, s.until(now, lease)}, nil
	})
	return token, held, err
}

func (s *brokenStore) Complete(_ context.Context, key, token string, rec idemmail.Record, ttl time.Duration) error {
	return s.transact(key, "complete reads first and writes after", func(now time.Time, r brokenRecord, alive bool) (brokenRecord, error) {
		switch {
		case alive && r.token != token && s.fault != "complete goes by no token",
			!alive && s.fault == "complete refuses a key that nothing holds":
			return r, idemmail.ErrLeaseLost
		case s.fault == "complete does nothing":
			return r, nil
		case s.fault == "complete loses the fingerprint":
			rec.Fingerprint = ""
		}
		ends := s.until(now, ttl)
		if s.fault == "complete keeps the lease for its TTL" && alive {
			ends = r.ends
		}
		return brokenRecord{rec, token, now, ends}, nil
	})
}

func (s *brokenStore) Release(_ context.Context, key, token string) error {
	return s.transact(key, "", func(now time.Time, r brokenRecord, alive bool) (brokenRecord, error) {
		switch {
		case !alive, s.fault == "release does nothing":
			return r, nil
		case r.token != token && s.fault != "release goes by no token",
			r.State != idemmail.StatePending && s.fault != "release frees a done key":
			return r, idemmail.ErrLeaseLost
		}
		return brokenRecord{}, nil
	})
}

func (s *brokenStore) Renew(_ context.Context, key, token string, lease time.Duration) error {
	return s.transact(key, "", func(now time.Time, r brokenRecord, alive bool) (brokenRecord, error) {
		switch {
		case !alive && s.fault != "renew revives what has ended",
			r.token != token && s.fault != "renew goes by no token",
			r.State != idemmail.StatePending:
			return r, idemmail.ErrLeaseLost
		case s.fault == "renew does nothing":
			return r, nil
		}
		if s.fault != "renew leaves the age" {
			r.born = now
		}
		r.ends = s.until(now, lease)
		return r, nil
	})
}
