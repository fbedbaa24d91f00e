package idemmail

import "time"

// EventKind says what was decided, or what went wrong on the way.
type EventKind string

const (
	EventSent        EventKind = "sent"         // the message was sent
	EventReplayed    EventKind = "replayed"     // answered with an earlier send's receipt
	EventInFlight    EventKind = "in_flight"    // refused: another send under the key has not ended
	EventKeyReused   EventKind = "key_reused"   // refused: the key was used for another message
	EventFailed      EventKind = "failed"       // not sent, or refused; invalid_key and not_begun too
	EventUnknown     EventKind = "unknown"      // the message may have gone; abandoned too
	EventStoreFailed EventKind = "store_failed" // the store failed; in addition to, and before, the deciding event
	EventLeaseLost   EventKind = "lease_lost"   // another send may hold the key; in addition to, and before, the deciding event, once per send
	EventRenewed     EventKind = "renewed"      // a lease was extended
	EventResolved    EventKind = "resolved"     // an operator settled a key as sent
	EventForgotten   EventKind = "forgotten"    // an operator freed a key
)

// An Event is one decision about a keyed message, as Options.Observe gets it.
type Event struct {
	Kind      EventKind
	Namespace string
	Key       string        // the caller's key, without the namespace
	Receipt   *Receipt      // what the caller gets; nil where there is none. It must not be changed or kept.
	Err       error         // the caller's error; for EventStoreFailed and EventLeaseLost the store's
	Elapsed   time.Duration // since Send began
	Store     time.Duration // of it, in the store
}
