package idemmail_test

import (
	"context"
	"errors"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
)

// requireNotBegun checks an answer to a send whose context ended too early.
func requireNotBegun(t testing.TB, r *idemmail.Receipt, err, ended error) {
	t.Helper()
	requireSendError(t, "k", r, err)
	require.Equal(t, statusFailed, r.Status)
	require.Equal(t, idemmail.CodeNotBegun, r.Code)
	require.Equal(t, idemmail.CategoryUnknown, r.Category)
	require.True(t, r.Retryable)
	require.False(t, r.Replayed)
	require.ErrorIs(t, err, idemmail.ErrNotBegun)
	require.ErrorIs(t, err, ended)
	require.NotErrorIs(t, err, idemmail.ErrStoreFailed)
}

func TestContextDoneBeforeTheReservation(t *testing.T) {
	for name, test := range map[string]struct {
		ctx   func(context.Context) (context.Context, context.CancelFunc)
		ended error
	}{
		"cancelled": {func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancelCause(ctx)
			cancel(errors.New("client hung up"))
			return ctx, func() {}
		}, context.Canceled},
		"past its deadline": {func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithDeadline(ctx, time.Now().Add(-time.Second))
		}, context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			throughDoors(t, func(t *testing.T, d door) {
				events := new(eventLog)
				ctx, cancel := test.ctx(t.Context())
				defer cancel()
				send := d.open(t, idemmail.Options{Store: notToBeCalled{t}, Observe: events.observe}, notToBeSent(t))
				r, err := send(ctx, "k", "a")
				requireNotBegun(t, r, err, test.ended)
				require.Equal(t, []idemmail.EventKind{idemmail.EventFailed}, events.kinds("k"))
			})
		})
	}
}

// What the store answers while the context ends does not count: a key that was
// taken is freed, and neither a record nor an error is the answer.
func TestContextDoneBetweenReservationAndSend(t *testing.T) {
	for name, answer := range map[string]func(*endingStore){
		"the key was free": func(*endingStore) {},
		"the key was held": func(s *endingStore) {
			s.held = &idemmail.Record{State: idemmail.StateDone, Receipt: receiptOf(statusSent)}
		},
		"the key was held by a bad record":      func(s *endingStore) { s.held = &idemmail.Record{} },
		"the reserve failed":                    func(s *endingStore) { s.err = errors.New("connection refused") },
		"the reserve failed with the context":   func(s *endingStore) { s.err = context.Canceled },
		"the reserve failed on a bad record":    func(s *endingStore) { s.err = idemmail.ErrBadRecord },
		"the reserve answered nothing":          func(s *endingStore) { s.nothing = true },
		"the reserve failed though it reserved": func(s *endingStore) { s.err, s.taken = errors.New("lost answer"), true },
	} {
		t.Run(name, func(t *testing.T) {
			throughDoors(t, func(t *testing.T, d door) {
				for _, failOpen := range []bool{false, true} {
					shelf := newShelf()
					ctx, cancel := context.WithCancel(t.Context())
					store := &endingStore{MemStore: shelf.mem, end: cancel}
					answer(store)
					events := new(eventLog)
					send := d.open(t, idemmail.Options{Store: store, FailOpen: failOpen, Observe: events.observe}, notToBeSent(t))
					r, err := send(ctx, "k", "a")
					requireNotBegun(t, r, err, context.Canceled)
					require.Equal(t, []idemmail.EventKind{idemmail.EventFailed}, events.kinds("k"))
					shelf.requireFree(t, "k")
					if d.name == "SendMany together" {
						require.Zero(t, shelf.mem.Len(), "the others' keys were not freed")
					}
				}
			})
		})
	}
}

// A store's connection that has the context's deadline may fail a moment before
// the context ends: that is not the store's failure, and FailOpen does not go
// past it.
func TestDeadlinePassedThoughTheContextHasNotEnded(t *testing.T) {
	for name, err := range map[string]error{"the reserve failed": os.ErrDeadlineExceeded, "the key was free": nil} {
		t.Run(name, func(t *testing.T) {
			throughDoors(t, func(t *testing.T, d door) {
				synctest.Test(t, func(t *testing.T) { // where the time is the deadline exactly
					for _, failOpen := range []bool{false, true} {
						shelf := newShelf()
						ctx := &tardyContext{Context: t.Context(), deadline: time.Now().Add(time.Hour)}
						store := &endingStore{MemStore: shelf.mem, end: func() { ctx.deadline = time.Now() }, err: err}
						send := d.open(t, idemmail.Options{Store: store, FailOpen: failOpen}, notToBeSent(t))
						r, err := send(ctx, "k", "a")
						requireNotBegun(t, r, err, context.DeadlineExceeded)
						shelf.requireFree(t, "k")
					}
				})
			})
		})
	}
}

// tardyContext does not end when its deadline passes, as a busy machine's may.
type tardyContext struct {
	context.Context
	deadline time.Time
}

func (c *tardyContext) Deadline() (time.Time, bool) { return c.deadline, true }

// endingStore ends its caller's context as it reserves the key k.
type endingStore struct {
	*idemmail.MemStore
	end     func()
	held    *idemmail.Record
	err     error
	taken   bool // the key, though err is answered
	nothing bool
}

func (s *endingStore) Reserve(ctx context.Context, key, fingerprint string, lease time.Duration) (string, *idemmail.Record, error) {
	if key != doorNamespace+":k" {
		return s.MemStore.Reserve(ctx, key, fingerprint, lease)
	}
	defer s.end()
	switch {
	case s.nothing:
		return "", nil, nil
	case s.held != nil:
		return "", s.held, nil
	case s.err != nil && !s.taken:
		return "", nil, s.err
	}
	token, _, _ := s.MemStore.Reserve(ctx, key, fingerprint, lease)
	return token, nil, s.err
}

func (s *endingStore) ReserveMany(ctx context.Context, reqs []idemmail.ReserveRequest) []idemmail.ReserveResult {
	results := make([]idemmail.ReserveResult, len(reqs))
	for i, r := range reqs { // the key k is not the last
		results[i].Token, results[i].Held, results[i].Err = s.Reserve(context.WithoutCancel(ctx), r.Key, r.Fingerprint, r.Lease)
	}
	return results
}

// A message without a key is handed on, whatever its context.
func TestContextDoneWithoutAKey(t *testing.T) {
	throughDoors(t, func(t *testing.T, d door) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		var sends atomic.Int64
		_, err := d.open(t, idemmail.Options{Store: notToBeCalled{t}}, counted(&sends, answers(nil, nil)))(ctx, "", "a")
		require.NoError(t, err)
		require.EqualValues(t, 1, sends.Load())
	})
}

// notToBeCalled is a store that nothing may reach, but for a batch's other
// messages.
type notToBeCalled struct{ t testing.TB }

func (s notToBeCalled) Reserve(_ context.Context, key, _ string, _ time.Duration) (string, *idemmail.Record, error) {
	s.called("reserved", key)
	return "token", nil, nil
}

func (s notToBeCalled) Complete(_ context.Context, key, _ string, _ idemmail.Record, _ time.Duration) error {
	s.called("completed", key)
	return nil
}

func (s notToBeCalled) Release(_ context.Context, key, _ string) error {
	s.called("released", key)
	return nil
}

func (s notToBeCalled) called(what, key string) {
	if len(key) < len(doorNamespace+":"+bystander) || key[:len(doorNamespace+":"+bystander)] != doorNamespace+":"+bystander {
		s.t.Errorf("%s %q", what, key)
	}
}
