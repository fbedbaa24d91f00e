package idemmail_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
)

// What a second decorator beneath says of its own key.
func TestInFlightFromTheWrappedTransport(t *testing.T) {
	inner := &idemmail.SendError{Key: "k", Receipt: &idemmail.Receipt{Status: statusUnknown, Code: idemmail.CodeInFlight}}
	for name, test := range map[string]struct {
		receipt *idemmail.Receipt
		err     error
	}{
		"bare":                          {nil, idemmail.ErrInFlight},
		"wrapped":                       {nil, fmt.Errorf("pool: %w", fmt.Errorf("retry: %w", idemmail.ErrInFlight))},
		"marked as perhaps sent":        {nil, idemmail.MayBeSent(idemmail.ErrInFlight)},
		"a SendError":                   {inner.Receipt, inner},
		"a wrapped SendError":           {nil, fmt.Errorf("retry: %w", inner)},
		"beside a failed receipt":       {receiptOf(statusFailed), idemmail.ErrInFlight},
		"beside a receipt of no status": {&idemmail.Receipt{Code: "pool.busy"}, idemmail.ErrInFlight},
	} {
		t.Run(name, func(t *testing.T) {
			throughDoorsAndStores(t, func(t *testing.T, d door, s *shelf) {
				var sends atomic.Int64
				events := new(eventLog)
				send := d.open(t, idemmail.Options{
					Store:    s.store,
					Observe:  events.observe,
					Classify: func(error) idemmail.Delivery { t.Error("it is looked for before Classify"); return 0 },
				}, counted(&sends, answers(test.receipt, test.err)))
				r, err := send(t.Context(), "k", "a")
				e := requireSendError(t, "k", r, err)
				require.Equal(t, idemmail.ErrInFlight, e.Err, "the cause is ErrInFlight alone")
				require.Equal(t, statusFailed, r.Status)
				require.Equal(t, idemmail.CodeInFlight, r.Code)
				require.Equal(t, idemmail.CategoryUnknown, r.Category)
				require.True(t, r.Retryable)
				require.ErrorIs(t, err, idemmail.ErrInFlight)
				require.Equal(t, []idemmail.EventKind{idemmail.EventFailed}, events.kinds("k"))
				s.requireFree(t, "k")

				_, err = send(t.Context(), "k", "a")
				require.ErrorIs(t, err, idemmail.ErrInFlight)
				require.EqualValues(t, 2, sends.Load(), "this call took nothing")
			})
		})
	}

	// The table of the witnesses decides where something else was said too.
	for name, test := range map[string]struct {
		receipt *idemmail.Receipt
		err     error
		want    idemmail.Status
	}{
		"joined with an error that says nothing":     {nil, errors.Join(errVague, idemmail.ErrInFlight), statusFailed},
		"joined with an error of a lost message":     {nil, errors.Join(errMaybe, idemmail.ErrInFlight), statusUnknown},
		"joined with a SendError's, which may be so": {nil, errors.Join(inner, errVague), statusUnknown},
		"beside a sent receipt":                      {receiptOf(statusSent), idemmail.ErrInFlight, statusUnknown},
		"beside accepted recipients":                 {acceptedReceipt(statusFailed), idemmail.ErrInFlight, statusUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			throughDoors(t, func(t *testing.T, d door) {
				r, err := d.open(t, idemmail.Options{}, answers(test.receipt, test.err))(t.Context(), "k", "a")
				requireSendError(t, "k", r, err)
				require.Equal(t, test.want, r.Status)
				require.Empty(t, r.Code)
			})
		})
	}
}

// A SendError that somebody else made, without a receipt, is an error like any
// other of which nothing is known.
func TestSendErrorWithoutAReceiptFromTheWrappedTransport(t *testing.T) {
	throughDoorsAndStores(t, func(t *testing.T, d door, s *shelf) {
		r, err := d.open(t, idemmail.Options{Store: s.store}, answers(nil, &idemmail.SendError{Err: errVague}))(t.Context(), "k", "a")
		requireSendError(t, "k", r, err)
		require.ErrorIs(t, err, errVague)
		require.Equal(t, statusUnknown, r.Status)
		require.Empty(t, r.Code)
		s.requireKept(t, "k", r, doorTTL)
	})
}

// Two decorators with namespaces of their own over one store: where the inner
// key is in flight, the outer one is free again.
func TestTwoDecorators(t *testing.T) {
	s := newShelf()
	begun, end := make(chan struct{}), make(chan struct{})
	inner := openTransport(t, idemmail.TransportFunc(func(context.Context, *idemmail.Message) (*idemmail.Receipt, error) {
		close(begun)
		<-end
		return nil, nil
	}), idemmail.Options{Store: s.store, Namespace: "inner"})
	outer := openTransport(t, inner, idemmail.Options{Store: s.store})

	done := make(chan error)
	go func() {
		_, err := inner.Send(t.Context(), doorMessage("k", "a"))
		done <- err
	}()
	<-begun
	r, err := outer.Send(t.Context(), doorMessage("k", "a"))
	requireSendError(t, "k", r, err)
	require.Equal(t, statusFailed, r.Status)
	require.ErrorIs(t, err, idemmail.ErrInFlight)
	s.requireFree(t, "k")
	close(end)
	require.NoError(t, <-done)

	r, err = outer.Send(t.Context(), doorMessage("k", "a"))
	require.NoError(t, err)
	require.Equal(t, statusSent, r.Status)
	_, err = outer.Send(t.Context(), doorMessage("k", "b"))
	require.ErrorIs(t, err, idemmail.ErrKeyReused)
}

