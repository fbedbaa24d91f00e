package idemmail_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
)

// What the store finds under the key decides. The tests of this file are the
// rows of that table.

func TestFoundNothing(t *testing.T) {
	t.Run("nothing", func(t *testing.T) {
		throughDoorsAndStores(t, func(t *testing.T, d door, s *shelf) {
			var sends atomic.Int64
			send := d.open(t, idemmail.Options{Store: s.store}, counted(&sends, func(context.Context) (*idemmail.Receipt, error) {
				s.requirePending(t, "k", doorLease)
				return nil, nil
			}))
			r, err := send(t.Context(), "k", "a")
			requireFirst(t, r, err)
			require.EqualValues(t, 1, sends.Load())
		})
	})

	t.Run("a done record whose time has passed", func(t *testing.T) {
		throughDoorsAndStores(t, func(t *testing.T, d door, s *shelf) {
			var sends atomic.Int64
			send := d.open(t, idemmail.Options{Store: s.store}, counted(&sends, answers(nil, nil)))
			_, err := send(t.Context(), "k", "a")
			require.NoError(t, err)

			s.clock.Advance(doorTTL - time.Nanosecond)
			r, err := send(t.Context(), "k", "a")
			requireReplay(t, r, err)
			require.EqualValues(t, 1, sends.Load())

			s.clock.Advance(time.Nanosecond)
			r, err = send(t.Context(), "k", "another")
			requireFirst(t, r, err)
			require.EqualValues(t, 2, sends.Load())
			s.requireKept(t, "k", r, doorTTL)
		})
	})

	// C21, C22: a process that died holds its key for the lease, and not for
	// the TTL.
	t.Run("a pending record whose time has passed", func(t *testing.T) {
		throughDoorsAndStores(t, func(t *testing.T, d door, s *shelf) {
			mustReserve(t, s.mem, doorNamespace+":k", "c:a", doorLease)
			send := d.open(t, idemmail.Options{Store: s.store}, answers(nil, nil))

			s.clock.Advance(doorLease - time.Nanosecond)
			_, err := send(t.Context(), "k", "a")
			require.ErrorIs(t, err, idemmail.ErrInFlight)

			s.clock.Advance(time.Nanosecond)
			r, err := send(t.Context(), "k", "a")
			requireFirst(t, r, err)
			s.requireKept(t, "k", r, doorTTL)
		})
	})
}

// C9, C23: another message is refused whatever became of the first.
func TestFoundAnotherMessage(t *testing.T) {
	requireReused := func(t *testing.T, s *shelf, send knock) {
		t.Helper()
		held := s.entry(t, "k")
		r, err := send(t.Context(), "k", "b")
		e := requireSendError(t, "k", r, err)
		require.NoError(t, e.Err)
		require.Equal(t, statusFailed, r.Status)
		require.Equal(t, idemmail.CodeKeyReused, r.Code)
		require.Equal(t, idemmail.CategoryValidation, r.Category)
		require.False(t, r.Retryable)
		require.False(t, r.Replayed)
		require.ErrorIs(t, err, idemmail.ErrKeyReused)
		require.NotErrorIs(t, err, idemmail.ErrInFlight)
		require.Equal(t, held, s.entry(t, "k"), "the record was touched")
	}
	for name, first := range map[string]work{
		"done, sent":    answers(nil, nil),
		"done, unknown": answers(nil, errMaybe),
	} {
		t.Run(name, func(t *testing.T) {
			throughDoorsAndStores(t, func(t *testing.T, d door, s *shelf) {
				var sends atomic.Int64
				send := d.open(t, idemmail.Options{Store: s.store}, counted(&sends, first))
				_, _ = send(t.Context(), "k", "a")
				requireReused(t, s, send)
				require.EqualValues(t, 1, sends.Load())
			})
		})
	}

	t.Run("pending", func(t *testing.T) {
		throughDoorsAndStores(t, func(t *testing.T, d door, s *shelf) {
			testInFlight(t, d, s, idemmail.Options{}, func(send knock) { requireReused(t, s, send) })
		})
	})

	t.Run("pending, even for one who would wait", func(t *testing.T) {
		throughDoors(t, func(t *testing.T, d door) {
			s := newShelf()
			testInFlight(t, d, s, idemmail.Options{WaitInFlight: time.Hour}, func(send knock) { requireReused(t, s, send) })
		})
	})

	t.Run("failed: it may take the key", func(t *testing.T) {
		throughDoorsAndStores(t, func(t *testing.T, d door, s *shelf) {
			var sends atomic.Int64
			send := d.open(t, idemmail.Options{Store: s.store}, counted(&sends, func(context.Context) (*idemmail.Receipt, error) {
				if sends.Load() == 1 {
					return nil, errNotTaken
				}
				return nil, nil
			}))
			_, err := send(t.Context(), "k", "a")
			require.ErrorIs(t, err, errNotTaken)
			r, err := send(t.Context(), "k", "b")
			requireFirst(t, r, err)
			_, err = send(t.Context(), "k", "a")
			require.ErrorIs(t, err, idemmail.ErrKeyReused)
		})
	})
}

