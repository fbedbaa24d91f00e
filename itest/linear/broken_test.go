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
	return record(seed, 4*s.pause, 2, 80, []idemmail.Store{s, s, s, s})
}

// The check accepts a sound store, whose clients' questions overlap, and in
// time that stands still but where the test waits.
func TestSlowMemStoreIsLinearizable(t *testing.T) {
	for range soak.Scaled(20, 2000) {
		synctest.Test(t, func(t *testing.T) {
			seed := rand.Uint64()
			store := idemmail.NewMemStore(idemmail.MemStoreOptions{})
			r := slowStore{store, time.Millisecond}.recordSlowly(seed)
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
			var err error
			for range 50 {
				synctest.Test(t, func(t *testing.T) {
					r := slowStore{&brokenStore{fault: fault, records: make(map[string]brokenRecord)}, time.Millisecond}.recordSlowly(rand.Uint64())
					require.NoError(t, r.broken)
					err = check(slack{}, r.history)
				})
				if err != nil {
					return
				}
			}
			t.Error("not caught")
		})
	}
	t.Run("none", func(t *testing.T) {
		for range 50 {
			synctest.Test(t, func(t *testing.T) {
				r := slowStore{&brokenStore{records: make(map[string]brokenRecord)}, time.Millisecond}.recordSlowly(rand.Uint64())
				require.NoError(t, r.broken)
				require.NoError(t, check(slack{}, r.history))
			})
		}
	})
}

// A brokenStore is a store with one fault.
type brokenStore struct {
	idemmail.Reconciler // nil: not to be asked
	fault               string

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
func (s *brokenStore) transact(key, inTwo string, change func(r brokenRecord, alive bool) (brokenRecord, error)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.records[key]
	alive := r.token != "" && (time.Now().Before(r.ends) || s.fault == "record never ends")
	r, err := change(r, alive)
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

func (s *brokenStore) until(life time.Duration) time.Time {
	switch {
	case life == idemmail.NoExpiry:
		life = time.Hour
	case s.fault == "lease ends early":
		life /= 2
	case s.fault == "lease ends late":
		life *= 2
	}
	return time.Now().Add(life)
}

func (s *brokenStore) Reserve(_ context.Context, key, fingerprint string, lease time.Duration) (token string, held *idemmail.Record, err error) {
	err = s.transact(key, "reserve reads first and writes after", func(r brokenRecord, alive bool) (brokenRecord, error) {
		if alive && s.fault != "reserve takes over a live record" {
			copied := r.Record
			copied.Age = time.Since(r.born)
			held = &copied
			return r, nil
		}
		if s.fault == "reserve shows the fingerprint of the record before" && r.token != "" {
			fingerprint = r.Fingerprint
		}
		s.tokens++
		token = strconv.Itoa(s.tokens)
		return brokenRecord{idemmail.Record{State: idemmail.StatePending, Fingerprint: fingerprint}, token, time.Now(), s.until(lease)}, nil
	})
	return token, held, err
}

func (s *brokenStore) Complete(_ context.Context, key, token string, rec idemmail.Record, ttl time.Duration) error {
	return s.transact(key, "complete reads first and writes after", func(r brokenRecord, alive bool) (brokenRecord, error) {
		switch {
		case alive && r.token != token && s.fault != "complete goes by no token",
			!alive && s.fault == "complete refuses a key that nothing holds":
			return r, idemmail.ErrLeaseLost
		case s.fault == "complete does nothing":
			return r, nil
		case s.fault == "complete loses the fingerprint":
			rec.Fingerprint = ""
		}
		ends := s.until(ttl)
		if s.fault == "complete keeps the lease for its TTL" && alive {
			ends = r.ends
		}
		return brokenRecord{rec, token, time.Now(), ends}, nil
	})
}

func (s *brokenStore) Release(_ context.Context, key, token string) error {
	return s.transact(key, "", func(r brokenRecord, alive bool) (brokenRecord, error) {
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
	return s.transact(key, "", func(r brokenRecord, alive bool) (brokenRecord, error) {
		switch {
		case !alive && s.fault != "renew revives what has ended",
			r.token != token && s.fault != "renew goes by no token",
			r.State != idemmail.StatePending:
			return r, idemmail.ErrLeaseLost
		case s.fault == "renew does nothing":
			return r, nil
		}
		if s.fault != "renew leaves the age" {
			r.born = time.Now()
		}
		r.ends = s.until(lease)
		return r, nil
	})
}
