package idemmail_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
)

// A reservation that is over when its answer comes is nobody's, but what the
// store says of a key that is held counts.
func TestRecordCountsThatCameLaterThanALease(t *testing.T) {
	inBubble(t, func(t *testing.T, d door) {
		store := newHookedStore()
		send := d.open(t, idemmail.Options{Store: store, Lease: time.Second}, sendsWell)
		r, err := send(t.Context(), "k", "a")
		requireFirst(t, r, err)
		store.reserve = func(_ context.Context, _ int, next func() (string, *idemmail.Record, error)) (string, *idemmail.Record, error) {
			defer time.Sleep(2 * time.Second)
			return next()
		}
		r, err = send(t.Context(), "k", "a")
		requireReplay(t, r, err)
		_, err = send(t.Context(), "other", "a")
		require.ErrorIs(t, err, idemmail.ErrStoreFailed)
	})
}

// The shortest durations make no sense, but no message is lost by them where
// the store is a MemStore: it answers at once.
func TestShortestDurationsSend(t *testing.T) {
	throughDoors(t, func(t *testing.T, d door) {
		send := d.open(t, idemmail.Options{Lease: 1, TTL: 1, StoreTimeout: 1, MaxSend: 1, WaitInFlight: 1}, sendsWell)
		r, err := send(t.Context(), "k", "a")
		requireFirst(t, r, err)
	})
}