// testInFlight runs a test while a message about "a" is being sent under the
// key k, and lets that end as sent.
func testInFlight(t *testing.T, d door, s *shelf, options idemmail.Options, test func(knock)) {
	t.Helper()
	begun, end := make(chan struct{}), make(chan struct{})
	var sends atomic.Int64
	options.Store = s.store
	send := d.open(t, options, counted(&sends, func(context.Context) (*idemmail.Receipt, error) {
		close(begun)
		<-end
		return nil, nil
	}))
	done := make(chan error)
	go func() {
		_, err := send(t.Context(), "k", "a")
		done <- err
	}()
	<-begun
	finish := func() error {
		close(end)
		return <-done
	}
	defer func() {
		if finish != nil { // the test failed
			_ = finish()
		}
	}()
	test(send)
	err := finish()
	finish = nil
	require.NoError(t, err)
	require.EqualValues(t, 1, sends.Load(), "sent again")
	r, err := send(t.Context(), "k", "a")
	requireReplay(t, r, err)
}

// C8: a job runner that acknowledges on a nil error must not do so here.
func TestFoundTheSameMessageInFlight(t *testing.T) {
	throughDoorsAndStores(t, func(t *testing.T, d door, s *shelf) {
		testInFlight(t, d, s, idemmail.Options{}, func(send knock) {
			held := s.entry(t, "k")
			r, err := send(t.Context(), "k", "a")
			e := requireSendError(t, "k", r, err)
			require.NoError(t, e.Err)
			require.Equal(t, statusUnknown, r.Status)
			require.Equal(t, idemmail.CodeInFlight, r.Code)
			require.Equal(t, idemmail.CategoryUnknown, r.Category)
			require.True(t, r.Retryable)
			require.False(t, r.Replayed)
			require.ErrorIs(t, err, idemmail.ErrInFlight)
			require.Equal(t, held, s.entry(t, "k"), "the record was touched")
		})
	})
}

// C8: it was no success: the first may fail yet, and the next send goes.
func TestFoundTheSameMessageInFlightThatFails(t *testing.T) {
	throughDoorsAndStores(t, func(t *testing.T, d door, s *shelf) {
		var sends atomic.Int64
		var inFlight error
		var send knock
		send = d.open(t, idemmail.Options{Store: s.store}, counted(&sends, func(ctx context.Context) (*idemmail.Receipt, error) {
			if sends.Load() > 1 {
				return nil, nil
			}
			_, inFlight = send(ctx, "k", "a")
			return nil, errNotTaken
		}))
		_, err := send(t.Context(), "k", "a")
		require.ErrorIs(t, err, errNotTaken)
		require.ErrorIs(t, inFlight, idemmail.ErrInFlight)
		r, err := send(t.Context(), "k", "a")
		requireFirst(t, r, err)
		require.EqualValues(t, 2, sends.Load())
	})
}

