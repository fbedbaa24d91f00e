package idemmail_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
)

// By default a duplicate of a sent message is no error; it can be told by
// Receipt.Replayed.
func TestDuplicateIsReplayed(t *testing.T) {
	throughDoorsAndStores(t, func(t *testing.T, d door, s *shelf) {
		events := new(eventLog)
		send := d.open(t, idemmail.Options{Store: s.store, Observe: events.observe}, answers(nil, nil))
		r, err := send(t.Context(), "k", "a")
		requireFirst(t, r, err)
		for range 2 {
			r, err = send(t.Context(), "k", "a")
			requireReplay(t, r, err)
			require.NotErrorIs(t, err, idemmail.ErrDuplicate)
		}
		require.Equal(t, []idemmail.EventKind{idemmail.EventSent, idemmail.EventReplayed, idemmail.EventReplayed}, events.kinds("k"))
	})
}

func TestRejectDuplicates(t *testing.T) {
	t.Run("of a sent message", func(t *testing.T) {
		throughDoorsAndStores(t, func(t *testing.T, d door, s *shelf) {
			var sends atomic.Int64
			send := d.open(t, idemmail.Options{Store: s.store, RejectDuplicates: true}, counted(&sends, answers(acceptedReceipt(statusSent), nil)))
			first, err := send(t.Context(), "k", "a")
			requireFirst(t, first, err)
			want := copyOf(first)
			want.Replayed = true
			for range 2 {
				r, err := send(t.Context(), "k", "a")
				e := requireSendError(t, "k", r, err)
				require.Equal(t, idemmail.ErrDuplicate, e.Err)
				require.Equal(t, &want, r)
				require.True(t, e.DeliveryUnknown(), "it went")
				require.NotErrorIs(t, err, idemmail.ErrDeliveryUnknown)
				require.Equal(t, idemmail.DeliveryUnknown, idemmail.ClassifyError(err), "not to be sent again")
			}
			require.EqualValues(t, 1, sends.Load())
			s.requireKept(t, "k", first, doorTTL)
		})
	})

	t.Run("of an unknown one", func(t *testing.T) {
		throughDoorsAndStores(t, func(t *testing.T, d door, s *shelf) {
			var sends atomic.Int64
			ctx, cancel := context.WithCancel(t.Context())
			send := d.open(t, idemmail.Options{Store: s.store, RejectDuplicates: true}, counted(&sends, func(context.Context) (*idemmail.Receipt, error) {
				cancel()
				return nil, errVague
			}))
			_, err := send(ctx, "k", "a")
			require.ErrorIs(t, err, idemmail.ErrAborted)
			require.NotErrorIs(t, err, idemmail.ErrDuplicate)

			r, err := send(t.Context(), "k", "a")
			e := requireSendError(t, "k", r, err)
			require.Equal(t, idemmail.ErrDuplicate, e.Err)
			require.True(t, r.Replayed)
			require.True(t, e.DeliveryUnknown())
			require.ErrorIs(t, err, idemmail.ErrDeliveryUnknown)
			require.ErrorIs(t, err, idemmail.ErrAborted, "the receipt's code matches too")
			require.NotErrorIs(t, err, errVague)
			require.EqualValues(t, 1, sends.Load())
		})
	})

	t.Run("but a failed first is none", func(t *testing.T) {
		throughDoorsAndStores(t, func(t *testing.T, d door, s *shelf) {
			var sends atomic.Int64
			send := d.open(t, idemmail.Options{Store: s.store, RejectDuplicates: true}, counted(&sends, func(context.Context) (*idemmail.Receipt, error) {
				if sends.Load() < 3 {
					return nil, errNotTaken
				}
				return nil, nil
			}))
			for range 2 {
				_, err := send(t.Context(), "k", "a")
				require.ErrorIs(t, err, errNotTaken)
				require.NotErrorIs(t, err, idemmail.ErrDuplicate)
			}
			r, err := send(t.Context(), "k", "a")
			requireFirst(t, r, err)
			_, err = send(t.Context(), "k", "a")
			require.ErrorIs(t, err, idemmail.ErrDuplicate)
		})
	})

	t.Run("nor is one that a store keeps as failed", func(t *testing.T) {
		throughDoors(t, func(t *testing.T, d door) {
			send := d.open(t, idemmail.Options{Store: holdsDone(receiptOf(statusFailed)), RejectDuplicates: true}, notToBeSent(t))
			r, err := send(t.Context(), "k", "a")
			e := requireSendError(t, "k", r, err)
			require.NoError(t, e.Err)
			require.NotErrorIs(t, err, idemmail.ErrDuplicate)
		})
	})

	t.Run("nor is one in flight, nor another message", func(t *testing.T) {
		throughDoors(t, func(t *testing.T, d door) {
			for _, err := range []error{idemmail.ErrInFlight, idemmail.ErrKeyReused} {
				store := held{newShelf().store, func(fingerprint string) *idemmail.Record {
					if err == idemmail.ErrInFlight {
						return &idemmail.Record{State: idemmail.StatePending, Fingerprint: fingerprint}
					}
					return &idemmail.Record{State: idemmail.StateDone, Fingerprint: fingerprint + "x", Receipt: receiptOf(statusSent)}
				}}
				r, got := d.open(t, idemmail.Options{Store: store, RejectDuplicates: true}, notToBeSent(t))(t.Context(), "k", "a")
				requireSendError(t, "k", r, got)
				require.ErrorIs(t, got, err)
				require.NotErrorIs(t, got, idemmail.ErrDuplicate)
			}
		})
	})
}

// What an error says of itself is the caller's key, the code and the cause.
func TestSendErrorText(t *testing.T) {
	for want, e := range map[string]*idemmail.SendError{
		`idemmail: failed, key "k\"": boom`:                      {Key: `k"`, Receipt: receiptOf(statusFailed), Err: fmt.Errorf("boom")},
		`idemmail: unknown, idempotency.aborted, key "k"`:        {Key: "k", Receipt: &idemmail.Receipt{Status: statusUnknown, Code: idemmail.CodeAborted}},
		`idemmail: unknown, smtp.lost, key "k": connection lost`: {Key: "k", Receipt: &idemmail.Receipt{Status: statusUnknown, Code: "smtp.lost", Detail: "connection lost"}},
		`idemmail: unknown: lost`:                                {Err: fmt.Errorf("lost")}, // not made by this package
		`idemmail: failed: message is nil`:                       {Receipt: receiptOf(statusFailed), Err: fmt.Errorf("message is nil")},
	} {
		require.EqualError(t, e, want)
	}
}
