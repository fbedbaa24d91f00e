package idemmail_test

import (
	"context"
	"errors"
	"math"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
)

// renewStore is a hookedStore whose renewals can be taken, too.
type renewStore struct {
	*hookedStore
	renew  func(ctx context.Context, n int, next func() error) error
	count  int
	leases []time.Duration
}

// renewals returns how often leases were renewed, and for how long each.
func (s *renewStore) renewals() (int, []time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.count, s.leases
}

func (s *renewStore) Renew(ctx context.Context, key, token string, lease time.Duration) error {
	n, hook := count(s.hookedStore, &s.count, &s.renew)
	s.mu.Lock()
	s.leases = append(s.leases, lease)
	s.mu.Unlock()
	next := func() error { return s.MemStore.Renew(ctx, key, token, lease) }
	if hook == nil {
		return next()
	}
	return hook(ctx, n, next)
}

// C20: a send that outlasts its lease keeps it.
func TestLongSendKeepsItsLease(t *testing.T) {
	inBubble(t, func(t *testing.T, d door) {
		store, seen := &renewStore{hookedStore: newHookedStore()}, new(observed)
		var sends atomic.Int64
		send := d.open(t, seen.options(idemmail.Options{Store: store, Lease: time.Second, MaxSend: time.Hour}), func(context.Context) (*idemmail.Receipt, error) {
			sends.Add(1)
			time.Sleep(30*time.Second + time.Millisecond)
			return nil, nil
		})
		first := waiters(t.Context(), 1, send, "k", "a")
		for range 29 {
			time.Sleep(time.Second)
			_, err := send(t.Context(), "k", "a")
			require.ErrorIs(t, err, idemmail.ErrInFlight)
		}
		require.NoError(t, (<-first).err)
		require.EqualValues(t, 1, sends.Load())
		renewed, leases := store.renewals()
		require.Equal(t, 90, renewed, "every third of the lease")
		require.Equal(t, time.Second, leases[0])
		time.Sleep(time.Minute)
		later, _ := store.renewals()
		require.Equal(t, renewed, later, "renewal stops with the send")
		require.Contains(t, seen.kinds(), idemmail.EventRenewed)
	})
}

// A store that cannot renew lets a second send go once the lease has passed;
// the first one's late answer is its own, and the lost lease is told once.
func TestLongSendWithoutRenewal(t *testing.T) {
	inBubble(t, func(t *testing.T, d door) {
		seen := new(observed)
		var sends atomic.Int64
		send := d.open(t, seen.options(idemmail.Options{
			Store: struct{ idemmail.Store }{idemmail.NewMemStore(idemmail.MemStoreOptions{})},
			Lease: time.Second,
		}), func(context.Context) (*idemmail.Receipt, error) {
			if sends.Add(1) == 1 {
				time.Sleep(3 * time.Second)
				return &idemmail.Receipt{ProviderID: "first"}, nil
			}
			return &idemmail.Receipt{ProviderID: "second"}, nil
		})
		first := waiters(t.Context(), 1, send, "k", "a")
		time.Sleep(1001 * time.Millisecond)
		r, err := send(t.Context(), "k", "a")
		require.NoError(t, err)
		require.Equal(t, "second", r.ProviderID)
		a := <-first
		require.NoError(t, a.err)
		require.Equal(t, "first", a.receipt.ProviderID, "the process returns its own receipt")
		require.EqualValues(t, 2, sends.Load())
		require.Equal(t, []idemmail.EventKind{idemmail.EventSent, idemmail.EventLeaseLost, idemmail.EventSent}, seen.kinds())
		r, err = send(t.Context(), "k", "a")
		require.NoError(t, err)
		require.Equal(t, "second", r.ProviderID, "the new owner's record stands")
	})
}

