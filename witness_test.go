package idemmail_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
)

// The errors of a transport, by what they say of the delivery.
var (
	errNotTaken = idemmail.NotSent(errors.New("greylisted"))
	errVague    = errors.New("something broke")
	errMaybe    = idemmail.MayBeSent(errors.New("lost after the final dot"))
)

// A witnessRow is a row of the table: what the receipt says, and what that
// comes to beside each error.
type witnessRow struct {
	name    string
	receipt *idemmail.Receipt
	want    [4]idemmail.Status
}

// The errors of a witnessRow's columns.
var witnessColumns = [4]struct {
	name string
	err  error
}{
	{"error nil", nil},
	{"error not delivered", errNotTaken},
	{"error unspecified", errVague},
	{"error unknown", errMaybe},
}

const (
	statusSent    = idemmail.StatusSent
	statusFailed  = idemmail.StatusFailed
	statusUnknown = idemmail.StatusUnknown
)

func receiptOf(s idemmail.Status) *idemmail.Receipt { return &idemmail.Receipt{Status: s} }

// witnessRows is the table of the two witnesses while the send's context
// lives. A receipt that lists accepted recipients is never failed.
var witnessRows = []witnessRow{
	{"nil receipt", nil, [4]idemmail.Status{statusSent, statusFailed, statusFailed, statusUnknown}},
	{"empty status", receiptOf(""), [4]idemmail.Status{statusSent, statusFailed, statusFailed, statusUnknown}},
	{"sent", receiptOf(statusSent), [4]idemmail.Status{statusSent, statusUnknown, statusUnknown, statusUnknown}},
	{"failed", receiptOf(statusFailed), [4]idemmail.Status{statusFailed, statusFailed, statusFailed, statusUnknown}},
	{"unknown", receiptOf(statusUnknown), [4]idemmail.Status{statusUnknown, statusUnknown, statusUnknown, statusUnknown}},
	{"status outside the three", receiptOf("queued"), [4]idemmail.Status{statusUnknown, statusUnknown, statusUnknown, statusUnknown}},

	{"empty status, accepted recipients", acceptedReceipt(""), [4]idemmail.Status{statusSent, statusUnknown, statusUnknown, statusUnknown}},
	{"sent, accepted recipients", acceptedReceipt(statusSent), [4]idemmail.Status{statusSent, statusUnknown, statusUnknown, statusUnknown}},
	{"failed, accepted recipients", acceptedReceipt(statusFailed), [4]idemmail.Status{statusUnknown, statusUnknown, statusUnknown, statusUnknown}},
}

// C37: a server took some recipients and refused others.
func acceptedReceipt(s idemmail.Status) *idemmail.Receipt {
	return &idemmail.Receipt{
		Status:   s,
		Accepted: []string{"a@example.org"},
		Rejected: []idemmail.Rejection{{Address: "b@example.org", Reason: "no such user", Code: 550}},
	}
}

// Each cell: the answer, what the store keeps, and what the next send under
// the key gets.
func TestTwoWitnesses(t *testing.T) {
	for _, row := range witnessRows {
		for i, column := range witnessColumns {
			t.Run(row.name+", "+column.name, func(t *testing.T) {
				throughDoorsAndStores(t, func(t *testing.T, d door, s *shelf) {
					testWitness(t, d, s, row.receipt, column.err, row.want[i])
				})
			})
		}
	}
}

func testWitness(t *testing.T, d door, s *shelf, receipt *idemmail.Receipt, cause error, want idemmail.Status) {
	var sends atomic.Int64
	send := d.open(t, idemmail.Options{Store: s.store}, counted(&sends, func(context.Context) (*idemmail.Receipt, error) {
		s.requirePending(t, "k", doorLease)
		return receipt, cause
	}))
	r, err := send(t.Context(), "k", "a")
	require.NotNil(t, r)
	require.Equal(t, want, r.Status)
	require.False(t, r.Replayed)
	require.Empty(t, r.Code)
	if want == statusSent {
		require.NoError(t, err)
	} else {
		requireSendError(t, "k", r, err)
	}
	if want != statusSent && cause != nil {
		require.ErrorIs(t, err, cause)
		require.Equal(t, cause.Error(), r.Detail)
	}
	if receipt != nil {
		require.Equal(t, receipt.Accepted, r.Accepted)
		require.Equal(t, receipt.Rejected, r.Rejected)
	}

	kept := *r
	again, err := send(t.Context(), "k", "a")
	switch want {
	case statusFailed:
		require.EqualValues(t, 2, sends.Load(), "the key was not freed")
		s.requireFree(t, "k")
	case statusUnknown:
		require.EqualValues(t, 1, sends.Load(), "sent again")
		requireSendError(t, "k", again, err)
		require.NotErrorIs(t, err, errors.Unwrap(errMaybe), "the first cause is not kept")
		s.requireKept(t, "k", r, doorTTL)
	default:
		require.EqualValues(t, 1, sends.Load(), "sent again")
		require.NoError(t, err)
		s.requireKept(t, "k", r, doorTTL)
	}
	if want != statusFailed {
		kept.Replayed = true
		require.Equal(t, &kept, again)
	}
}

