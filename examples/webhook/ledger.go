package main

import (
	"context"
	"errors"
	"sync"

	"github.com/idemmail/idemmail"
)

// Events whose booking is not like that of others.
const (
	slow   = "refund"     // lasts until the other deliveries have been answered
	locked = "correction" // finds the ledger locked, the first time
	lost   = "chargeback" // is booked, but the ledger's answer does not come
)

var (
	errLocked = errors.New("the ledger is locked")
	errLost   = errors.New("the ledger does not answer")
)

// A ledger is where events are booked: the work that must not be done twice.
type ledger struct {
	release chan struct{} // closed when the slow booking may end

	mu       sync.Mutex
	bookings map[string]int // by event
	unlocked bool
}

func newLedger() *ledger {
	return &ledger{release: make(chan struct{}), bookings: make(map[string]int)}
}

// book books an event. Of its errors it says whether the event may have been
// booked; of others, [idemmail.ClassifyError] has its own idea.
func (l *ledger) book(ctx context.Context, event []byte) error {
	if string(event) == slow {
		select {
		case <-l.release:
		case <-ctx.Done():
			return idemmail.NotSent(ctx.Err())
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if string(event) == locked && !l.unlocked {
		l.unlocked = true
		return idemmail.NotSent(errLocked)
	}
	l.bookings[string(event)]++
	if string(event) == lost {
		return idemmail.MayBeSent(errLost)
	}
	return nil
}

// booked returns how often an event has been booked.
func (l *ledger) booked(event string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.bookings[event]
}
