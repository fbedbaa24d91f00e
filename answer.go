package idemmail

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// refuse answers a call with a receipt of the guard's own making. cause is the
// error's cause and may be nil.
func (g *Guard) refuse(c *call, code string, cause error) {
	r := &Receipt{Status: StatusFailed, Code: code, Category: CategoryUnknown}
	kind := EventFailed
	switch code {
	case CodeKeyReused:
		kind, r.Category = EventKeyReused, CategoryValidation
	case CodeInvalidKey:
		r.Category = CategoryValidation
	case CodeNotBegun, CodeStoreFailed:
		r.Retryable = true
	case CodeInFlight:
		kind, r.Status, r.Retryable = EventInFlight, StatusUnknown, true
	default: // abandoned, panicked, batch mismatch
		kind, r.Status = EventUnknown, StatusUnknown
	}
	if cause != nil {
		r.Detail = cause.Error()
	} else {
		r.Detail = sentinel(code).Error()
	}
	g.fill(c, r)
	c.answer(kind, r, cause)
}

// answerFrom answers a call from the record that holds its key. The record's
// receipt becomes the call's.
func (g *Guard) answerFrom(ctx context.Context, c *call, held *Record) {
	staleAfter := NoExpiry
	if g.options.AtMostOnce {
		staleAfter = g.options.Lease
	}
	switch judge(held, c.fingerprint, staleAfter) {
	case keyReused:
		g.refuse(c, CodeKeyReused, nil)
	case inFlight:
		g.refuse(c, CodeInFlight, nil)
	case abandoned:
		g.refuse(c, CodeAbandoned, nil)
	case replay:
		g.replay(c, held.Receipt, nil)
	default:
		err := describe(held)
		g.reportStore(ctx, c, EventStoreFailed, err)
		g.refuse(c, CodeStoreFailed, err)
	}
}

// replay answers a call with an earlier send's receipt, which becomes the
// call's, and, within a batch, its error.
func (g *Guard) replay(c *call, r *Receipt, first *SendError) {
	r.Replayed = true
	var cause error
	if first != nil {
		cause = first.Err
	}
	if g.options.RejectDuplicates && r.Status != StatusFailed {
		cause = ErrDuplicate
		if first != nil { // with the call's own copy of its receipt
			cause = fmt.Errorf("%w: %w", ErrDuplicate, &SendError{Key: first.Key, Receipt: r, Err: first.Err})
		}
	}
	c.answer(EventReplayed, r, cause)
}

// weigh answers a call from what its send returned. ended is why the send's
// context has ended; nil: it has not.
func (g *Guard) weigh(c *call, ended error) {
	if c.missing {
		g.refuse(c, CodeBatchMismatch, nil)
		return
	}
	r, err := c.sent.Receipt.clone(), c.sent.Err
	if r == nil {
		r = new(Receipt)
	}
	if isNilPointer(err) { // most often a success; its methods cannot be called
		err = MayBeSent(fmt.Errorf("transport returned a nil %T as its error", err))
	}
	if saysInFlight(err) && r.Status != StatusSent && len(r.Accepted) == 0 {
		g.refuse(c, CodeInFlight, ErrInFlight)
		c.kind, c.receipt.Status = EventFailed, StatusFailed // this call took nothing
		return
	}

	delivery := DeliveryUnspecified
	if err != nil {
		delivery = g.options.Classify(err)
	}
	r.Status = weigh(r, err, delivery, ended != nil)
	if r.Status == StatusUnknown && err != nil && ended != nil && r.Code == "" {
		r.Code = CodeAborted
		if r.Category == "" {
			r.Category = CategoryUnknown // the caller's doing, not the provider's
		}
		if !errors.Is(err, ended) {
			err = fmt.Errorf("%w: %w", ended, err)
		}
	}
	if r.Status != StatusSent && r.Category == "" {
		r.Category = CategoryUnknown
		if err != nil {
			category, again := kindOf(err)
			r.Category, r.Retryable = category, r.Retryable || again
		}
	}
	if r.Status != StatusFailed {
		r.Retryable = false // it could double
	}
	if r.Detail == "" && err != nil {
		r.Detail = err.Error()
	}
	g.fill(c, r)

	switch r.Status {
	case StatusSent:
		c.answer(EventSent, r, nil)
	case StatusFailed:
		c.answer(EventFailed, r, err)
	default:
		c.answer(EventUnknown, r, err)
	}
}

// fill completes the guard's own receipt with what every receipt has.
func (g *Guard) fill(c *call, r *Receipt) {
	if r.Transport == "" {
		r.Transport = g.id
	}
	if r.MessageID == "" {
		r.MessageID = c.messageID
	}
	// A time that was reckoned wrongly, from milliseconds as if they were
	// seconds say, has no form that every store keeps.
	if year := r.At.UTC().Year(); r.At.IsZero() || year < 1 || year > 9999 {
		r.At = time.Now()
	}
	tidy(r)
}