// A reservation is abandoned under AtMostOnce alone: otherwise its store says
// when it ends, and it may be that of a process with a longer lease.
func TestFoundTheSameMessageInFlightForLongerThanLease(t *testing.T) {
	throughDoors(t, func(t *testing.T, d door) {
		var sends atomic.Int64
		send := d.open(t, idemmail.Options{Store: held{newShelf().store, func(fingerprint string) *idemmail.Record {
			return &idemmail.Record{State: idemmail.StatePending, Fingerprint: fingerprint, Age: doorLease + time.Second}
		}}}, counted(&sends, answers(nil, nil)))
		r, err := send(t.Context(), "k", "a")
		requireSendError(t, "k", r, err)
		require.ErrorIs(t, err, idemmail.ErrInFlight)
		require.NotErrorIs(t, err, idemmail.ErrAbandoned)
		require.True(t, r.Retryable)
		require.Zero(t, sends.Load())
	})
}

func TestFoundTheSameMessageDone(t *testing.T) {
	full := idemmail.Receipt{
		Transport:  "smtp",
		MessageID:  "m@example.org",
		ProviderID: "4Q1",
		Response:   "250 2.0.0 queued as 4Q1",
		Accepted:   []string{"a@example.org"},
		Rejected:   []idemmail.Rejection{{Address: "b@example.org", Reason: "no such user", Code: 550}},
		At:         time.Date(2026, 3, 1, 12, 0, 0, 42e6, time.UTC),
	}
	sent, unknown := full, full
	sent.Status = statusSent
	unknown.Status, unknown.Code, unknown.Category, unknown.Detail = statusUnknown, "smtp.lost", idemmail.CategoryNetwork, "connection lost"

	// C57: the first result, each time.
	t.Run("sent", func(t *testing.T) {
		throughDoorsAndStores(t, func(t *testing.T, d door, s *shelf) {
			var sends atomic.Int64
			send := d.open(t, idemmail.Options{Store: s.store}, counted(&sends, answers(&sent, nil)))
			r, err := send(t.Context(), "k", "a")
			require.NoError(t, err)
			require.Equal(t, &sent, r)
			want := sent
			want.Replayed = true
			for range 10 {
				r, err := send(t.Context(), "k", "a")
				require.NoError(t, err)
				require.Equal(t, &want, r)
			}
			require.EqualValues(t, 1, sends.Load())
			s.requireKept(t, "k", &sent, doorTTL)

			r, err = d.open(t, idemmail.Options{Store: s.store}, notToBeSent(t))(t.Context(), "k", "a") // another process
			require.NoError(t, err)
			require.Equal(t, &want, r)
		})
	})

	t.Run("unknown", func(t *testing.T) {
		throughDoorsAndStores(t, func(t *testing.T, d door, s *shelf) {
			var sends atomic.Int64
			send := d.open(t, idemmail.Options{Store: s.store}, counted(&sends, answers(&unknown, errMaybe)))
			_, err := send(t.Context(), "k", "a")
			require.ErrorIs(t, err, errMaybe)
			want := unknown
			want.Replayed = true
			for range 10 {
				r, err := send(t.Context(), "k", "a")
				e := requireSendError(t, "k", r, err)
				require.NoError(t, e.Err, "the first cause is not kept")
				require.Equal(t, &want, r)
			}
			require.EqualValues(t, 1, sends.Load())
		})
	})

	for code, sentinel := range sentinels {
		t.Run("unknown, of code "+code, func(t *testing.T) {
			throughDoors(t, func(t *testing.T, d door) {
				send := d.open(t, idemmail.Options{Store: holdsDone(&idemmail.Receipt{Status: statusUnknown, Code: code})}, notToBeSent(t))
				r, err := send(t.Context(), "k", "a")
				requireSendError(t, "k", r, err)
				require.True(t, r.Replayed)
				require.ErrorIs(t, err, sentinel)
			})
		})
	}

	// This version keeps none, but answers one that is kept.
	t.Run("failed", func(t *testing.T) {
		throughDoors(t, func(t *testing.T, d door) {
			send := d.open(t, idemmail.Options{Store: holdsDone(&idemmail.Receipt{Status: statusFailed, Code: "smtp.refused", Retryable: true})}, notToBeSent(t))
			r, err := send(t.Context(), "k", "a")
			requireSendError(t, "k", r, err)
			require.Equal(t, &idemmail.Receipt{Status: statusFailed, Code: "smtp.refused", Retryable: true, Replayed: true}, r)
		})
	})
}

