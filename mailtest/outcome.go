package mailtest

import (
	"context"
	"errors"
	"slices"

	"github.com/idemmail/idemmail"
)

// What Failed and Unknown answer where they are given no error.
var (
	ErrRefused = errors.New("mailtest: message refused")
	ErrLost    = errors.New("mailtest: connection lost after the message was handed over")
)

// An Outcome is what becomes of a message. The zero value is [Sent]. One
// outcome may be used for many sends.
type Outcome struct {
	answer func(ctx context.Context, s sending) (*idemmail.Receipt, error)
}

// of lets the outcome come true.
func (o Outcome) of(ctx context.Context, s sending) (*idemmail.Receipt, error) {
	if o.answer == nil {
		return s.receipt(idemmail.StatusSent), nil
	}
	return o.answer(ctx, s)
}

// Sent: the server took the message. The receipt's ProviderID is the number of
// the send, from 1, so that a replayed receipt tells which send it is of.
func Sent() Outcome { return Outcome{} }

// Failed: the server did not take the message, which is safe to send again.
// The error is err, nil meaning ErrRefused, marked with [idemmail.NotSent].
func Failed(err error) Outcome {
	if err == nil {
		err = ErrRefused
	}
	return Outcome{answer: func(_ context.Context, s sending) (*idemmail.Receipt, error) {
		return s.receipt(idemmail.StatusFailed), idemmail.NotSent(err)
	}}
}

// Unknown: the server may have taken the message. The error is err, nil
// meaning ErrLost, marked with [idemmail.MayBeSent].
func Unknown(err error) Outcome {
	if err == nil {
		err = ErrLost
	}
	return Outcome{answer: func(_ context.Context, s sending) (*idemmail.Receipt, error) {
		return s.receipt(idemmail.StatusUnknown), idemmail.MayBeSent(err)
	}}
}

// Hang: the server does not answer. The send lasts until its context ends, and
// the error is the context's.
func Hang() Outcome { return Sent().After(nil) }

// Panic: the transport panics with v.
func Panic(v any) Outcome {
	return Outcome{answer: func(context.Context, sending) (*idemmail.Receipt, error) { panic(v) }}
}

// Answer: the transport answers exactly this, or rather a copy of the receipt
// for each send.
func Answer(r *idemmail.Receipt, err error) Outcome {
	kept := copyReceipt(r)
	return Outcome{answer: func(context.Context, sending) (*idemmail.Receipt, error) {
		return copyReceipt(kept), err
	}}
}

// After lets the outcome come only once until is closed, or something was
// received from it, so that a test can do other things while a send is in
// flight. A context that ends before is answered with its error. A nil channel
// is never closed: then the outcome is [Hang].
func (o Outcome) After(until <-chan struct{}) Outcome {
	return Outcome{answer: func(ctx context.Context, s sending) (*idemmail.Receipt, error) {
		select {
		case <-until:
			return o.of(ctx, s)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}}
}

func copyReceipt(r *idemmail.Receipt) *idemmail.Receipt {
	if r == nil {
		return nil
	}
	c := *r
	c.Accepted, c.Rejected = slices.Clone(r.Accepted), slices.Clone(r.Rejected)
	return &c
}
