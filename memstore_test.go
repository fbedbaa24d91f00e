package idemmail_test

import (
	"context"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
)

// A memClock is a MemStore's clock that goes only when it is told to.
type memClock struct {
	mu  sync.Mutex
	now time.Time
}

func newMemClock() *memClock {
	return &memClock{now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)}
}

func (c *memClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *memClock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// newMemStore returns a store for that many keys, with its clock.
func newMemStore(maxEntries int) (*idemmail.MemStore, *memClock) {
	clock := newMemClock()
	return idemmail.NewMemStore(idemmail.MemStoreOptions{MaxEntries: maxEntries, Now: clock.Now}), clock
}

func memDone(fingerprint string, status idemmail.Status) idemmail.Record {
	return idemmail.Record{
		State:       idemmail.StateDone,
		Fingerprint: fingerprint,
		Receipt:     &idemmail.Receipt{Status: status},
	}
}

// mustReserve takes a key that is free.
func mustReserve(t testing.TB, s *idemmail.MemStore, key, fingerprint string, lease time.Duration) (token string) {
	t.Helper()
	token, held, err := s.Reserve(t.Context(), key, fingerprint, lease)
	require.NoError(t, err)
	require.Nil(t, held, "%s is held", key)
	require.NotEmpty(t, token)
	return token
}

// mustSettle takes a key that is free and completes it.
func mustSettle(t testing.TB, s *idemmail.MemStore, key string, status idemmail.Status, ttl time.Duration) (token string) {
	t.Helper()
	token = mustReserve(t, s, key, "fp", time.Minute)
	require.NoError(t, s.Complete(t.Context(), key, token, memDone("fp", status), ttl))
	return token
}

// lookup returns what holds a key, or nil.
func lookup(t testing.TB, s *idemmail.MemStore, key string) *idemmail.Entry {
	t.Helper()
	e, err := s.Lookup(t.Context(), key)
	require.NoError(t, err)
	return e
}

func TestMemStoreReserveTakesAFreeKey(t *testing.T) {
	s, clock := newMemStore(0)
	token := mustReserve(t, s, "ns:a", "1:aa", time.Minute)

	clock.Advance(3 * time.Second)
	again, held, err := s.Reserve(t.Context(), "ns:a", "1:bb", time.Hour)
	require.NoError(t, err)
	require.Empty(t, again)
	require.Equal(t, &idemmail.Record{
		State:       idemmail.StatePending,
		Fingerprint: "1:aa",
		Age:         3 * time.Second,
	}, held)
	require.Equal(t, token, lookup(t, s, "ns:a").Token)
	require.NotEqual(t, token, mustReserve(t, s, "ns:A", "1:aa", time.Minute), "tokens are new, keys are not folded")
}

func TestMemStoreReserveAnswersTheReceipt(t *testing.T) {
	s, clock := newMemStore(0)
	token := mustReserve(t, s, "k", "1:aa", time.Minute)
	receipt := &idemmail.Receipt{
		Status:    idemmail.StatusSent,
		MessageID: "m@example.org",
		Accepted:  []string{},
		Rejected:  []idemmail.Rejection{{Address: "b@example.org", Reason: "no such user", Code: 550}},
		At:        clock.Now(),
		Replayed:  true,
	}
	clock.Advance(time.Second)
	require.NoError(t, s.Complete(t.Context(), "k", token, idemmail.Record{
		State: idemmail.StateDone, Fingerprint: "1:aa", Receipt: receipt, Age: time.Hour,
	}, time.Hour))

	clock.Advance(2 * time.Second)
	_, held, err := s.Reserve(t.Context(), "k", "1:bb", time.Minute)
	require.NoError(t, err)
	want := *receipt
	want.Replayed = false
	require.Equal(t, &idemmail.Record{
		State: idemmail.StateDone, Fingerprint: "1:aa", Receipt: &want, Age: 2 * time.Second,
	}, held)
}

func TestMemStoreExpiredRecordIsAsIfNotThere(t *testing.T) {
	const ttl = time.Minute
	for _, test := range []struct {
		name   string
		settle func(t *testing.T, s *idemmail.MemStore) (token string)
	}{
		{"pending", func(t *testing.T, s *idemmail.MemStore) string {
			return mustReserve(t, s, "k", "old", ttl)
		}},
		{"done", func(t *testing.T, s *idemmail.MemStore) string {
			return mustSettle(t, s, "k", idemmail.StatusUnknown, ttl)
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s, clock := newMemStore(0)
			token := test.settle(t, s)
			clock.Advance(ttl - 1)
			old := lookup(t, s, "k")
			require.Equal(t, token, old.Token, "one nanosecond before its end it holds the key")

			clock.Advance(1)
			require.Nil(t, lookup(t, s, "k"))
			require.ErrorIs(t, s.Renew(t.Context(), "k", token, ttl), idemmail.ErrLeaseLost)
			require.ErrorIs(t, s.Forget(t.Context(), *old), idemmail.ErrChanged)
			require.ErrorIs(t, s.Resolve(t.Context(), *old, nil, ttl), idemmail.ErrChanged)
			require.NoError(t, s.Release(t.Context(), "k", token))
			for range s.Unsettled(t.Context(), "", 0) {
				t.Fatal("an expired key is listed")
			}
		})
		t.Run(test.name+", taken over", func(t *testing.T) {
			s, clock := newMemStore(0)
			token := test.settle(t, s)
			clock.Advance(ttl)
			fresh := mustReserve(t, s, "k", "new", time.Hour)
			require.NotEqual(t, token, fresh)
			want := &idemmail.Entry{
				Key: "k", Token: fresh,
				Record:    idemmail.Record{State: idemmail.StatePending, Fingerprint: "new"},
				ExpiresAt: clock.Now().Add(time.Hour),
			}
			require.Equal(t, want, lookup(t, s, "k"), "nothing is left of the old record")

			require.ErrorIs(t, s.Complete(t.Context(), "k", token, memDone("old", idemmail.StatusSent), ttl), idemmail.ErrLeaseLost)
			require.ErrorIs(t, s.Release(t.Context(), "k", token), idemmail.ErrLeaseLost)
			require.ErrorIs(t, s.Renew(t.Context(), "k", token, ttl), idemmail.ErrLeaseLost)
			require.Equal(t, want, lookup(t, s, "k"), "the old token changed nothing")
		})
	}
}

func TestMemStoreComplete(t *testing.T) {
	t.Run("twice under its token", func(t *testing.T) {
		s, clock := newMemStore(0)
		token := mustSettle(t, s, "k", idemmail.StatusUnknown, time.Minute)
		clock.Advance(time.Second)
		require.NoError(t, s.Complete(t.Context(), "k", token, memDone("fp", idemmail.StatusSent), time.Hour))
		require.Equal(t, &idemmail.Entry{
			Key: "k", Token: token, Record: memDone("fp", idemmail.StatusSent), ExpiresAt: clock.Now().Add(time.Hour),
		}, lookup(t, s, "k"))
	})
	t.Run("done under another token", func(t *testing.T) {
		s, _ := newMemStore(0)
		mustSettle(t, s, "k", idemmail.StatusSent, time.Minute)
		before := lookup(t, s, "k")
		require.ErrorIs(t, s.Complete(t.Context(), "k", "other", memDone("x", idemmail.StatusUnknown), time.Hour), idemmail.ErrLeaseLost)
		require.Equal(t, before, lookup(t, s, "k"))
	})
	t.Run("of a key that nothing holds", func(t *testing.T) {
		s, clock := newMemStore(0)
		require.NoError(t, s.Complete(t.Context(), "k", "mine", memDone("fp", idemmail.StatusSent), time.Hour))
		require.Equal(t, &idemmail.Entry{
			Key: "k", Token: "mine", Record: memDone("fp", idemmail.StatusSent), ExpiresAt: clock.Now().Add(time.Hour),
		}, lookup(t, s, "k"))
	})
	t.Run("of a key whose lease has passed", func(t *testing.T) {
		s, clock := newMemStore(0)
		token := mustReserve(t, s, "k", "fp", time.Second)
		clock.Advance(time.Second)
		require.NoError(t, s.Complete(t.Context(), "k", token, memDone("fp", idemmail.StatusSent), time.Hour))
		require.Equal(t, token, lookup(t, s, "k").Token)
	})
	t.Run("with what is not done", func(t *testing.T) {
		s, _ := newMemStore(0)
		token := mustReserve(t, s, "k", "fp", time.Minute)
		before := lookup(t, s, "k")
		for _, rec := range []idemmail.Record{
			{},
			{State: idemmail.StateDone, Fingerprint: "fp"},
			{State: idemmail.StatePending, Receipt: &idemmail.Receipt{Detail: "to a@example.org"}},
			{State: "later", Receipt: &idemmail.Receipt{Detail: "to a@example.org"}},
		} {
			err := s.Complete(t.Context(), "k", token, rec, time.Hour)
			require.ErrorContains(t, err, "cannot complete a key")
			require.NotContains(t, err.Error(), "example.org", "store errors are logged, receipts are not")
			require.Error(t, s.Complete(t.Context(), "free", token, rec, time.Hour))
		}
		require.Equal(t, before, lookup(t, s, "k"))
		require.Equal(t, 1, s.Len())
	})
}

func TestMemStoreRelease(t *testing.T) {
	s, _ := newMemStore(0)
	token := mustReserve(t, s, "k", "fp", idemmail.NoExpiry)
	require.ErrorIs(t, s.Release(t.Context(), "k", "other"), idemmail.ErrLeaseLost)
	require.ErrorIs(t, s.Release(t.Context(), "k", ""), idemmail.ErrLeaseLost)
	require.Equal(t, token, lookup(t, s, "k").Token)

	require.NoError(t, s.Release(t.Context(), "k", token))
	require.Zero(t, s.Len())
	require.NoError(t, s.Release(t.Context(), "k", token), "a key that nothing holds")

	token = mustSettle(t, s, "k", idemmail.StatusSent, time.Hour)
	require.ErrorIs(t, s.Release(t.Context(), "k", token), idemmail.ErrLeaseLost, "a done key")
	require.Equal(t, idemmail.StateDone, lookup(t, s, "k").Record.State)
}

func TestMemStoreRenew(t *testing.T) {
	s, clock := newMemStore(0)
	token := mustReserve(t, s, "k", "fp", time.Minute)
	clock.Advance(50 * time.Second)
	require.ErrorIs(t, s.Renew(t.Context(), "k", "other", time.Minute), idemmail.ErrLeaseLost)
	require.Equal(t, 50*time.Second, lookup(t, s, "k").Record.Age)

	require.NoError(t, s.Renew(t.Context(), "k", token, 2*time.Minute))
	e := lookup(t, s, "k")
	require.Zero(t, e.Record.Age, "a renewed lease begins anew")
	require.Equal(t, clock.Now().Add(2*time.Minute), e.ExpiresAt)

	clock.Advance(2*time.Minute - 1)
	require.NoError(t, s.Renew(t.Context(), "k", token, idemmail.NoExpiry))
	require.Zero(t, lookup(t, s, "k").ExpiresAt)
	require.NoError(t, s.Renew(t.Context(), "k", token, time.Second))

	require.NoError(t, s.Complete(t.Context(), "k", token, memDone("fp", idemmail.StatusSent), time.Hour))
	require.ErrorIs(t, s.Renew(t.Context(), "k", token, time.Minute), idemmail.ErrLeaseLost, "a done key")
	require.Equal(t, clock.Now().Add(time.Hour), lookup(t, s, "k").ExpiresAt)
	require.ErrorIs(t, s.Renew(t.Context(), "gone", token, time.Minute), idemmail.ErrLeaseLost)
}

func TestMemStoreRefusesDurations(t *testing.T) {
	s, clock := newMemStore(0)
	token := mustReserve(t, s, "held", "fp", time.Hour)
	before := lookup(t, s, "held")
	for _, d := range []time.Duration{0, -2, -time.Second, math.MinInt64} {
		_, _, err := s.Reserve(t.Context(), "free", "fp", d)
		require.ErrorContains(t, err, "must be positive, or NoExpiry")
		_, held, err := s.Reserve(t.Context(), "held", "fp", d)
		require.Error(t, err)
		require.Nil(t, held)
		require.Error(t, s.Complete(t.Context(), "free", "t", memDone("fp", idemmail.StatusSent), d))
		require.Error(t, s.Complete(t.Context(), "held", token, memDone("fp", idemmail.StatusSent), d))
		require.Error(t, s.Renew(t.Context(), "held", token, d))
		require.Error(t, s.Resolve(t.Context(), *before, &idemmail.Receipt{Status: idemmail.StatusSent}, d))
	}
	require.Equal(t, before, lookup(t, s, "held"))
	require.Equal(t, 1, s.Len())
	clock.Advance(1)
	require.Equal(t, time.Duration(1), lookup(t, s, "held").Record.Age)
}

func TestMemStoreLongDurations(t *testing.T) {
	s, clock := newMemStore(0)
	mustReserve(t, s, "never", "fp", idemmail.NoExpiry)
	mustReserve(t, s, "longest", "fp", math.MaxInt64)
	mustSettle(t, s, "done, longest", idemmail.StatusSent, math.MaxInt64)
	mustReserve(t, s, "shortest", "fp", 1)
	require.Equal(t, clock.Now().Add(math.MaxInt64), lookup(t, s, "longest").ExpiresAt)
	require.Zero(t, lookup(t, s, "never").ExpiresAt)

	clock.Advance(math.MaxInt64 - 1)
	require.NotNil(t, lookup(t, s, "longest"))
	require.Equal(t, 3, s.Len())
	clock.Advance(1)
	require.Equal(t, 1, s.Len())

	clock.Advance(math.MaxInt64)
	require.Equal(t, time.Duration(math.MaxInt64), lookup(t, s, "never").Record.Age, "an age stops there")
	mustReserve(t, s, "longest", "fp", math.MaxInt64)
	require.NotNil(t, lookup(t, s, "longest"))
}

func TestMemStoreAgeDoesNotOverflow(t *testing.T) {
	const centuries = math.MaxInt64 / 3 * 2
	s, clock := newMemStore(0)
	mustReserve(t, s, "now", "fp", time.Hour)
	clock.Advance(-centuries)
	mustReserve(t, s, "before", "fp", idemmail.NoExpiry)
	mustReserve(t, s, "before, longest", "fp", math.MaxInt64)
	clock.Advance(centuries)
	clock.Advance(centuries)
	require.Equal(t, time.Duration(math.MaxInt64), lookup(t, s, "before").Record.Age)
	require.Equal(t, 1, s.Len())
}

func TestMemStoreEndedContext(t *testing.T) {
	s, _ := newMemStore(0)
	token := mustReserve(t, s, "k", "fp", time.Hour)
	before := lookup(t, s, "k")

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	done := memDone("fp", idemmail.StatusSent)
	_, _, err := s.Reserve(ctx, "free", "fp", time.Hour)
	require.ErrorIs(t, err, context.Canceled)
	_, held, err := s.Reserve(ctx, "k", "fp", time.Hour)
	require.ErrorIs(t, err, context.Canceled)
	require.Nil(t, held)
	require.ErrorIs(t, s.Complete(ctx, "k", token, done, time.Hour), context.Canceled)
	require.ErrorIs(t, s.Release(ctx, "k", token), context.Canceled)
	require.ErrorIs(t, s.Renew(ctx, "k", token, time.Minute), context.Canceled)
	_, err = s.Lookup(ctx, "k")
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, s.Resolve(ctx, *before, done.Receipt, time.Hour), context.Canceled)
	require.ErrorIs(t, s.Forget(ctx, *before), context.Canceled)
	require.ErrorIs(t, s.ReserveMany(ctx, []idemmail.ReserveRequest{{Key: "free", Lease: time.Hour}})[0].Err, context.Canceled)
	require.ErrorIs(t, s.CompleteMany(ctx, []idemmail.CompleteRequest{{Key: "k", Token: token, Record: done, TTL: time.Hour}})[0], context.Canceled)
	require.ErrorIs(t, s.ReleaseMany(ctx, []idemmail.ReleaseRequest{{Key: "k", Token: token}})[0], context.Canceled)
	require.ErrorIs(t, s.RenewMany(ctx, []idemmail.RenewRequest{{Key: "k", Token: token, Lease: time.Minute}})[0], context.Canceled)
	n := 0
	for e, err := range s.Unsettled(ctx, "", 0) {
		n++
		require.Zero(t, e)
		require.ErrorIs(t, err, context.Canceled)
	}
	require.Equal(t, 1, n)

	require.Equal(t, before, lookup(t, s, "k"), "nothing was done")
	require.Equal(t, 1, s.Len())
}

