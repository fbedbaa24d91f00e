package idemmail

// weigh puts the two witnesses of a send together: the receipt's status and
// the error, which d classifies. done says that the send's context has ended.
//
// What either witness cannot rule out is unknown: calling a sent message
// failed doubles it, calling a failed one sent loses it.
func weigh(r *Receipt, err error, d Delivery, done bool) Status {
	status := weighStatus(r, err, d, done)
	if status == StatusFailed && r != nil && len(r.Accepted) > 0 {
		return StatusUnknown
	}
	return status
}

func weighStatus(r *Receipt, err error, d Delivery, done bool) Status {
	var told Status // by the receipt; empty: nothing
	if r != nil {
		told = r.Status
	}
	switch {
	case err == nil && told == "":
		return StatusSent
	case err == nil && (told == StatusSent || told == StatusFailed):
		return told
	case err == nil:
		return StatusUnknown
	case d != NotDelivered && d != DeliveryUnspecified:
		return StatusUnknown
	case told == StatusFailed:
		return StatusFailed
	case told == "" && (d == NotDelivered || !done):
		return StatusFailed
	}
	return StatusUnknown
}

// saysInFlight reports whether err says that a decorator beneath found its own
// key in flight. Only an unjoined chain says so: one branch of several tells
// nothing about the others.
func saysInFlight(err error) bool {
	for range maxLinks {
		if err == nil || isNilPointer(err) {
			return false
		}
		if is(err, ErrInFlight) {
			return true
		}
		wrapper, ok := err.(interface{ Unwrap() error })
		if !ok {
			return false
		}
		err = wrapper.Unwrap()
	}
	return false
}