// C18: a lost lease that renewal finds out ends the send's context.
func TestLostLeaseCancelsTheSend(t *testing.T) {
	inBubble(t, func(t *testing.T, d door) {
		store, seen := &renewStore{hookedStore: newHookedStore()}, new(observed)
		store.renew = func(context.Context, int, func() error) error { return idemmail.ErrLeaseLost }
		send := d.open(t, seen.options(idemmail.Options{Store: store, Lease: 3 * time.Second}), func(ctx context.Context) (*idemmail.Receipt, error) {
			<-ctx.Done()
			require.ErrorIs(t, context.Cause(ctx), idemmail.ErrLeaseLost)
			return nil, ctx.Err()
		})
		began := time.Now()
		r, err := send(t.Context(), "k", "a")
		require.Equal(t, time.Second, time.Since(began))
		require.ErrorIs(t, err, idemmail.ErrAborted)
		require.ErrorIs(t, err, idemmail.ErrLeaseLost)
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, idemmail.StatusUnknown, r.Status)
		require.Equal(t, []idemmail.EventKind{idemmail.EventLeaseLost, idemmail.EventUnknown}, seen.kinds())
		renewed, _ := store.renewals()
		require.Equal(t, 1, renewed)
	})
}

// The lost lease is told once, though the store says it twice.
func TestLostLeaseIsToldOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, d door) {
		store, seen := &renewStore{hookedStore: newHookedStore()}, new(observed)
		store.renew = func(context.Context, int, func() error) error { return idemmail.ErrLeaseLost }
		store.complete = func(context.Context, int, func() error) error { return idemmail.ErrLeaseLost }
		send := d.open(t, seen.options(idemmail.Options{Store: store, Lease: 3 * time.Second}), func(ctx context.Context) (*idemmail.Receipt, error) {
			<-ctx.Done()
			return nil, nil
		})
		_, err := send(t.Context(), "k", "a")
		require.NoError(t, err)
		require.Equal(t, []idemmail.EventKind{idemmail.EventLeaseLost, idemmail.EventSent}, seen.kinds())
	})
}

// A renewal that fails is tried again sooner, so that a short outage of the
// store costs no lease.
func TestRenewalThatFailsIsTriedAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, d door) {
		store, seen := &renewStore{hookedStore: newHookedStore()}, new(observed)
		store.renew = func(_ context.Context, n int, next func() error) error {
			if n <= 4 {
				return errFlaky
			}
			return next()
		}
		var sends atomic.Int64
		send := d.open(t, seen.options(idemmail.Options{Store: store, Lease: 12 * time.Second}), func(context.Context) (*idemmail.Receipt, error) {
			sends.Add(1)
			time.Sleep(30 * time.Second)
			return nil, nil
		})
		first := waiters(t.Context(), 1, send, "k", "a")
		time.Sleep(13 * time.Second)
		_, err := send(t.Context(), "k", "a")
		require.ErrorIs(t, err, idemmail.ErrInFlight)
		require.NoError(t, (<-first).err)
		require.EqualValues(t, 1, sends.Load())
		require.Equal(t, idemmail.EventStoreFailed, seen.kinds()[0])
		require.NotContains(t, seen.kinds(), idemmail.EventLeaseLost)
	})
}

// A renewal under way is waited for before the key is settled, and its answer
// is ignored then.
func TestRenewalUnderWayIsWaitedFor(t *testing.T) {
	inBubble(t, func(t *testing.T, d door) {
		store, seen := &renewStore{hookedStore: newHookedStore()}, new(observed)
		var renewing atomic.Bool
		store.renew = func(context.Context, int, func() error) error {
			renewing.Store(true)
			time.Sleep(2 * time.Second)
			renewing.Store(false)
			return idemmail.ErrLeaseLost
		}
		store.complete = func(_ context.Context, _ int, next func() error) error {
			require.False(t, renewing.Load())
			return next()
		}
		send := d.open(t, seen.options(idemmail.Options{Store: store, Lease: 3 * time.Second}), func(ctx context.Context) (*idemmail.Receipt, error) {
			time.Sleep(1500 * time.Millisecond)
			require.NoError(t, ctx.Err())
			return nil, nil
		})
		_, err := send(t.Context(), "k", "a")
		require.NoError(t, err)
		require.Equal(t, []idemmail.EventKind{idemmail.EventSent}, seen.kinds())
		require.Equal(t, idemmail.StateDone, store.state(t, "k"))
	})
}

