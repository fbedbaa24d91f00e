package idemmail_test

import (
	"context"
	"errors"
	"net/http"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
)

// C7: a panic goes on, and leaves the key neither pending nor free.
func TestPanic(t *testing.T) {
	mine := errors.New("index out of range")
	for name, test := range map[string]struct {
		do       work
		classify func(error) idemmail.Delivery
		panics   any // nil: the goroutine ends instead
	}{
		"panic in the transport":     {do: func(context.Context) (*idemmail.Receipt, error) { panic(mine) }, panics: mine},
		"panic of another kind":      {do: func(context.Context) (*idemmail.Receipt, error) { panic(http.ErrAbortHandler) }, panics: http.ErrAbortHandler},
		"Goexit in the transport":    {do: func(context.Context) (*idemmail.Receipt, error) { runtime.Goexit(); return nil, nil }},
		"panic in Classify after it": {do: answers(nil, errVague), classify: func(error) idemmail.Delivery { panic(mine) }, panics: mine},
		"Goexit in Classify":         {do: answers(nil, errVague), classify: func(error) idemmail.Delivery { runtime.Goexit(); return 0 }},
		"panic as the error is read": {do: answers(nil, brokenError{mine}), classify: func(error) idemmail.Delivery { return idemmail.NotDelivered }, panics: mine},
	} {
		t.Run(name, func(t *testing.T) {
			throughDoorsAndStores(t, func(t *testing.T, d door, s *shelf) {
				events := new(eventLog)
				var sends atomic.Int64
				send := d.open(t, idemmail.Options{Store: s.store, Classify: test.classify, Observe: events.observe}, counted(&sends, test.do))

				require.Equal(t, test.panics, panicOf(func() { _, _ = send(t.Context(), "k", "a") }))
				require.EqualValues(t, 1, sends.Load())
				require.Equal(t, []idemmail.EventKind{idemmail.EventUnknown}, events.kinds("k"))

				r, err := send(t.Context(), "k", "a")
				requireSendError(t, "k", r, err)
				require.ErrorIs(t, err, idemmail.ErrPanicked)
				require.True(t, r.Replayed)
				require.Equal(t, statusUnknown, r.Status)
				require.Equal(t, idemmail.CodePanicked, r.Code)
				require.Equal(t, idemmail.CategoryUnknown, r.Category)
				require.False(t, r.Retryable)
				require.NotEmpty(t, r.Detail)
				require.EqualValues(t, 1, sends.Load(), "sent again")
				s.requireKept(t, "k", r, doorTTL)
			})
		})
	}
}

func TestPanicUnderAtMostOnce(t *testing.T) {
	throughDoorsAndStores(t, func(t *testing.T, d door, s *shelf) {
		send := d.open(t, idemmail.Options{Store: s.store, AtMostOnce: true}, func(context.Context) (*idemmail.Receipt, error) { panic("lost") })
		require.Equal(t, "lost", panicOf(func() { _, _ = send(t.Context(), "k", "a") }))
		e := s.entry(t, "k")
		require.Equal(t, statusUnknown, e.Record.Receipt.Status)
		require.Zero(t, e.ExpiresAt, "kept for ever")
	})
}

// The caller has gone, and the transport panics about it.
func TestPanicWithADoneContext(t *testing.T) {
	throughDoorsAndStores(t, func(t *testing.T, d door, s *shelf) {
		ctx, cancel := context.WithCancel(t.Context())
		send := d.open(t, idemmail.Options{Store: s.store}, func(context.Context) (*idemmail.Receipt, error) {
			cancel()
			panic("lost")
		})
		require.Equal(t, "lost", panicOf(func() { _, _ = send(ctx, "k", "a") }))
		require.Equal(t, idemmail.CodePanicked, s.entry(t, "k").Record.Receipt.Code)
	})
}

// A message without a key is nobody's to settle.
func TestPanicWithoutAKey(t *testing.T) {
	throughDoors(t, func(t *testing.T, d door) {
		s := newShelf()
		send := d.open(t, idemmail.Options{Store: s.store}, func(context.Context) (*idemmail.Receipt, error) { panic("lost") })
		require.Equal(t, "lost", panicOf(func() { _, _ = send(t.Context(), "", "a") }))
		s.requireFree(t, "")
	})
}

// brokenError cannot say what it is.
type brokenError struct{ panics error }

func (e brokenError) Error() string { panic(e.panics) }

// panicOf runs f in a goroutine of its own and returns what it panicked with;
// nil where it returned, or ended its goroutine.
func panicOf(f func()) (value any) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() { value = recover() }()
		f()
	}()
	<-done
	return value
}
