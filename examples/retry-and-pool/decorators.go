package main

import (
	"context"
	"errors"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/sony/gobreaker/v2"

	"github.com/idemmail/idemmail"
)

// surelyNotSent reports whether the message certainly was not taken. Only then
// may it be sent again, or by another provider: both witnesses, the receipt and
// the error, have to say so.
func surelyNotSent(r *idemmail.Receipt, err error) bool {
	return idemmail.ClassifyError(err) == idemmail.NotDelivered &&
		r != nil && r.Status == idemmail.StatusFailed && len(r.Accepted) == 0
}

// retry sends again what surely was not sent and may go the next time.
//
// It stands beneath the IdempotencyTransport: all attempts are one send under
// one reservation, and an outcome that must not be repeated is kept. Outside,
// each attempt would be a send of its own. That does no harm, since an unknown
// outcome is answered from the store, but the key is free between the attempts.
type retry struct {
	next     idemmail.Transport
	attempts uint
	pause    func() backoff.BackOff // made anew for each message: it counts
}

func (t retry) Send(ctx context.Context, m *idemmail.Message) (*idemmail.Receipt, error) {
	var receipt *idemmail.Receipt
	var err error
	attempt := func() (struct{}, error) {
		receipt, err = t.next.Send(ctx, m)
		if err != nil && !(surelyNotSent(receipt, err) && receipt.Retryable) {
			return struct{}{}, backoff.Permanent(err)
		}
		return struct{}{}, err
	}
	// Why backoff gave up (tries, time, the end of ctx) says nothing about the
	// message. What became of it is what the last attempt has said: a context
	// that ends during a pause must not make a definite failure unknown.
	_, _ = backoff.Retry(ctx, attempt, backoff.WithBackOff(t.pause()), backoff.WithMaxTries(t.attempts))
	return receipt, err
}

// pool tries its transports in turn, and goes on to the next only where the
// message surely was not sent by those before.
//
// It stands beneath the IdempotencyTransport as well: the key belongs to the
// message, whichever provider takes it. With an IdempotencyTransport around
// each provider instead, each would have a key of its own, and a message that
// one of them may have sent would go by the other.
type pool []idemmail.Transport

func (p pool) Send(ctx context.Context, m *idemmail.Message) (*idemmail.Receipt, error) {
	var receipt *idemmail.Receipt
	var errs []error
	for _, next := range p {
		r, err := next.Send(ctx, m)
		if err == nil {
			return r, nil
		}
		errs = append(errs, err)
		if !surelyNotSent(r, err) {
			return r, errors.Join(errs...)
		}
		if receipt == nil || r.Retryable { // a "later" of one outweighs a "never" of another
			receipt = r
		}
		if ctx.Err() != nil {
			break
		}
	}
	return receipt, errors.Join(errs...)
}

// circuit stands outside of everything. While the providers fail, it opens,
// and messages fail at once.
type circuit struct {
	next    idemmail.Transport
	breaker *gobreaker.CircuitBreaker[struct{}]
}

// errNoProvider stands for an answer that came from no provider: from the
// store, or from a check.
var errNoProvider = errors.New("no provider was asked")

func newCircuit(next idemmail.Transport, failures uint32, open time.Duration) circuit {
	return circuit{next, gobreaker.NewCircuitBreaker[struct{}](gobreaker.Settings{
		Name:        "mail",
		Timeout:     open,
		ReadyToTrip: func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= failures },
		// Neither a failure nor a success: a circuit that is half open must
		// not close because a duplicate was answered from the store.
		IsExcluded: func(err error) bool { return errors.Is(err, errNoProvider) },
	})}
}

func (c circuit) Send(ctx context.Context, m *idemmail.Message) (*idemmail.Receipt, error) {
	var receipt *idemmail.Receipt
	var err error
	asked := false
	_, refused := c.breaker.Execute(func() (struct{}, error) {
		asked = true
		receipt, err = c.next.Send(ctx, m)
		return struct{}{}, blame(receipt, err)
	})
	if !asked {
		return &idemmail.Receipt{
			Status:    idemmail.StatusFailed,
			Code:      "circuit.open",
			Category:  idemmail.CategoryUnknown,
			Retryable: true,
		}, idemmail.NotSent(refused)
	}
	return receipt, err
}

// blame says what an answer tells about the providers: nil that they work,
// errNoProvider nothing, any other error that they do not.
func blame(receipt *idemmail.Receipt, err error) error {
	switch {
	case receipt != nil && receipt.Replayed:
		return errNoProvider // the receipt of an earlier send
	case err == nil, receipt == nil:
		return err
	}
	switch receipt.Category {
	case idemmail.CategoryValidation, idemmail.CategoryUnknown:
		// What this library decides by itself (a key in flight or reused, a
		// store that is down, a context that ended) has no other category.
		return errNoProvider
	case idemmail.CategoryProvider:
		if receipt.Status == idemmail.StatusFailed && !receipt.Retryable {
			return nil // it is well, and does not want this message
		}
	}
	return err
}