// A send that does not heed its context still holds its key: the caller's end
// does not stop the renewal.
func TestRenewalGoesOnAfterTheCallerHasGone(t *testing.T) {
	inBubble(t, func(t *testing.T, d door) {
		store := &renewStore{hookedStore: newHookedStore()}
		send := d.open(t, idemmail.Options{Store: store, Lease: 3 * time.Second}, func(context.Context) (*idemmail.Receipt, error) {
			time.Sleep(20 * time.Second)
			return nil, nil
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		first := waiters(ctx, 1, send, "k", "a")
		time.Sleep(15 * time.Second)
		_, err := send(t.Context(), "k", "a")
		require.ErrorIs(t, err, idemmail.ErrInFlight)
		require.NoError(t, (<-first).err)
	})
}

func TestMaxSendEndsTheSendAndItsRenewal(t *testing.T) {
	for _, test := range []struct {
		name    string
		options idemmail.Options
		after   time.Duration // 0: never
	}{
		{"10 leases by default", idemmail.Options{Lease: 3 * time.Second}, 30 * time.Second},
		{"as set", idemmail.Options{Lease: 3 * time.Second, MaxSend: 500 * time.Millisecond}, 500 * time.Millisecond},
		{"saturates", idemmail.Options{Lease: math.MaxInt64 / 2}, 0},
		{"none with NoExpiry", idemmail.Options{Lease: idemmail.NoExpiry}, 0},
		{"as set with NoExpiry", idemmail.Options{Lease: idemmail.NoExpiry, MaxSend: time.Minute}, time.Minute},
	} {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, d door) {
				store := &renewStore{hookedStore: newHookedStore()}
				options := test.options
				options.Store = store
				send := d.open(t, options, func(ctx context.Context) (*idemmail.Receipt, error) {
					select {
					case <-ctx.Done():
						return nil, ctx.Err()
					case <-time.After(365 * 24 * time.Hour):
						return nil, nil
					}
				})
				if test.after == 0 && options.Lease > 0 {
					store.renew = func(context.Context, int, func() error) error {
						t.Error("renewed")
						return nil
					}
				}
				began := time.Now()
				_, err := send(t.Context(), "k", "a")
				if test.after == 0 {
					require.NoError(t, err)
					return
				}
				require.Equal(t, test.after, time.Since(began))
				require.ErrorIs(t, err, idemmail.ErrAborted)
				require.ErrorIs(t, err, context.DeadlineExceeded, "MaxSend is a deadline")
			})
		})
	}
}

func TestRenewalStopsAtMaxSend(t *testing.T) {
	inBubble(t, func(t *testing.T, d door) {
		store := &renewStore{hookedStore: newHookedStore()}
		send := d.open(t, idemmail.Options{Store: store, Lease: 3 * time.Second, MaxSend: 10 * time.Second}, func(context.Context) (*idemmail.Receipt, error) {
			time.Sleep(time.Minute) // heeds nothing
			return nil, nil
		})
		first := waiters(t.Context(), 1, send, "k", "a")
		time.Sleep(14 * time.Second)
		renewed, _ := store.renewals()
		require.Equal(t, 9, renewed)
		require.Empty(t, store.state(t, "k"), "the lease has ended")
		<-first
	})
}

// C20, C21, AtMostOnce.
func TestAtMostOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, d door) {
		store, seen := &renewStore{hookedStore: newHookedStore()}, new(observed)
		var outcome error
		var sends atomic.Int64
		send := d.open(t, seen.options(idemmail.Options{Store: store, AtMostOnce: true, Lease: 3 * time.Second}), func(context.Context) (*idemmail.Receipt, error) {
			sends.Add(1)
			time.Sleep(20 * time.Second)
			return nil, outcome
		})

		// Renewal restarts the record's age: a live owner is not abandoned.
		first := waiters(t.Context(), 1, send, "long", "a")
		time.Sleep(15 * time.Second)
		_, err := send(t.Context(), "long", "a")
		require.ErrorIs(t, err, idemmail.ErrInFlight)
		require.NoError(t, (<-first).err)
		_, leases := store.renewals()
		require.Equal(t, idemmail.NoExpiry, leases[0])

		// A sent key is kept for TTL.
		time.Sleep(24*time.Hour + time.Second)
		require.Empty(t, store.state(t, "long"))

		// An unknown outcome is kept for ever.
		outcome = idemmail.MayBeSent(errors.New("lost"))
		_, err = send(t.Context(), "unknown", "a")
		require.ErrorIs(t, err, idemmail.ErrDeliveryUnknown)
		time.Sleep(10 * 365 * 24 * time.Hour)
		_, err = send(t.Context(), "unknown", "a")
		require.ErrorIs(t, err, idemmail.ErrDeliveryUnknown)

		// A definite failure frees the key.
		outcome = errRefused
		_, err = send(t.Context(), "failed", "a")
		require.ErrorIs(t, err, errRefused)
		require.Empty(t, store.state(t, "failed"))

		// An abandoned one is never sent, and listed.
		_, _, err = store.MemStore.Reserve(t.Context(), doorNamespace+":dead", "", idemmail.NoExpiry)
		require.NoError(t, err)
		time.Sleep(3 * time.Second)
		_, err = send(t.Context(), "dead", "a")
		require.ErrorIs(t, err, idemmail.ErrInFlight, "as old as its lease")
		time.Sleep(time.Millisecond)
		before := sends.Load()
		for range 2 {
			r, err := send(t.Context(), "dead", "a")
			require.ErrorIs(t, err, idemmail.ErrAbandoned)
			require.ErrorIs(t, err, idemmail.ErrDeliveryUnknown)
			require.Equal(t, idemmail.StatusUnknown, r.Status)
			require.Equal(t, idemmail.CodeAbandoned, r.Code)
			require.False(t, r.Retryable)
			time.Sleep(1000 * time.Hour)
		}
		require.Equal(t, before, sends.Load())
		require.Equal(t, idemmail.EventUnknown, seen.kinds()[len(seen.kinds())-1])
	})
}

