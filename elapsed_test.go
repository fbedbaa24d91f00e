package idemmail_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
)

// slowStore takes a second to reserve, two to complete and four to release,
// also for many keys at once.
type slowStore struct{ *idemmail.MemStore }

const toReserve, toComplete, toRelease, toSend = time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second

func (s slowStore) Reserve(ctx context.Context, key, fingerprint string, lease time.Duration) (string, *idemmail.Record, error) {
	time.Sleep(toReserve)
	return s.MemStore.Reserve(ctx, key, fingerprint, lease)
}

func (s slowStore) Complete(ctx context.Context, key, token string, rec idemmail.Record, ttl time.Duration) error {
	time.Sleep(toComplete)
	return s.MemStore.Complete(ctx, key, token, rec, ttl)
}

func (s slowStore) Release(ctx context.Context, key, token string) error {
	time.Sleep(toRelease)
	return s.MemStore.Release(ctx, key, token)
}

func (s slowStore) ReserveMany(ctx context.Context, reqs []idemmail.ReserveRequest) []idemmail.ReserveResult {
	time.Sleep(toReserve)
	return s.MemStore.ReserveMany(ctx, reqs)
}

func (s slowStore) CompleteMany(ctx context.Context, reqs []idemmail.CompleteRequest) []error {
	time.Sleep(toComplete)
	return s.MemStore.CompleteMany(ctx, reqs)
}

// spent is what an event says of the time.
type spent struct {
	kind           idemmail.EventKind
	elapsed, store time.Duration
}

func (o *observed) spent(key string) (all []spent) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, e := range o.events {
		if e.Key == key {
			all = append(all, spent{e.Kind, e.Elapsed, e.Store})
		}
	}
	return all
}

func TestTimeInAnEvent(t *testing.T) {
	inBubble(t, func(t *testing.T, d door) {
		seen := new(observed)
		var err error
		options := seen.options(idemmail.Options{Store: slowStore{idemmail.NewMemStore(idemmail.MemStoreOptions{})}, StoreTimeout: time.Minute, WaitInFlight: time.Minute})
		send := d.open(t, options, func(context.Context) (*idemmail.Receipt, error) {
			time.Sleep(toSend)
			return nil, err
		})
		key := "sent"
		_, _ = send(t.Context(), key, "a")
		_, _ = send(t.Context(), key, "a")
		require.Equal(t, []spent{
			{idemmail.EventSent, toReserve + toSend + toComplete, toReserve + toComplete},
			{idemmail.EventReplayed, toReserve, toReserve},
		}, seen.spent(key))

		key, err = "failed", errRefused
		_, _ = send(t.Context(), key, "a")
		require.Equal(t, []spent{{idemmail.EventFailed, toReserve + toSend + toRelease, toReserve + toRelease}}, seen.spent(key))

		key = "in\nvalid"
		_, _ = send(t.Context(), key, "a")
		require.Equal(t, []spent{{idemmail.EventFailed, 0, 0}}, seen.spent(key))

		// What a send waits for another is no time in the store.
		key, err = "waited for", nil
		first := waiters(t.Context(), 1, send, key, "a")
		synctest.Wait()
		_, _ = send(t.Context(), key, "a")
		<-first
		events := seen.spent(key)
		require.Equal(t, spent{idemmail.EventSent, toReserve + toSend + toComplete, toReserve + toComplete}, events[0])
		require.Equal(t, idemmail.EventReplayed, events[1].kind)
		require.Less(t, events[1].store, events[1].elapsed-time.Second)
		require.Zero(t, events[1].store%toReserve)
	})
}

func TestTimeInAnEventOfAStoreThatFails(t *testing.T) {
	inBubble(t, func(t *testing.T, d door) {
		const timeout = 3 * time.Second
		store, seen := newHookedStore(), new(observed)
		store.complete = func(ctx context.Context, _ int, _ func() error) error {
			<-ctx.Done()
			return ctx.Err()
		}
		send := d.open(t, seen.options(idemmail.Options{Store: store, StoreTimeout: timeout}), func(context.Context) (*idemmail.Receipt, error) {
			time.Sleep(toSend)
			return nil, nil
		})
		_, _ = send(t.Context(), "k", "a")
		require.Equal(t, []spent{
			{idemmail.EventStoreFailed, toSend + timeout, timeout},
			{idemmail.EventSent, toSend + timeout, timeout},
		}, seen.spent("k"))
	})
}

func TestTimeInTheEventsOfABatch(t *testing.T) {
	for _, test := range []struct {
		name string
		next idemmail.Transport
		want map[string]spent
	}{
		{"in turn", waits(toSend), map[string]spent{
			"1": {idemmail.EventSent, toReserve + toSend + toComplete, toReserve + toComplete},
			"2": {idemmail.EventSent, toReserve + toSend + toComplete, toReserve + toComplete},
		}},
		{"together", batchFunc{waits(toSend), func(_ context.Context, msgs []*idemmail.Message) []idemmail.Result {
			time.Sleep(toSend)
			return make([]idemmail.Result, len(msgs))
		}}, map[string]spent{
			"1": {idemmail.EventSent, toReserve + toSend + toComplete, toReserve + toComplete},
			"2": {idemmail.EventSent, toReserve + toSend + toComplete, toReserve + toComplete},
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				seen := new(observed)
				transport := openTransport(t, test.next, seen.options(idemmail.Options{Store: slowStore{idemmail.NewMemStore(idemmail.MemStoreOptions{})}}))
				transport.SendMany(t.Context(), batchOf("1:a", "2:b"))
				for key, want := range test.want {
					require.Equal(t, []spent{want}, seen.spent(key))
				}
			})
		})
	}
}