// Where the send's context is done, an error that says nothing is unknown.
var witnessRowsAborted = []witnessRow{
	{"nil receipt", nil, [4]idemmail.Status{statusSent, statusFailed, statusUnknown, statusUnknown}},
	{"empty status", receiptOf(""), [4]idemmail.Status{statusSent, statusFailed, statusUnknown, statusUnknown}},
	{"sent", receiptOf(statusSent), [4]idemmail.Status{statusSent, statusUnknown, statusUnknown, statusUnknown}},
	{"failed", receiptOf(statusFailed), [4]idemmail.Status{statusFailed, statusFailed, statusFailed, statusUnknown}},
	{"unknown", receiptOf(statusUnknown), [4]idemmail.Status{statusUnknown, statusUnknown, statusUnknown, statusUnknown}},
	{"status outside the three", receiptOf("queued"), [4]idemmail.Status{statusUnknown, statusUnknown, statusUnknown, statusUnknown}},
	{"failed, accepted recipients", acceptedReceipt(statusFailed), [4]idemmail.Status{statusUnknown, statusUnknown, statusUnknown, statusUnknown}},
}

// C2, C4: the caller goes away while the message is being sent. The key is
// settled all the same.
func TestTwoWitnessesWhenTheContextIsDone(t *testing.T) {
	errGone := errors.New("client hung up")
	for _, row := range witnessRowsAborted {
		for i, column := range witnessColumns {
			t.Run(row.name+", "+column.name, func(t *testing.T) {
				throughDoorsAndStores(t, func(t *testing.T, d door, s *shelf) {
					ctx, cancel := context.WithCancelCause(t.Context())
					send := d.open(t, idemmail.Options{Store: s.store}, func(ctx context.Context) (*idemmail.Receipt, error) {
						cancel(errGone)
						<-ctx.Done()
						return row.receipt, column.err
					})
					r, err := send(ctx, "k", "a")
					require.Equal(t, row.want[i], r.Status)
					if r.Status == statusSent {
						require.NoError(t, err)
					} else {
						requireSendError(t, "k", r, err)
					}
					if r.Status == statusUnknown && column.err != nil {
						requireAborted(t, r, err, errGone, column.err)
					} else {
						require.Empty(t, r.Code)
						require.NotErrorIs(t, err, idemmail.ErrAborted)
						require.NotErrorIs(t, err, errGone)
					}
					if r.Status == statusFailed {
						s.requireFree(t, "k")
					} else {
						s.requireKept(t, "k", r, doorTTL)
					}
				})
			})
		}
	}
}

// requireAborted checks that an answer is aborted, and wraps why its context
// ended and what its transport said.
func requireAborted(t testing.TB, r *idemmail.Receipt, err, ended, cause error) {
	t.Helper()
	require.Equal(t, statusUnknown, r.Status)
	require.Equal(t, idemmail.CodeAborted, r.Code)
	require.Equal(t, idemmail.CategoryUnknown, r.Category)
	require.False(t, r.Retryable)
	require.ErrorIs(t, err, idemmail.ErrAborted)
	require.ErrorIs(t, err, ended)
	require.ErrorIs(t, err, cause)
}