// C22: a done record lives for TTL, not for the lease; a scheduled one until
// SendAt plus TTL (C6).
func TestTimeThatAReceiptIsKept(t *testing.T) {
	now := time.Now()
	for _, test := range []struct {
		name       string
		ttl        time.Duration
		sendAt     time.Duration
		atMostOnce bool
		err        error
		want       time.Duration
	}{
		{name: "24 hours by default", want: 24 * time.Hour},
		{name: "TTL", ttl: time.Hour, want: time.Hour},
		{name: "NoExpiry", ttl: idemmail.NoExpiry, want: idemmail.NoExpiry},
		{name: "unknown: TTL", ttl: time.Hour, err: idemmail.MayBeSent(errors.New("lost")), want: time.Hour},
		{name: "unknown under AtMostOnce: NoExpiry", ttl: time.Hour, atMostOnce: true, err: idemmail.MayBeSent(errors.New("lost")), want: idemmail.NoExpiry},
		{name: "sent under AtMostOnce: TTL", ttl: time.Hour, atMostOnce: true, want: time.Hour},
		{name: "scheduled: SendAt plus TTL", ttl: 24 * time.Hour, sendAt: 72 * time.Hour, want: 96 * time.Hour},
		{name: "scheduled and unknown: SendAt plus TTL", ttl: 24 * time.Hour, sendAt: 72 * time.Hour, err: idemmail.MayBeSent(errors.New("lost")), want: 96 * time.Hour},
		{name: "scheduled in the past: TTL", ttl: time.Hour, sendAt: -72 * time.Hour, want: time.Hour},
		{name: "scheduled, NoExpiry", ttl: idemmail.NoExpiry, sendAt: 72 * time.Hour, want: idemmail.NoExpiry},
		{name: "scheduled in the farthest future", ttl: math.MaxInt64 - 5, sendAt: math.MaxInt64, want: math.MaxInt64},
	} {
		t.Run(test.name, func(t *testing.T) {
			store := &ttlStore{MemStore: idemmail.NewMemStore(idemmail.MemStoreOptions{})}
			transport := openTransport(t, idemmail.TransportFunc(func(context.Context, *idemmail.Message) (*idemmail.Receipt, error) {
				return nil, test.err
			}), idemmail.Options{Store: store, TTL: test.ttl, AtMostOnce: test.atMostOnce})
			m := &idemmail.Message{IdempotencyKey: "k"}
			if test.sendAt != 0 {
				m.SendAt = now.Add(test.sendAt)
			}
			_, err := transport.Send(t.Context(), m)
			require.ErrorIs(t, err, test.err)
			require.InDelta(t, test.want, store.ttl, float64(10*time.Minute))
		})
	}
}

type ttlStore struct {
	*idemmail.MemStore
	ttl time.Duration
}

func (s *ttlStore) Complete(ctx context.Context, key, token string, rec idemmail.Record, ttl time.Duration) error {
	s.ttl = ttl
	return s.MemStore.Complete(ctx, key, token, rec, ttl)
}

