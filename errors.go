package idemmail

import (
	"errors"
	"strconv"
)

// What a send can end in besides sent. errors.Is finds them in the errors that
// Send, SendMany, SendRaw and Guard.Do return; each stands for the code of the
// same name in the receipt.
var (
	// ErrInFlight: another send under the key has not ended. This call sent
	// nothing. Try again later; never take it for success.
	ErrInFlight = errors.New("idemmail: a send under this key is in flight")

	// ErrKeyReused: the key was used for another message. Nothing was sent.
	ErrKeyReused = errors.New("idemmail: key was used for another message")

	// ErrInvalidKey: the key is not valid UTF-8, longer than 512 bytes, has
	// control characters, or is empty where one is required. Nothing was sent.
	ErrInvalidKey = errors.New("idemmail: invalid key")

	// ErrNotBegun: the context ended before the send began. Nothing was sent.
	ErrNotBegun = errors.New("idemmail: context ended before the send began")

	// ErrAborted: the context ended during the send. The message may have gone.
	ErrAborted = errors.New("idemmail: send was aborted, its outcome is unknown")

	// ErrAbandoned: with Options.AtMostOnce, the send that holds the key is
	// older than its lease. The message may have gone; it waits for an
	// operator. This call sent nothing.
	ErrAbandoned = errors.New("idemmail: an earlier send was abandoned, its outcome is unknown")

	// ErrPanicked: the wrapped transport panicked. The message may have gone.
	ErrPanicked = errors.New("idemmail: send panicked, its outcome is unknown")

	// ErrBatchMismatch: the wrapped SendMany answered too few results. The
	// message may have gone.
	ErrBatchMismatch = errors.New("idemmail: transport answered too few results, the outcome is unknown")

	// ErrStoreFailed: the store could not reserve the key. Nothing was sent.
	ErrStoreFailed = errors.New("idemmail: store failed, nothing was sent")

	// ErrDuplicate: with Options.RejectDuplicates, the message was sent (or
	// may have been) under this key before. This call sent nothing.
	ErrDuplicate = errors.New("idemmail: duplicate of an earlier send")

	// ErrDeliveryUnknown: the message may have gone. Every error whose receipt
	// has StatusUnknown matches it.
	ErrDeliveryUnknown = errors.New("idemmail: outcome of the send is unknown")
)

// Answers of stores. An implementation returns them as they are or wrapped.
var (
	// ErrLeaseLost: the token does not hold the key: its lease passed and
	// another reservation took the key, or the key is done or gone.
	ErrLeaseLost = errors.New("idemmail: lease lost")

	// ErrStoreFull: the store has no room and may drop nothing.
	ErrStoreFull = errors.New("idemmail: store is full")

	// ErrBadRecord: what the key holds is not a record of this package, or one
	// of a version that this one does not know. It was left as it is.
	ErrBadRecord = errors.New("idemmail: not a record this version knows")

	// ErrChanged: the record has moved on since the entry was read. It was
	// left as it is.
	ErrChanged = errors.New("idemmail: record has changed")
)

// A SendError is the error of a keyed send, or of a nil message: every error
// of such a send is one or wraps one.
//
// errors.Is finds in it the sentinel of the receipt's code, [ErrDeliveryUnknown]
// where the receipt's status is unknown, and whatever Err wraps: the
// transport's error, the store's, or the context's. An answer from the store
// carries the first send's receipt but not its cause.
type SendError struct {
	Key     string   // the caller's key, without the namespace; empty for a nil message
	Receipt *Receipt // never nil; the same receipt that is returned beside the error
	Err     error    // the cause; may be nil
}

// Error names the status, the code, the key and the cause. It has no
// addresses, subject or body of its own; the cause may.
func (e *SendError) Error() string {
	r := e.receipt()
	s := "idemmail: " + string(r.Status)
	if r.Code != "" {
		s += ", " + r.Code
	}
	if e.Key != "" {
		s += ", key " + strconv.Quote(e.Key)
	}
	switch {
	case e.Err != nil:
		s += ": " + e.Err.Error()
	case r.Detail != "":
		s += ": " + r.Detail
	}
	return s
}

// receipt is e.Receipt. An error that was not made by this package may lack
// it, and says nothing about the message then.
func (e *SendError) receipt() *Receipt {
	if e.Receipt == nil {
		return &Receipt{Status: StatusUnknown}
	}
	return e.Receipt
}

// Unwrap returns the cause.
func (e *SendError) Unwrap() error { return e.Err }

// Is reports whether target is the sentinel of the receipt's code, or
// ErrDeliveryUnknown where the status is unknown.
func (e *SendError) Is(target error) bool {
	r := e.receipt()
	switch target {
	case ErrDeliveryUnknown:
		return r.Status != StatusSent && r.Status != StatusFailed
	case nil:
		return false
	}
	return target == sentinel(r.Code)
}

// DeliveryUnknown reports whether the message may have gone, or did: true
// unless the status is failed. It is what [ClassifyError] asks, so a retry
// decorator that repeats only what was not delivered leaves these alone.
func (e *SendError) DeliveryUnknown() bool { return e.receipt().Status != StatusFailed }

// sentinel returns the error that stands for a code, or nil.
func sentinel(code string) error {
	switch code {
	case CodeInFlight:
		return ErrInFlight
	case CodeKeyReused:
		return ErrKeyReused
	case CodeInvalidKey:
		return ErrInvalidKey
	case CodeNotBegun:
		return ErrNotBegun
	case CodeAborted:
		return ErrAborted
	case CodeAbandoned:
		return ErrAbandoned
	case CodePanicked:
		return ErrPanicked
	case CodeStoreFailed:
		return ErrStoreFailed
	case CodeBatchMismatch:
		return ErrBatchMismatch
	}
	return nil
}
