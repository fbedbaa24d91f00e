package idemmail_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
)

// Each waiter has a receipt of its own: what one does with it no other sees.
func TestWaitersHaveReceiptsOfTheirOwn(t *testing.T) {
	inBubble(t, func(t *testing.T, d door) {
		send := d.open(t, idemmail.Options{WaitInFlight: time.Hour}, func(context.Context) (*idemmail.Receipt, error) {
			time.Sleep(time.Second)
			return &idemmail.Receipt{ProviderID: "first", Accepted: []string{"a@example.org"}}, nil
		})
		first := waiters(t.Context(), 1, send, "k", "a")
		synctest.Wait()
		var good atomic.Int64
		spoils := func(ctx context.Context, key, about string) (*idemmail.Receipt, error) {
			r, err := send(ctx, key, about)
			if r.ProviderID == "first" && r.Accepted[0] == "a@example.org" {
				good.Add(1)
			}
			spoil(r)
			return r, err
		}
		others := waiters(t.Context(), 20, spoils, "k", "a")
		require.NoError(t, (<-first).err)
		for range 20 {
			<-others
		}
		require.EqualValues(t, 20, good.Load())
	})
}

// A waiter whose patience is at its end does not wait for another of its line,
// whose question to the store hangs.
func TestWaitEndsWhileTheStoreHangs(t *testing.T) {
	inBubble(t, func(t *testing.T, d door) {
		store := newHookedStore()
		_, _, err := store.MemStore.Reserve(t.Context(), doorNamespace+":k", "", idemmail.NoExpiry)
		require.NoError(t, err)
		send := d.open(t, idemmail.Options{Store: store, WaitInFlight: 3 * time.Second, StoreTimeout: time.Minute}, sendsWell)
		asks := waiters(t.Context(), 1, send, "k", "a")
		synctest.Wait()
		waits := waiters(t.Context(), 1, send, "k", "a")
		synctest.Wait()
		store.mu.Lock()
		store.reserve = func(ctx context.Context, _ int, _ func() (string, *idemmail.Record, error)) (string, *idemmail.Record, error) {
			<-ctx.Done()
			return "", nil, ctx.Err()
		}
		store.mu.Unlock()
		for _, answers := range []<-chan waitAnswer{waits, asks} {
			a := <-answers
			require.ErrorIs(t, a.err, idemmail.ErrInFlight)
			if answers == waits {
				require.Equal(t, 3*time.Second, a.after)
			}
		}
	})
}

// What answers one of a line need not answer the others: a waiter of the
// message that has taken the key goes on waiting.
func TestWaiterWhoseMessageTookTheKeyWaitsOn(t *testing.T) {
	inBubble(t, func(t *testing.T, d door) {
		store := newWaitStore()
		send := d.open(t, idemmail.Options{Store: store, WaitInFlight: time.Hour}, func(context.Context) (*idemmail.Receipt, error) {
			time.Sleep(10 * time.Second)
			return &idemmail.Receipt{ProviderID: "b"}, nil
		})
		token, _, err := store.Store.Reserve(t.Context(), doorNamespace+":k", "", idemmail.NoExpiry) // no version: the same as any
		require.NoError(t, err)
		asks := waiters(t.Context(), 1, send, "k", "a")
		synctest.Wait()
		waits := waiters(t.Context(), 3, send, "k", "b")
		time.Sleep(5 * time.Second)
		require.NoError(t, store.Store.Release(t.Context(), doorNamespace+":k", token))
		sends := waiters(t.Context(), 1, send, "k", "b")
		require.ErrorIs(t, (<-asks).err, idemmail.ErrKeyReused)
		for range 3 {
			a := <-waits
			requireReplay(t, a.receipt, a.err)
			require.Equal(t, 15*time.Second, a.after)
		}
		require.NoError(t, (<-sends).err)
	})
}

// The store is asked often again once the first send is over: another process
// that has taken the freed key has only begun.
func TestWokenWaiterAsksOftenAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, d door) {
		store := newHookedStore()
		key := doorNamespace + ":k"
		store.release = func(ctx context.Context, _ int, next func() error) error {
			if err := next(); err != nil {
				return err
			}
			token, _, err := store.MemStore.Reserve(ctx, key, "", time.Hour)
			time.AfterFunc(25*time.Millisecond, func() {
				_ = store.MemStore.Complete(context.Background(), key, token, idemmail.Record{State: idemmail.StateDone, Receipt: receiptOf(statusSent)}, time.Hour)
			})
			return err
		}
		send := d.open(t, idemmail.Options{Store: store, WaitInFlight: time.Hour}, func(context.Context) (*idemmail.Receipt, error) {
			time.Sleep(time.Minute)
			return nil, errRefused
		})
		first := waiters(t.Context(), 1, send, "k", "a")
		synctest.Wait()
		a := <-waiters(t.Context(), 1, send, "k", "a")
		requireReplay(t, a.receipt, a.err)
		require.Less(t, a.after, time.Minute+100*time.Millisecond)
		require.ErrorIs(t, (<-first).err, errRefused)
	})
}

// A key that a waiter took as its context ended, and cannot free, is told of.
func TestWaiterThatCannotFreeTheKeyTells(t *testing.T) {
	inBubble(t, func(t *testing.T, d door) {
		store, seen := newHookedStore(), new(observed)
		token, _, err := store.MemStore.Reserve(t.Context(), doorNamespace+":k", "", time.Hour)
		require.NoError(t, err)
		send := d.open(t, seen.options(idemmail.Options{Store: store, WaitInFlight: time.Hour, StoreTimeout: time.Second}), sendsWell)
		ctx, cancel := context.WithCancel(t.Context())
		waits := waiters(ctx, 1, send, "k", "a")
		synctest.Wait()
		require.NoError(t, store.MemStore.Release(t.Context(), doorNamespace+":k", token))
		store.mu.Lock()
		store.reserve = func(_ context.Context, _ int, next func() (string, *idemmail.Record, error)) (string, *idemmail.Record, error) {
			defer cancel()
			return next()
		}
		store.release = func(context.Context, int, func() error) error { return errFlaky }
		store.mu.Unlock()
		require.ErrorIs(t, (<-waits).err, context.Canceled)
		require.Equal(t, []idemmail.EventKind{idemmail.EventStoreFailed, idemmail.EventInFlight}, seen.kinds())
	})
}