// A lease begins when it is asked for, at the earliest: where the store takes
// long to answer, the first renewal comes the sooner.
func TestFirstRenewalAfterASlowReserve(t *testing.T) {
	inBubble(t, func(t *testing.T, d door) {
		store, seen := newHookedStore(), new(observed)
		store.reserve = func(_ context.Context, _ int, next func() (string, *idemmail.Record, error)) (string, *idemmail.Record, error) {
			defer time.Sleep(2 * time.Second)
			return next()
		}
		send := d.open(t, seen.options(idemmail.Options{Store: store, Lease: 3 * time.Second}), func(ctx context.Context) (*idemmail.Receipt, error) {
			time.Sleep(10 * time.Second)
			require.Equal(t, idemmail.StatePending, store.state(t, "k"), "the key is held")
			return nil, ctx.Err()
		})
		_, err := send(t.Context(), "k", "a")
		require.NoError(t, err)
		require.NotContains(t, seen.kinds(), idemmail.EventLeaseLost)
	})
}

// An answer that took as long as the lease says nothing about it: the store is
// asked whether it still holds.
func TestReservationThatMayBeOver(t *testing.T) {
	answersSlowly := func(_ context.Context, _ int, next func() (string, *idemmail.Record, error)) (string, *idemmail.Record, error) {
		time.Sleep(2 * time.Second) // to connect
		return next()
	}
	t.Run("renewed and sent", func(t *testing.T) {
		inBubble(t, func(t *testing.T, d door) {
			store, seen := &renewStore{hookedStore: newHookedStore()}, new(observed)
			store.reserve = answersSlowly
			send := d.open(t, seen.options(idemmail.Options{Store: store, Lease: 2 * time.Second}), sendsWell)
			_, err := send(t.Context(), "k", "a")
			require.NoError(t, err)
			renewed, leases := store.renewals()
			require.Equal(t, 1, renewed)
			require.Equal(t, 2*time.Second, leases[0])
			require.Equal(t, []idemmail.EventKind{idemmail.EventSent}, seen.kinds())
		})
	})
	t.Run("in time by a moment", func(t *testing.T) {
		inBubble(t, func(t *testing.T, d door) {
			store := &renewStore{hookedStore: newHookedStore()}
			store.reserve = answersSlowly
			_, err := d.open(t, idemmail.Options{Store: store, Lease: 2*time.Second + 1}, sendsWell)(t.Context(), "k", "a")
			require.NoError(t, err)
			renewed, _ := store.renewals()
			require.Zero(t, renewed)
		})
	})
	t.Run("renewed as slowly", func(t *testing.T) {
		inBubble(t, func(t *testing.T, d door) {
			store, seen := &renewStore{hookedStore: newHookedStore()}, new(observed)
			store.reserve = answersSlowly
			store.renew = func(_ context.Context, _ int, next func() error) error {
				defer time.Sleep(2 * time.Second)
				return next()
			}
			_, err := d.open(t, seen.options(idemmail.Options{Store: store, Lease: 2 * time.Second}), sendsWell)(t.Context(), "k", "a")
			require.ErrorIs(t, err, idemmail.ErrStoreFailed)
			require.Empty(t, store.state(t, "k"))
			const took = 4 * time.Second
			require.Equal(t, []spent{{idemmail.EventStoreFailed, took, took}, {idemmail.EventFailed, took, took}}, seen.spent("k"))
		})
	})
	t.Run("cannot be renewed", func(t *testing.T) {
		inBubble(t, func(t *testing.T, d door) {
			store := newHookedStore()
			store.reserve = answersSlowly
			send := d.open(t, idemmail.Options{Store: struct{ idemmail.Store }{store}, Lease: 2 * time.Second}, sendsWell)
			_, err := send(t.Context(), "k", "a")
			require.ErrorIs(t, err, idemmail.ErrStoreFailed)
			require.Empty(t, store.state(t, "k"))
		})
	})
	t.Run("never ends", func(t *testing.T) {
		inBubble(t, func(t *testing.T, d door) {
			store := &renewStore{hookedStore: newHookedStore()}
			store.reserve = answersSlowly
			_, err := d.open(t, idemmail.Options{Store: store, Lease: idemmail.NoExpiry}, sendsWell)(t.Context(), "k", "a")
			require.NoError(t, err)
			renewed, _ := store.renewals()
			require.Zero(t, renewed)
		})
	})
}
