package main

import (
	"context"
	"errors"
	"io"
	"net/textproto"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/sony/gobreaker/v2"
	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
)

// An answer is what a transport says.
type answer struct {
	name    string
	receipt *idemmail.Receipt
	err     error
}

var (
	refusal = &textproto.Error{Code: 451, Msg: "busy"}
	failed  = &idemmail.Receipt{Status: idemmail.StatusFailed, Retryable: true}
	never   = &idemmail.Receipt{Status: idemmail.StatusFailed}
)

// goesOn are the answers after which a message may go again.
var goesOn = []answer{
	{"a refusal", failed, refusal},
	{"an error that is marked", failed, idemmail.NotSent(io.EOF)},
	{"an in-flight answer of a decorator beneath", failed, &idemmail.SendError{Receipt: failed, Err: idemmail.ErrInFlight}},
}

// final are the answers after which it must not.
var final = []answer{
	{"sent", &idemmail.Receipt{Status: idemmail.StatusSent}, nil},
	{"sent, without a receipt", nil, nil},
	{"a lost connection", failed, io.ErrUnexpectedEOF},
	{"a timeout", failed, context.DeadlineExceeded},
	{"an error that does not say", failed, errors.New("odd")},
	{"an error that is marked", failed, idemmail.MayBeSent(refusal)},
	{"two errors of which one does not say", failed, errors.Join(refusal, errors.New("odd"))},
	{"a refusal, but unknown", &idemmail.Receipt{Status: idemmail.StatusUnknown, Retryable: true}, refusal},
	{"a refusal, but sent", &idemmail.Receipt{Status: idemmail.StatusSent, Retryable: true}, refusal},
	{"a refusal, but recipients were accepted", &idemmail.Receipt{Status: idemmail.StatusFailed, Retryable: true, Accepted: []string{"a@example.org"}}, refusal},
	{"a refusal, without a receipt", nil, refusal},
	{"failed, without an error", failed, nil},
}

// counted answers the same each time, and counts.
func counted(n *int, a answer) idemmail.Transport {
	return idemmail.TransportFunc(func(context.Context, *idemmail.Message) (*idemmail.Receipt, error) {
		*n++
		return a.receipt, a.err
	})
}

func atOnce() backoff.BackOff { return &backoff.ZeroBackOff{} }

func TestRetry(t *testing.T) {
	for _, a := range goesOn {
		n := 0
		receipt, err := retry{counted(&n, a), 3, atOnce}.Send(t.Context(), message("order/1", "confirmation"))
		require.Equal(t, 3, n, a.name)
		require.Equal(t, a.err, err, a.name)
		require.Equal(t, a.receipt, receipt, a.name)
	}
	for _, a := range append(final, answer{"a refusal for good", never, refusal}) {
		n := 0
		receipt, err := retry{counted(&n, a), 3, atOnce}.Send(t.Context(), message("order/1", "confirmation"))
		require.Equal(t, 1, n, a.name)
		require.Equal(t, a.err, err, a.name)
		require.Equal(t, a.receipt, receipt, a.name)
	}
}

// A context that ends during a pause leaves a definite failure definite.
func TestRetryContextEndsInPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		n := 0
		slowly := func() backoff.BackOff { return backoff.NewConstantBackOff(10 * time.Minute) }
		_, err := retry{counted(&n, goesOn[0]), 3, slowly}.Send(ctx, message("order/1", "confirmation"))
		require.Equal(t, 1, n)
		require.Error(t, ctx.Err())
		require.Equal(t, idemmail.NotDelivered, idemmail.ClassifyError(err))
	})
}

func TestPool(t *testing.T) {
	sent := answer{"sent", &idemmail.Receipt{Status: idemmail.StatusSent}, nil}
	for _, a := range append(goesOn, answer{"a refusal for good", never, refusal}) {
		first, second := 0, 0
		receipt, err := pool{counted(&first, a), counted(&second, sent)}.Send(t.Context(), message("order/1", "confirmation"))
		require.NoError(t, err, a.name)
		require.Equal(t, sent.receipt, receipt, a.name)
		require.Equal(t, []int{1, 1}, []int{first, second}, a.name)
	}
	for _, a := range final {
		first, second := 0, 0
		receipt, err := pool{counted(&first, a), counted(&second, sent)}.Send(t.Context(), message("order/1", "confirmation"))
		require.ErrorIs(t, err, a.err, a.name)
		require.Equal(t, a.receipt, receipt, a.name)
		require.Equal(t, []int{1, 0}, []int{first, second}, a.name)
	}
}

