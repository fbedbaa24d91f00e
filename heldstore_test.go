package idemmail_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
)

// held is a store in which the key k is held by a record, whatever is asked.
// It refuses to be settled.
type held struct {
	idemmail.Store
	record func(fingerprint string) *idemmail.Record
}

func (h held) Reserve(ctx context.Context, key, fingerprint string, lease time.Duration) (string, *idemmail.Record, error) {
	if key == doorNamespace+":k" {
		return "", h.record(fingerprint), nil
	}
	return h.Store.Reserve(ctx, key, fingerprint, lease)
}

func (h held) Complete(ctx context.Context, key, token string, rec idemmail.Record, ttl time.Duration) error {
	if key == doorNamespace+":k" {
		panic("completed a key that it does not hold")
	}
	return h.Store.Complete(ctx, key, token, rec, ttl)
}

func (h held) Release(ctx context.Context, key, token string) error {
	if key == doorNamespace+":k" {
		panic("released a key that it does not hold")
	}
	return h.Store.Release(ctx, key, token)
}

// failsToReserve is a store that fails to reserve the key k.
type failsToReserve struct {
	idemmail.Store
	err error
}

func (s failsToReserve) Reserve(ctx context.Context, key, fingerprint string, lease time.Duration) (string, *idemmail.Record, error) {
	if key == doorNamespace+":k" {
		return "", nil, s.err
	}
	return s.Store.Reserve(ctx, key, fingerprint, lease)
}

// holdsDone is a store in which the key k is done with a receipt.
func holdsDone(r *idemmail.Receipt) held {
	return held{newShelf().store, func(fingerprint string) *idemmail.Record {
		mine := *r
		return &idemmail.Record{State: idemmail.StateDone, Fingerprint: fingerprint, Receipt: &mine}
	}}
}

// notToBeSent is the work of a transport that nothing may reach.
func notToBeSent(t testing.TB) work {
	return func(context.Context) (*idemmail.Receipt, error) {
		t.Error("sent")
		return nil, nil
	}
}

func requireFirst(t testing.TB, r *idemmail.Receipt, err error) {
	t.Helper()
	require.NoError(t, err)
	require.Equal(t, statusSent, r.Status)
	require.False(t, r.Replayed)
}

func requireReplay(t testing.TB, r *idemmail.Receipt, err error) {
	t.Helper()
	require.NoError(t, err)
	require.Equal(t, statusSent, r.Status)
	require.True(t, r.Replayed)
}