func TestAborted(t *testing.T) {
	t.Run("by the caller's deadline", func(t *testing.T) {
		throughDoors(t, func(t *testing.T, d door) {
			synctest.Test(t, func(t *testing.T) {
				s := newShelf()
				send := d.open(t, idemmail.Options{Store: s.store}, func(ctx context.Context) (*idemmail.Receipt, error) {
					<-ctx.Done()
					return nil, fmt.Errorf("reading the reply: %w", errVague)
				})
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				r, err := send(ctx, "k", "a")
				requireAborted(t, r, err, context.DeadlineExceeded, errVague)
				s.requireKept(t, "k", r, doorTTL)
			})
		})
	})

	t.Run("by the caller's deadline, which the context has yet to notice", func(t *testing.T) {
		throughDoors(t, func(t *testing.T, d door) {
			s := newShelf()
			ctx := &tardyContext{Context: t.Context(), deadline: time.Now().Add(time.Hour)}
			send := d.open(t, idemmail.Options{Store: s.store}, func(context.Context) (*idemmail.Receipt, error) {
				ctx.deadline = time.Now()
				return nil, errVague // of a connection that had the same deadline
			})
			r, err := send(ctx, "k", "a")
			requireAborted(t, r, err, context.DeadlineExceeded, errVague)
			s.requireKept(t, "k", r, doorTTL)
		})
	})

	t.Run("by the caller, as the transport's own error says", func(t *testing.T) {
		throughDoors(t, func(t *testing.T, d door) {
			ctx, cancel := context.WithCancel(t.Context())
			r, err := d.open(t, idemmail.Options{}, func(ctx context.Context) (*idemmail.Receipt, error) {
				cancel()
				return nil, ctx.Err()
			})(ctx, "k", "a")
			requireAborted(t, r, err, context.Canceled, context.Canceled)
			require.Equal(t, "context canceled", r.Detail, "it is said once")
		})
	})

	t.Run("by MaxSend", func(t *testing.T) {
		throughDoors(t, func(t *testing.T, d door) {
			synctest.Test(t, func(t *testing.T) {
				s := newShelf()
				began := time.Now()
				send := d.open(t, idemmail.Options{Store: s.store, MaxSend: time.Minute}, func(ctx context.Context) (*idemmail.Receipt, error) {
					<-ctx.Done()
					require.ErrorIs(t, context.Cause(ctx), context.DeadlineExceeded)
					return nil, errVague
				})
				r, err := send(t.Context(), "k", "a")
				require.Equal(t, time.Minute, time.Since(began))
				requireAborted(t, r, err, context.DeadlineExceeded, errVague)
				s.requireKept(t, "k", r, doorTTL)
			})
		})
	})

	t.Run("by ten leases, where MaxSend is not set", func(t *testing.T) {
		throughDoors(t, func(t *testing.T, d door) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				send := d.open(t, idemmail.Options{Lease: time.Minute}, func(ctx context.Context) (*idemmail.Receipt, error) {
					<-ctx.Done()
					return nil, errVague
				})
				r, err := send(t.Context(), "k", "a")
				require.Equal(t, 10*time.Minute, time.Since(began))
				requireAborted(t, r, err, context.DeadlineExceeded, errVague)
			})
		})
	})

	t.Run("by a lost lease", func(t *testing.T) {
		throughDoors(t, func(t *testing.T, d door) {
			synctest.Test(t, func(t *testing.T) {
				send := d.open(t, idemmail.Options{Store: losesLeases{newShelf().mem}}, func(ctx context.Context) (*idemmail.Receipt, error) {
					select {
					case <-ctx.Done():
					case <-time.After(doorLease):
					}
					return nil, errVague
				})
				r, err := send(t.Context(), "k", "a")
				if d.name == "SendMany together" { // where it is only reported
					require.Equal(t, statusFailed, r.Status)
					return
				}
				requireAborted(t, r, err, idemmail.ErrLeaseLost, errVague)
			})
		})
	})

	t.Run("unless the context's end came without an error", func(t *testing.T) {
		throughDoors(t, func(t *testing.T, d door) {
			ctx, cancel := context.WithCancel(t.Context())
			send := d.open(t, idemmail.Options{}, func(context.Context) (*idemmail.Receipt, error) {
				cancel()
				return receiptOf(statusUnknown), nil
			})
			r, err := send(ctx, "k", "a")
			e := requireSendError(t, "k", r, err)
			require.NoError(t, e.Err)
			require.Empty(t, r.Code)
		})
	})

	t.Run("unless the transport set a code itself", func(t *testing.T) {
		throughDoors(t, func(t *testing.T, d door) {
			ctx, cancel := context.WithCancel(t.Context())
			send := d.open(t, idemmail.Options{}, func(context.Context) (*idemmail.Receipt, error) {
				cancel()
				return &idemmail.Receipt{Code: "smtp.hung", Category: idemmail.CategoryTimeout, Retryable: true}, errVague
			})
			r, err := send(ctx, "k", "a")
			requireSendError(t, "k", r, err)
			require.Equal(t, statusUnknown, r.Status)
			require.Equal(t, "smtp.hung", r.Code)
			require.Equal(t, idemmail.CategoryTimeout, r.Category)
			require.False(t, r.Retryable, "a retry only replays")
			require.NotErrorIs(t, err, idemmail.ErrAborted)
			require.ErrorIs(t, err, errVague)
		})
	})

	t.Run("and is answered so again, without the first cause", func(t *testing.T) {
		throughDoors(t, func(t *testing.T, d door) {
			ctx, cancel := context.WithCancel(t.Context())
			send := d.open(t, idemmail.Options{}, func(ctx context.Context) (*idemmail.Receipt, error) {
				cancel()
				return nil, ctx.Err()
			})
			_, err := send(ctx, "k", "a")
			require.ErrorIs(t, err, context.Canceled)

			r, err := send(t.Context(), "k", "a")
			requireSendError(t, "k", r, err)
			require.True(t, r.Replayed)
			require.ErrorIs(t, err, idemmail.ErrAborted)
			require.NotErrorIs(t, err, context.Canceled)
		})
	})
}

