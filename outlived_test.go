package idemmail_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
)

// A pacedStore is a MemStore that takes its time before a call, and before it
// answers one.
type pacedStore struct {
	*idemmail.MemStore
	before, after func(ctx context.Context, method string)
}

func (s *pacedStore) pace(ctx context.Context, method string) (answer func()) {
	if s.before != nil {
		s.before(ctx, method)
	}
	return func() {
		if s.after != nil {
			s.after(ctx, method)
		}
	}
}

func (s *pacedStore) Reserve(ctx context.Context, key, fingerprint string, lease time.Duration) (string, *idemmail.Record, error) {
	defer s.pace(ctx, "Reserve")()
	return s.MemStore.Reserve(ctx, key, fingerprint, lease)
}

func (s *pacedStore) ReserveMany(ctx context.Context, reqs []idemmail.ReserveRequest) []idemmail.ReserveResult {
	defer s.pace(ctx, "ReserveMany")()
	return s.MemStore.ReserveMany(ctx, reqs)
}

func (s *pacedStore) Renew(ctx context.Context, key, token string, lease time.Duration) error {
	defer s.pace(ctx, "Renew")()
	return s.MemStore.Renew(ctx, key, token, lease)
}

func (s *pacedStore) RenewMany(ctx context.Context, reqs []idemmail.RenewRequest) []error {
	defer s.pace(ctx, "RenewMany")()
	return s.MemStore.RenewMany(ctx, reqs)
}

func (s *pacedStore) Release(ctx context.Context, key, token string) error {
	defer s.pace(ctx, "Release")()
	return s.MemStore.Release(ctx, key, token)
}

func (s *pacedStore) ReleaseMany(ctx context.Context, reqs []idemmail.ReleaseRequest) []error {
	defer s.pace(ctx, "ReleaseMany")()
	return s.MemStore.ReleaseMany(ctx, reqs)
}

// one hides that it takes many keys at once.
func (s *pacedStore) one() idemmail.Store {
	return struct {
		idemmail.Store
		idemmail.Renewer
	}{s, s}
}

// takes makes calls of the methods take so long.
func takes(d time.Duration, methods ...string) func(context.Context, string) {
	return func(_ context.Context, method string) {
		if slices.Contains(methods, method) {
			time.Sleep(d)
		}
	}
}

// numbered is a batch of so many messages.
func numbered(n int) []*idemmail.Message {
	var specs []string
	for i := range n {
		specs = append(specs, fmt.Sprintf("%d:m%d", i, i))
	}
	return batchOf(specs...)
}

// The leases of a batch that took long to be reserved are renewed together, not
// one after another while the first of them ends again.
func TestBatchThatTookLongToBeReserved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := idemmail.NewMemStore(idemmail.MemStoreOptions{})
		store := &pacedStore{MemStore: mem, before: func(ctx context.Context, method string) {
			takes(1200*time.Millisecond, "ReserveMany")(ctx, method)
			takes(400*time.Millisecond, "Renew", "RenewMany")(ctx, method)
		}}
		b := &batcher{}
		transport := openTransport(t, manyBatcher{b}, idemmail.Options{Store: store, Lease: time.Second})
		began := time.Now()
		for _, r := range transport.SendMany(t.Context(), numbered(6)) {
			require.NoError(t, r.Err)
		}
		require.Equal(t, 1600*time.Millisecond, time.Since(began))
		require.Len(t, b.went, 6)
	})
}

// Whatever its size, such a batch is answered within three StoreTimeouts, by a
// store that hangs once it has reserved it.
func TestBatchThatTookLongToBeReservedByAStoreThatHangs(t *testing.T) {
	for _, n := range []int{1, 2, 20} {
		synctest.Test(t, func(t *testing.T) {
			store := &pacedStore{MemStore: idemmail.NewMemStore(idemmail.MemStoreOptions{}), before: func(ctx context.Context, method string) {
				if takes(1200*time.Millisecond, "Reserve", "ReserveMany")(ctx, method); !slices.Contains([]string{"Reserve", "ReserveMany"}, method) {
					<-ctx.Done()
				}
			}}
			b := &batcher{}
			transport := openTransport(t, manyBatcher{b}, idemmail.Options{Store: store, Lease: time.Second, StoreTimeout: 2 * time.Second})
			began := time.Now()
			for _, r := range transport.SendMany(t.Context(), numbered(n)) {
				require.ErrorIs(t, r.Err, idemmail.ErrStoreFailed)
			}
			require.LessOrEqual(t, time.Since(began), 6*time.Second)
			require.Empty(t, b.went)
		})
	}
}

