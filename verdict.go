package idemmail

import (
	"fmt"
	"time"
)

// A verdict is what the record that holds a key means for a message.
type verdict int

const (
	badRecord verdict = iota // not one that this version can answer from
	keyReused                // it is another message's
	inFlight                 // the same message is being sent
	abandoned                // its sending was given up
	replay                   // the same message, done
)

// judge tells what held means for a message with the fingerprint. A pending
// record older than staleAfter is abandoned; NoExpiry: none is.
func judge(held *Record, fingerprint string, staleAfter time.Duration) verdict {
	switch {
	case held.State != StatePending && held.State != StateDone:
		return badRecord
	case !sameFingerprint(held.Fingerprint, fingerprint):
		return keyReused
	case held.State == StatePending && staleAfter != NoExpiry && held.Age > staleAfter:
		return abandoned
	case held.State == StatePending:
		return inFlight
	case held.Receipt == nil:
		return badRecord
	}
	switch held.Receipt.Status {
	case StatusSent, StatusFailed, StatusUnknown:
		return replay
	}
	return badRecord
}

// describe says what is wrong with a record that judge found bad.
func describe(held *Record) error {
	switch {
	case held.State != StatePending && held.State != StateDone:
		return fmt.Errorf("%w: state %q", ErrBadRecord, held.State)
	case held.Receipt == nil:
		return fmt.Errorf("%w: done without a receipt", ErrBadRecord)
	}
	return fmt.Errorf("%w: done with a receipt of status %q", ErrBadRecord, held.Receipt.Status)
}
