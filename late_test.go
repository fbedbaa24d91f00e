package idemmail_test

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
)

// A reservation that comes when nobody waits for it any more is freed, also
// where that does not succeed at once: with AtMostOnce nothing else frees it.
func TestLateReservationIsFreed(t *testing.T) {
	for name, hook := range map[string]func(ctx context.Context, n int, next func() error) error{
		"at once": nil,
		"after failures": func(_ context.Context, n int, next func() error) error {
			if n <= 3 {
				return errFlaky
			}
			return next()
		},
		"after a call that hangs": func(ctx context.Context, n int, next func() error) error {
			if n == 1 {
				<-ctx.Done()
				return ctx.Err()
			}
			return next()
		},
		"after a call that hangs for longer than it may": func(_ context.Context, n int, next func() error) error {
			if n == 1 {
				time.Sleep(time.Minute)
			}
			return next()
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, d door) {
				store := newHookedStore()
				store.reserve = func(_ context.Context, n int, next func() (string, *idemmail.Record, error)) (string, *idemmail.Record, error) {
					token, held, err := next()
					if n == 1 {
						time.Sleep(3 * time.Second)
					}
					return token, held, err
				}
				store.release = hook
				send := d.open(t, idemmail.Options{Store: store, StoreTimeout: 2 * time.Second, AtMostOnce: true}, sendsWell)
				_, err := send(t.Context(), "k", "a")
				require.ErrorIs(t, err, idemmail.ErrStoreFailed)
				time.Sleep(3 * time.Second) // until 5.1 s: a StoreTimeout after the answer came
				require.Empty(t, store.state(t, "k"), "the key is free")
				_, err = send(t.Context(), "k", "a")
				require.NoError(t, err)
				time.Sleep(time.Minute) // let what was left behind end
			})
		})
	}
}

// What frees a late reservation ends, whatever the store does.
func TestFreeingALateReservationEnds(t *testing.T) {
	inBubble(t, func(t *testing.T, d door) {
		store := newHookedStore()
		store.reserve = func(_ context.Context, _ int, next func() (string, *idemmail.Record, error)) (string, *idemmail.Record, error) {
			token, held, err := next()
			time.Sleep(3 * time.Second)
			return token, held, err
		}
		var last atomic.Int64 // since the call began
		began := time.Now()
		store.release = func(context.Context, int, func() error) error {
			last.Store(int64(time.Since(began)))
			return errFlaky
		}
		send := d.open(t, idemmail.Options{Store: store, StoreTimeout: 2 * time.Second}, sendsWell)
		_, err := send(t.Context(), "k", "a")
		require.ErrorIs(t, err, idemmail.ErrStoreFailed)
		time.Sleep(time.Hour)
		require.Greater(t, store.calls(&store.closed), 3)
		require.Greater(t, last.Load(), int64(7*time.Second), "nobody waits for it, so there is time")
		require.Less(t, last.Load(), int64(11*time.Second), "the answer came after three, and StoreTimeout is two, four times")
	})
}

// Late reservations of a batch are freed in one call for all, and those that
// could not be freed, and they alone, in another.
func TestLateReservationsOfABatchAreFreedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 100
		store := &lateBatch{MemStore: idemmail.NewMemStore(idemmail.MemStoreOptions{})}
		transport := openTransport(t, manyBatcher{&batcher{}}, idemmail.Options{Store: store, StoreTimeout: 2 * time.Second, AtMostOnce: true})
		var batch []string
		for i := range n {
			batch = append(batch, strconv.Itoa(i)+":a")
		}
		began := time.Now()
		for _, r := range transport.SendMany(t.Context(), batchOf(batch...)) {
			require.ErrorIs(t, r.Err, idemmail.ErrStoreFailed)
		}
		require.Equal(t, 2*time.Second+100*time.Millisecond, time.Since(began))
		time.Sleep(3 * time.Second)
		require.Zero(t, store.Len(), "keys that are still held")
		require.Equal(t, []string{"many 100", "many 1"}, store.took())
	})
}

// lateBatch is a store whose ReserveMany succeeds too late, and whose first
// ReleaseMany fails for one key.
type lateBatch struct {
	*idemmail.MemStore
	mu    sync.Mutex
	freed []string
}

func (s *lateBatch) took() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.freed
}

func (s *lateBatch) ReserveMany(ctx context.Context, reqs []idemmail.ReserveRequest) []idemmail.ReserveResult {
	time.Sleep(3 * time.Second)
	return s.MemStore.ReserveMany(context.WithoutCancel(ctx), reqs)
}

func (s *lateBatch) Release(ctx context.Context, key, token string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.freed = append(s.freed, "one")
	return s.MemStore.Release(ctx, key, token)
}

func (s *lateBatch) ReleaseMany(ctx context.Context, reqs []idemmail.ReleaseRequest) []error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.freed = append(s.freed, fmt.Sprint("many ", len(reqs)))
	if len(s.freed) > 1 {
		return s.MemStore.ReleaseMany(ctx, reqs)
	}
	errs := s.MemStore.ReleaseMany(ctx, reqs[1:])
	return append([]error{errFlaky}, errs...)
}

// Where there is nothing to be freed, or nothing more, the store is asked no
// further.
func TestFreeingALateReservationAsksNoMoreThanItMust(t *testing.T) {
	for name, c := range map[string]struct {
		held  bool // the late answer is a record, not a token
		calls int
	}{
		"of a key that another holds":         {held: true, calls: 0},
		"whose lease another has since taken": {calls: 1},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, d door) {
				store := newHookedStore()
				if c.held {
					_, _, err := store.MemStore.Reserve(t.Context(), doorNamespace+":k", "", time.Hour)
					require.NoError(t, err)
				}
				store.reserve = func(_ context.Context, _ int, next func() (string, *idemmail.Record, error)) (string, *idemmail.Record, error) {
					defer time.Sleep(3 * time.Second)
					return next()
				}
				store.release = func(context.Context, int, func() error) error { return idemmail.ErrLeaseLost }
				send := d.open(t, idemmail.Options{Store: store, StoreTimeout: 2 * time.Second}, sendsWell)
				_, err := send(t.Context(), "k", "a")
				require.ErrorIs(t, err, idemmail.ErrStoreFailed)
				time.Sleep(time.Minute)
				require.Equal(t, c.calls, store.calls(&store.closed))
			})
		})
	}
}

func TestFreeingLateReservationsOfABatchAsksNoMoreThanItMust(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &batchFaults{MemStore: idemmail.NewMemStore(idemmail.MemStoreOptions{})}
		take := func(key string) {
			_, _, err := store.MemStore.Reserve(context.Background(), doorNamespace+":"+key, "", time.Hour)
			require.NoError(t, err)
		}
		transport := openTransport(t, manyBatcher{&batcher{}}, idemmail.Options{Store: store, Lease: time.Second, StoreTimeout: 2 * time.Second})
		late := func() []string {
			store.calls = nil
			for _, r := range transport.SendMany(t.Context(), batchOf("1:a", "2:b")) {
				require.ErrorIs(t, r.Err, idemmail.ErrStoreFailed)
			}
			time.Sleep(time.Minute)
			synctest.Wait()
			return store.calls
		}
		take("1")
		store.afterReserve = func() { time.Sleep(3 * time.Second); take("2") }
		require.Equal(t, []string{"reserve 2", "release 1"}, late(), "1 is another's, 2 is another's by then")
		store.afterReserve = func() { time.Sleep(3 * time.Second) }
		require.Equal(t, []string{"reserve 2"}, late(), "both are another's")
	})
}