// Keys that are reserved one after another, of which the first are over when
// the last is reserved: what another process took meanwhile does not go.
func TestKeysThatEndWhileOthersAreReserved(t *testing.T) {
	for _, atMostOnce := range []bool{false, true} {
		t.Run(fmt.Sprintf("AtMostOnce %v", atMostOnce), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mem := idemmail.NewMemStore(idemmail.MemStoreOptions{})
				store := &pacedStore{MemStore: mem, before: takes(50*time.Millisecond, "Reserve", "Renew")}
				b := &batcher{}
				transport := openTransport(t, manyBatcher{b}, idemmail.Options{
					Store: store.one(), Lease: time.Second, StoreTimeout: 300 * time.Millisecond, AtMostOnce: atMostOnce,
				})
				other := openTransport(t, b, idemmail.Options{Store: mem, Lease: time.Second, AtMostOnce: atMostOnce})
				took := make(chan error)
				go func() {
					time.Sleep(1500 * time.Millisecond)
					took <- sendForgotten(t, other, numbered(1)[0])
				}()
				results := transport.SendMany(t.Context(), numbered(40))
				require.NoError(t, <-took)
				require.ErrorIs(t, results[0].Err, idemmail.ErrStoreFailed)
				went := slices.Sorted(slices.Values(b.went))
				require.Equal(t, slices.Compact(slices.Clone(went)), went, "nothing goes twice")
				require.Contains(t, went, "m0")
			})
		})
	}
}

// sendForgotten sends a message; where its key is abandoned, an operator forgets
// that first.
func sendForgotten(t *testing.T, transport *idemmail.IdempotencyTransport, m *idemmail.Message) error {
	if e, err := transport.Lookup(t.Context(), m.IdempotencyKey); err == nil && e != nil {
		if err := transport.Forget(t.Context(), *e); err != nil {
			return err
		}
	}
	_, err := transport.Send(t.Context(), m)
	return err
}

// A reservation was made, and its answer came when another process had the key:
// nothing goes beside that one, in no mode.
func TestReservationThatAnotherTook(t *testing.T) {
	for name, options := range map[string]idemmail.Options{
		"default": {}, "FailOpen": {FailOpen: true}, "AtMostOnce, forgotten": {AtMostOnce: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mem := idemmail.NewMemStore(idemmail.MemStoreOptions{})
				b := &batcher{}
				options.Lease, options.Store = time.Second, mem
				other := openTransport(t, b, options)
				options.Store = &pacedStore{MemStore: mem, after: takes(2*time.Second, "Reserve")}
				late := openTransport(t, b, options)
				took := make(chan error)
				go func() {
					time.Sleep(1500 * time.Millisecond)
					took <- sendForgotten(t, other, numbered(1)[0])
				}()
				_, err := late.Send(t.Context(), numbered(1)[0])
				require.NoError(t, <-took)
				require.ErrorIs(t, err, idemmail.ErrStoreFailed)
				require.ErrorIs(t, err, idemmail.ErrLeaseLost)
				require.Equal(t, []string{"m0"}, b.went)
			})
		})
	}
}

// The end of a batch waits for the renewal that is under way, not for those of
// all its keys.
func TestEndOfABatchWhoseRenewalsHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &pacedStore{MemStore: idemmail.NewMemStore(idemmail.MemStoreOptions{}), before: func(ctx context.Context, method string) {
			if method == "Renew" {
				<-ctx.Done()
			}
		}}
		b := &batcher{ends: func(r []idemmail.Result) []idemmail.Result { time.Sleep(21 * time.Second); return r }}
		transport := openTransport(t, manyBatcher{b}, idemmail.Options{Store: store.one(), Lease: time.Minute})
		began := time.Now()
		transport.SendMany(t.Context(), numbered(100))
		require.LessOrEqual(t, time.Since(began), 26*time.Second)
	})
}