func TestPoolFails(t *testing.T) {
	n := 0
	later, forGood := answer{receipt: failed, err: refusal}, answer{receipt: never, err: idemmail.NotSent(errors.New("no"))}
	for _, p := range []pool{
		{counted(&n, later), counted(&n, forGood)},
		{counted(&n, forGood), counted(&n, later)},
	} {
		receipt, err := p.Send(t.Context(), message("order/1", "confirmation"))
		require.True(t, receipt.Retryable, "one of them may take it later")
		require.Equal(t, idemmail.NotDelivered, idemmail.ClassifyError(err))
		require.ErrorIs(t, err, later.err)
		require.ErrorIs(t, err, forGood.err)
	}

	lost := answer{receipt: &idemmail.Receipt{Status: idemmail.StatusUnknown}, err: io.EOF}
	receipt, err := pool{counted(&n, later), counted(&n, lost)}.Send(t.Context(), message("order/1", "confirmation"))
	require.Equal(t, lost.receipt, receipt)
	require.Equal(t, idemmail.DeliveryUnknown, idemmail.ClassifyError(err))

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	n = 0
	_, err = pool{counted(&n, later), counted(&n, later)}.Send(ctx, message("order/1", "confirmation"))
	require.ErrorIs(t, err, refusal)
	require.Equal(t, 1, n, "the caller has gone")
}

// A circuit that is half open is closed by a message that a provider took, and
// by nothing that no provider was asked about.
func TestCircuitHalfOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newProvider("A"), newProvider("B")
		mailer, err := newMailer(a, b)
		require.NoError(t, err)
		send := func(key, subject string, script ...does) error {
			a.script[key], b.script[key] = script, script
			_, err := mailer.Send(t.Context(), message(key, subject))
			return err
		}
		require.NoError(t, send("order/1", "confirmation", takes))
		require.ErrorIs(t, send("order/2", "confirmation", loses), idemmail.ErrDeliveryUnknown)
		for _, key := range []string{"order/3", "order/4"} {
			require.Error(t, send(key, "confirmation", busy))
		}
		require.Equal(t, gobreaker.StateOpen, mailer.breaker.State())

		err = send("order/5", "confirmation", takes)
		require.ErrorIs(t, err, gobreaker.ErrOpenState)
		require.Equal(t, idemmail.NotDelivered, idemmail.ClassifyError(err))

		time.Sleep(time.Minute + time.Second)
		require.Equal(t, gobreaker.StateHalfOpen, mailer.breaker.State())
		ended, end := context.WithCancel(t.Context())
		end()
		for range 10 {
			require.NoError(t, send("order/1", "confirmation"))
			require.ErrorIs(t, send("order/1", "reminder"), idemmail.ErrKeyReused)
			require.ErrorIs(t, send("order/2", "confirmation"), idemmail.ErrDeliveryUnknown)
			_, err := mailer.Send(ended, message("order/6", "confirmation"))
			require.ErrorIs(t, err, idemmail.ErrNotBegun)
		}
		require.Equal(t, gobreaker.StateHalfOpen, mailer.breaker.State())
		require.NoError(t, send("order/5", "confirmation", takes))
		require.Equal(t, gobreaker.StateClosed, mailer.breaker.State())
	})
}

// What says that a provider is not well opens the circuit; what says that it
// does not like a message does not.
func TestBlame(t *testing.T) {
	for _, c := range []struct {
		receipt *idemmail.Receipt
		err     error
		blamed  error
	}{
		{nil, nil, nil},
		{nil, io.EOF, io.EOF},
		{&idemmail.Receipt{Status: idemmail.StatusSent}, nil, nil},
		{&idemmail.Receipt{Status: idemmail.StatusSent, Replayed: true}, nil, errNoProvider},
		{&idemmail.Receipt{Status: idemmail.StatusUnknown, Category: idemmail.CategoryNetwork}, io.EOF, io.EOF},
		{&idemmail.Receipt{Status: idemmail.StatusUnknown, Category: idemmail.CategoryProvider}, io.EOF, io.EOF},
		{&idemmail.Receipt{Status: idemmail.StatusUnknown, Category: idemmail.CategoryNetwork, Replayed: true}, io.EOF, errNoProvider},
		{&idemmail.Receipt{Status: idemmail.StatusFailed, Category: idemmail.CategoryAuth}, io.EOF, io.EOF},
		{&idemmail.Receipt{Status: idemmail.StatusFailed, Category: idemmail.CategoryProvider}, io.EOF, nil},
		{&idemmail.Receipt{Status: idemmail.StatusFailed, Category: idemmail.CategoryProvider, Retryable: true}, io.EOF, io.EOF},
		{&idemmail.Receipt{Status: idemmail.StatusFailed, Category: idemmail.CategoryValidation}, io.EOF, errNoProvider},
		{&idemmail.Receipt{Status: idemmail.StatusFailed, Category: idemmail.CategoryUnknown, Retryable: true}, io.EOF, errNoProvider},
	} {
		require.Equal(t, c.blamed, blame(c.receipt, c.err), "%+v %v", c.receipt, c.err)
	}
}