// sentinels are the errors that stand for codes.
var sentinels = map[string]error{
	idemmail.CodeInFlight:      idemmail.ErrInFlight,
	idemmail.CodeKeyReused:     idemmail.ErrKeyReused,
	idemmail.CodeInvalidKey:    idemmail.ErrInvalidKey,
	idemmail.CodeNotBegun:      idemmail.ErrNotBegun,
	idemmail.CodeAborted:       idemmail.ErrAborted,
	idemmail.CodeAbandoned:     idemmail.ErrAbandoned,
	idemmail.CodePanicked:      idemmail.ErrPanicked,
	idemmail.CodeStoreFailed:   idemmail.ErrStoreFailed,
	idemmail.CodeBatchMismatch: idemmail.ErrBatchMismatch,
}

func TestFoundABadRecord(t *testing.T) {
	record := func(change func(*idemmail.Record)) func(string) *idemmail.Record {
		return func(fingerprint string) *idemmail.Record {
			r := &idemmail.Record{State: idemmail.StateDone, Fingerprint: fingerprint, Receipt: receiptOf(statusSent)}
			change(r)
			return r
		}
	}
	for name, record := range map[string]func(string) *idemmail.Record{
		"done without a receipt":       record(func(r *idemmail.Record) { r.Receipt = nil }),
		"of a state unknown here":      record(func(r *idemmail.Record) { r.State = "parked" }),
		"of no state":                  record(func(r *idemmail.Record) { r.State = "" }),
		"done, of a status unknown":    record(func(r *idemmail.Record) { r.Receipt.Status = "queued" }),
		"done, of the empty status":    record(func(r *idemmail.Record) { r.Receipt.Status = "" }),
		"of a bad state, of another":   record(func(r *idemmail.Record) { r.State, r.Fingerprint = "parked", "c:other" }),
		"of no state, without receipt": record(func(r *idemmail.Record) { *r = idemmail.Record{} }),
	} {
		t.Run(name, func(t *testing.T) {
			throughDoors(t, func(t *testing.T, d door) {
				for _, failOpen := range []bool{false, true} {
					events := new(eventLog)
					options := idemmail.Options{Store: held{newShelf().store, record}, FailOpen: failOpen, Observe: events.observe}
					r, err := d.open(t, options, notToBeSent(t))(t.Context(), "k", "a")
					requireSendError(t, "k", r, err)
					require.Equal(t, statusFailed, r.Status)
					require.Equal(t, idemmail.CodeStoreFailed, r.Code)
					require.Equal(t, idemmail.CategoryUnknown, r.Category)
					require.True(t, r.Retryable)
					require.False(t, r.Replayed)
					require.ErrorIs(t, err, idemmail.ErrStoreFailed)
					require.ErrorIs(t, err, idemmail.ErrBadRecord)
					require.Equal(t, []idemmail.EventKind{idemmail.EventStoreFailed, idemmail.EventFailed}, events.kinds("k"))
				}
			})
		})
	}

	t.Run("that the store found", func(t *testing.T) {
		throughDoors(t, func(t *testing.T, d door) {
			for _, failOpen := range []bool{false, true} {
				options := idemmail.Options{Store: failsToReserve{newShelf().store, fmt.Errorf("%w: WRONGTYPE", idemmail.ErrBadRecord)}, FailOpen: failOpen}
				r, err := d.open(t, options, notToBeSent(t))(t.Context(), "k", "a")
				requireSendError(t, "k", r, err)
				require.Equal(t, statusFailed, r.Status)
				require.ErrorIs(t, err, idemmail.ErrStoreFailed)
				require.ErrorIs(t, err, idemmail.ErrBadRecord)
			}
		})
	})

	// The fingerprint is asked before what is wrong with the receipt.
	t.Run("another message's, done without a receipt", func(t *testing.T) {
		throughDoors(t, func(t *testing.T, d door) {
			other := record(func(r *idemmail.Record) { r.Receipt = nil })
			store := held{newShelf().store, func(string) *idemmail.Record { return other("1:aa") }}
			if d.name == "Guard.Do" {
				store.record = func(string) *idemmail.Record { return other("c:b") }
			}
			_, err := d.open(t, idemmail.Options{Store: store}, notToBeSent(t))(t.Context(), "k", "a")
			require.ErrorIs(t, err, idemmail.ErrKeyReused)
		})
	})
}
