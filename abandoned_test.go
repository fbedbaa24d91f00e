package idemmail_test

import (
	"context"
	"testing"
	"time"

	"github.com/idemmail/idemmail"
	"github.com/stretchr/testify/require"
)

// What makes an old reservation abandoned is this guard's promise, not the
// other's: without AtMostOnce a pending key is in flight, however old, until
// its store lets it go.
func TestOldReservationIsAbandonedOnlyUnderAtMostOnce(t *testing.T) {
	now := time.Now()
	store := idemmail.NewMemStore(idemmail.MemStoreOptions{Now: func() time.Time { return now }})
	_, _, err := store.Reserve(t.Context(), "test:key", "c:", idemmail.NoExpiry)
	require.NoError(t, err)
	now = now.Add(time.Hour)

	for _, test := range []struct {
		atMostOnce bool
		want       error
	}{{false, idemmail.ErrInFlight}, {true, idemmail.ErrAbandoned}} {
		g, err := idemmail.NewGuard(idemmail.Options{Store: store, Namespace: "test", Lease: time.Minute, AtMostOnce: test.atMostOnce})
		require.NoError(t, err)
		_, err = g.Do(t.Context(), "key", "", func(context.Context) (*idemmail.Receipt, error) {
			t.Error("was sent")
			return nil, nil
		})
		require.ErrorIs(t, err, test.want)
	}
}