// A decorator has every method; what counts is what it can pass on. Around one
// whose messages go one after another, each key is reserved just before its
// own send, and raw messages are none of either's.
func TestDecoratorsAroundATransportThatCanOnlySend(t *testing.T) {
	s := newShelf()
	inner := openTransport(t, idemmail.TransportFunc(func(_ context.Context, m *idemmail.Message) (*idemmail.Receipt, error) {
		pending := 0
		for _, key := range []string{"1", "2", "3"} {
			if e := s.entry(t, key); e != nil && e.Record.State == idemmail.StatePending {
				require.Equal(t, m.IdempotencyKey, key)
				pending++
			}
		}
		require.Equal(t, 1, pending)
		return nil, nil
	}), idemmail.Options{Namespace: "inner"})
	outer := openTransport(t, inner, idemmail.Options{Store: s.store})
	for _, r := range outer.SendMany(t.Context(), batchOf("1:a", "2:b", "3:c")) {
		requireFirst(t, r.Receipt, r.Err)
	}
	r, err := outer.SendRaw(t.Context(), &idemmail.RawMessage{IdempotencyKey: "raw"})
	require.Nil(t, r)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	s.requireFree(t, "raw")
}

// C52: outside retry, so that one reservation serves all attempts.
func TestRetryBeneath(t *testing.T) {
	s := newShelf()
	var sends atomic.Int64
	retry := retrying{Transport: idemmail.TransportFunc(func(context.Context, *idemmail.Message) (*idemmail.Receipt, error) {
		s.requirePending(t, "k", doorLease)
		if sends.Add(1) < 3 {
			return nil, replyError(421)
		}
		return nil, nil
	})}
	r, err := openTransport(t, retry, idemmail.Options{Store: s.store}).Send(t.Context(), doorMessage("k", "a"))
	requireFirst(t, r, err)
	require.EqualValues(t, 3, sends.Load())
}

// C52: a retry outside repeats what was not delivered, and no more.
func TestRetryOutside(t *testing.T) {
	var sends atomic.Int64
	guarded := openTransport(t, idemmail.TransportFunc(func(context.Context, *idemmail.Message) (*idemmail.Receipt, error) {
		if sends.Add(1) < 3 {
			return nil, replyError(421)
		}
		return nil, errMaybe
	}), idemmail.Options{})
	_, err := retrying{Transport: guarded}.Send(t.Context(), doorMessage("k", "a"))
	require.ErrorIs(t, err, idemmail.ErrDeliveryUnknown)
	require.EqualValues(t, 3, sends.Load())
}

// retrying is a retry decorator: five attempts at what was not delivered.
type retrying struct{ idemmail.Transport }

func (r retrying) Unwrap() idemmail.Transport { return r.Transport }

func (r retrying) Send(ctx context.Context, m *idemmail.Message) (receipt *idemmail.Receipt, err error) {
	for range 5 {
		receipt, err = r.Transport.Send(ctx, m)
		if err == nil || idemmail.ClassifyError(err) == idemmail.DeliveryUnknown {
			break
		}
	}
	return receipt, err
}

// New refuses a chain in which a message would meet its own reservation.
func TestNewRefusesTheSameKeysTwice(t *testing.T) {
	plain := idemmail.TransportFunc(func(context.Context, *idemmail.Message) (*idemmail.Receipt, error) { return nil, nil })
	wrap := func(next idemmail.Transport, store idemmail.Store, namespace string) idemmail.Transport {
		return openTransport(t, next, idemmail.Options{Store: store, Namespace: namespace})
	}
	one, other := newShelf().store, newShelf().store
	for name, test := range map[string]struct {
		next    idemmail.Transport
		store   idemmail.Store
		refused bool
	}{
		"directly beneath":                   {wrap(plain, one, "a"), one, true},
		"beneath a retry":                    {retrying{wrap(plain, one, "a")}, one, true},
		"beneath two of them":                {retrying{retrying{wrap(plain, one, "a")}}, one, true},
		"beneath a decorator of other keys":  {wrap(wrap(plain, one, "a"), one, "b"), one, true},
		"another namespace":                  {wrap(plain, one, "b"), one, false},
		"another store":                      {wrap(plain, other, "a"), one, false},
		"a store of its own each":            {wrap(plain, nil, "a"), nil, false},
		"none beneath":                       {retrying{plain}, one, false},
		"a store that cannot be compared":    {wrap(plain, sliceStore{Store: one}, "a"), sliceStore{Store: one}, false},
		"a decorator that wraps nothing yet": {retrying{nil}, one, false},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := idemmail.New(test.next, idemmail.Options{Store: test.store, Namespace: "a"})
			if !test.refused {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, `"a"`, "the namespace")
			require.ErrorContains(t, err, "same store")
		})
	}

	t.Run("a chain without an end", func(t *testing.T) {
		endless := &retrying{}
		endless.Transport = endless
		_, err := idemmail.New(endless, idemmail.Options{})
		require.ErrorContains(t, err, "Unwrap")
	})
	t.Run("the namespace of an ID", func(t *testing.T) {
		named := namedTransport{plain, "smtp"}
		inner, err := idemmail.New(named, idemmail.Options{Store: one})
		require.NoError(t, err)
		_, err = idemmail.New(inner, idemmail.Options{Store: one})
		require.ErrorContains(t, err, `"smtp"`)
		_, err = idemmail.New(inner, idemmail.Options{Store: one, Namespace: "outer"})
		require.NoError(t, err)
	})
}

// sliceStore is of a type whose values cannot be compared.
type sliceStore struct {
	idemmail.Store
	_ []int
}

// namedTransport has an ID.
type namedTransport struct {
	idemmail.Transport
	id string
}

func (n namedTransport) ID() string { return n.id }