func TestMemStoreBatches(t *testing.T) {
	s, clock := newMemStore(0)
	mustSettle(t, s, "held", idemmail.StatusSent, time.Hour)

	reserved := s.ReserveMany(t.Context(), []idemmail.ReserveRequest{
		{Key: "a", Fingerprint: "fa", Lease: time.Minute},
		{Key: "held", Fingerprint: "x", Lease: time.Minute},
		{Key: "refused", Fingerprint: "x"},
		{Key: "b", Fingerprint: "fb", Lease: time.Minute},
	})
	require.Len(t, reserved, 4)
	require.Equal(t, idemmail.ReserveResult{Token: lookup(t, s, "a").Token}, reserved[0])
	held := memDone("fp", idemmail.StatusSent)
	require.Equal(t, idemmail.ReserveResult{Held: &held}, reserved[1])
	require.Error(t, reserved[2].Err)
	require.Equal(t, idemmail.ReserveResult{Token: lookup(t, s, "b").Token}, reserved[3])

	clock.Advance(time.Second)
	errs := s.RenewMany(t.Context(), []idemmail.RenewRequest{
		{Key: "a", Token: reserved[0].Token, Lease: time.Minute},
		{Key: "b", Token: "other", Lease: time.Minute},
	})
	require.Len(t, errs, 2)
	require.NoError(t, errs[0])
	require.ErrorIs(t, errs[1], idemmail.ErrLeaseLost)

	errs = s.CompleteMany(t.Context(), []idemmail.CompleteRequest{
		{Key: "b", Token: "other", Record: memDone("fb", idemmail.StatusSent), TTL: time.Hour},
		{Key: "a", Token: reserved[0].Token, Record: memDone("fa", idemmail.StatusSent), TTL: time.Hour},
	})
	require.Len(t, errs, 2)
	require.ErrorIs(t, errs[0], idemmail.ErrLeaseLost)
	require.NoError(t, errs[1])

	errs = s.ReleaseMany(t.Context(), []idemmail.ReleaseRequest{
		{Key: "a", Token: reserved[0].Token},
		{Key: "b", Token: reserved[3].Token},
	})
	require.Len(t, errs, 2)
	require.ErrorIs(t, errs[0], idemmail.ErrLeaseLost)
	require.NoError(t, errs[1])
	require.Equal(t, 2, s.Len())

	require.Empty(t, s.ReserveMany(t.Context(), nil))
	twice := s.ReserveMany(t.Context(), []idemmail.ReserveRequest{
		{Key: "c", Fingerprint: "1", Lease: time.Minute},
		{Key: "c", Fingerprint: "2", Lease: time.Minute},
	})
	require.NotEmpty(t, twice[0].Token)
	require.Equal(t, "1", twice[1].Held.Fingerprint)
}
