package mailtest

import (
	"sync"
	"time"
)

// A Clock stands still until it is moved. The zero value is ready to use and
// begins in 2026. It is safe for concurrent use.
//
//	var clock mailtest.Clock
//	store := idemmail.NewMemStore(idemmail.MemStoreOptions{Now: clock.Now})
//	clock.Advance(time.Hour)
type Clock struct {
	mu     sync.Mutex
	passed time.Duration
}

// Now answers the clock's time, in UTC.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(c.passed)
}

// Advance moves the clock by d.
func (c *Clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.passed += d
}
