package idemmail_test

import (
	"context"
	"sync"

	"github.com/idemmail/idemmail"
)

// An eventLog keeps what Options.Observe gets, but for receipts, which must
// not be kept.
type eventLog struct {
	mu     sync.Mutex
	events []idemmail.Event
}

func (l *eventLog) observe(_ context.Context, e idemmail.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e.Receipt = nil
	l.events = append(l.events, e)
}

// kinds lists the kinds of a key's events.
func (l *eventLog) kinds(key string) (kinds []idemmail.EventKind) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.events {
		if e.Key == key {
			kinds = append(kinds, e.Kind)
		}
	}
	return kinds
}
