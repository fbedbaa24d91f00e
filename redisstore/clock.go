package redisstore

import (
	"sync/atomic"
	"time"
)

// longestTrip is how long a round trip may take for its time to be learnt: the
// server read its clock somewhere in between.
const longestTrip = time.Second

// A clock tells the server's time between two answers of it, by this process's
// monotonic clock, so that a wall clock that is set here moves no record.
// Times are in microseconds since 1970.
type clock struct {
	newest atomic.Pointer[reading]
}

// A reading is what the server's clock showed at a moment here.
type reading struct {
	server int64
	local  time.Time
}

// learn takes what the server answered to a command that was sent then. The
// newest answer counts, but for one that was long on its way: it says little
// and the one before says more.
func (c *clock) learn(server int64, sent time.Time) {
	trip := time.Since(sent)
	if trip > longestTrip && c.newest.Load() != nil {
		return
	}
	c.newest.Store(&reading{server: server, local: sent.Add(trip / 2)})
}

// now answers the server's time. A server that has not answered yet is taken
// to have this process's.
func (c *clock) now() int64 {
	r := c.newest.Load()
	if r == nil {
		return time.Now().UnixMicro()
	}
	return r.server + time.Since(r.local).Microseconds()
}

// age answers the time from at to now. Clocks that do not quite agree make no
// negative ages.
func age(at, now int64) time.Duration {
	return time.Duration(max(0, now-at)) * time.Microsecond
}