// losesLeases is a store whose leases are lost by the time they are renewed.
type losesLeases struct{ *idemmail.MemStore }

func (losesLeases) Renew(context.Context, string, string, time.Duration) error {
	return idemmail.ErrLeaseLost
}

func (losesLeases) RenewMany(_ context.Context, reqs []idemmail.RenewRequest) []error {
	errs := make([]error, len(reqs))
	for i := range errs {
		errs[i] = idemmail.ErrLeaseLost
	}
	return errs
}

func TestClassifyOption(t *testing.T) {
	for d, want := range map[idemmail.Delivery]idemmail.Status{
		idemmail.NotDelivered:        statusFailed,
		idemmail.DeliveryUnspecified: statusFailed,
		idemmail.DeliveryUnknown:     statusUnknown,
		idemmail.Delivery(17):        statusUnknown,
	} {
		t.Run(fmt.Sprint(d), func(t *testing.T) {
			throughDoors(t, func(t *testing.T, door door) {
				s := newShelf()
				send := door.open(t, idemmail.Options{
					Store: s.store,
					Classify: func(err error) idemmail.Delivery {
						require.Same(t, errMaybe, err, "the transport's own error")
						return d
					},
				}, answers(nil, errMaybe))
				r, err := send(t.Context(), "k", "a")
				require.Equal(t, want, r.Status)
				requireSendError(t, "k", r, err)
				require.Equal(t, want == statusUnknown, s.entry(t, "k") != nil)
			})
		})
	}
}

// A typed nil pointer is most often a success that was returned as an error by
// mistake.
func TestNilPointerAsError(t *testing.T) {
	throughDoors(t, func(t *testing.T, d door) {
		for name, err := range map[string]error{
			"SendError":         (*idemmail.SendError)(nil),
			"other":             (*httpError)(nil),
			"wrapped SendError": fmt.Errorf("smtp: %w", (*idemmail.SendError)(nil)),
		} {
			t.Run(name, func(t *testing.T) {
				s := newShelf()
				r, err := d.open(t, idemmail.Options{Store: s.store}, answers(nil, err))(t.Context(), "k", "a")
				require.Equal(t, statusUnknown, r.Status)
				requireSendError(t, "k", r, err)
				require.NotEmpty(t, err.Error())
				s.requireKept(t, "k", r, doorTTL)
			})
		}
	})
}

// Nor may an error without an end keep a send from its own.
func TestErrorThatUnwrapsToItself(t *testing.T) {
	throughDoors(t, func(t *testing.T, d door) {
		s := newShelf()
		r, err := d.open(t, idemmail.Options{Store: s.store}, answers(nil, new(endlessError)))(t.Context(), "k", "a")
		require.Error(t, err)
		require.Equal(t, statusUnknown, r.Status)
		s.requireKept(t, "k", r, doorTTL)
	})
}
