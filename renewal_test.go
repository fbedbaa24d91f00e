package idemmail_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
)

// settledStore notes a renewal that begins after the key was settled.
type settledStore struct {
	*idemmail.MemStore
	settled, late atomic.Int64
}

func (s *settledStore) Complete(ctx context.Context, key, token string, rec idemmail.Record, ttl time.Duration) error {
	s.settled.Add(1)
	return s.MemStore.Complete(ctx, key, token, rec, ttl)
}

func (s *settledStore) Renew(ctx context.Context, key, token string, lease time.Duration) error {
	if s.settled.Load() > 0 {
		s.late.Add(1)
	}
	return s.MemStore.Renew(ctx, key, token, lease)
}

// A renewal that is due at the very moment at which the send ends comes before
// the key is settled, or not at all.
func TestNoRenewalAfterSettling(t *testing.T) {
	inBubble(t, func(t *testing.T, d door) {
		for range 300 {
			store := &settledStore{MemStore: idemmail.NewMemStore(idemmail.MemStoreOptions{})}
			send := d.open(t, idemmail.Options{Store: store, Lease: 3 * time.Second}, func(context.Context) (*idemmail.Receipt, error) {
				time.Sleep(time.Second)
				return nil, nil
			})
			_, err := send(t.Context(), "k", "a")
			require.NoError(t, err)
			time.Sleep(time.Second)
			require.Zero(t, store.late.Load())
		}
	})
}
