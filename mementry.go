package idemmail

import (
	"math"
	"time"
)

// A memEntry is the record under a key. What dropping it takes comes first.
type memEntry struct {
	key      string
	since    time.Duration // from origin until it was reserved, renewed or completed
	queue    *memQueue     // nil where it never ends
	links    [2]memLinks
	lifetime time.Duration // counted from since, or NoExpiry
	receipt  packedReceipt // once done, else empty
	unknown  bool          // the receipt's status

	token       string
	fingerprint string
}

// state is done once there is a receipt, which is never empty when packed.
func (e *memEntry) state() State {
	if e.receipt == "" {
		return StatePending
	}
	return StateDone
}

// expired reports whether the time of an entry has passed.
func (e *memEntry) expired(now time.Duration) bool {
	return e.lifetime != NoExpiry && e.age(now) >= e.lifetime
}

// droppable reports whether an entry may make way for another within its time.
func (e *memEntry) droppable() bool {
	return e.state() == StateDone && !(e.unknown && e.lifetime == NoExpiry)
}

// age is 0 where the clock has gone back to before it began, and stops at the
// longest duration there is.
func (e *memEntry) age(now time.Duration) time.Duration {
	switch age := now - e.since; {
	case now <= e.since:
		return 0
	case age < 0: // more than a duration holds
		return math.MaxInt64
	default:
		return age
	}
}

// record returns a copy of what the entry keeps.
func (e *memEntry) record(now time.Duration) Record {
	rec := Record{State: e.state(), Fingerprint: e.fingerprint, Age: e.age(now)}
	if rec.State == StateDone {
		rec.Receipt = e.receipt.unpack()
	}
	return rec
}
