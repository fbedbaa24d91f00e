package soak_test

import "time"

// planEnv has this test binary work as one of the senders: it holds the plan.
const planEnv = "IDEMMAIL_ITEST_SOAK"

const (
	lease      = 10 * time.Minute
	goroutines = 16 // of each process

	// One key in so many is sent by a second process too, at about the same
	// time: 5 % of the sends.
	duplicateOf = 19

	// One send in so many meets with one of the faults of a transport, and one
	// command to Redis in so many with one of a network's.
	transportFault = 100
	networkFault   = 200
)

// A plan is what one of the senders does.
type plan struct {
	Addr      string // of Redis
	Keys      int    // 0, 1, 2 and so on
	Process   int
	Processes int
	Ledger    string // file
}

// jobs answers the keys that the process is to send: its own ones, and those of
// its neighbour that are sent twice, among them.
func (p plan) jobs(yield func(key int) bool) {
	for key := range p.Keys {
		owner := key % p.Processes
		second := (owner + 1) % p.Processes
		if owner != p.Process && (second != p.Process || key%duplicateOf != 0) {
			continue
		}
		if !yield(key) {
			return
		}
	}
}

// A figures is what one of the senders counted.
type figures struct {
	Sends         int64 // keys that it was to send
	Sent          int64 // answered as sent by this call
	Replayed      int64 // answered with an earlier call's receipt, of any status
	Unknown       int64 // answered as unknown, by this call
	Failed        int64 // answered as failed; sent again
	InFlight      int64 // answered as in flight; sent again
	StoreFailed   int64 // answered so; sent again
	Panics        int64
	NetworkFaults int64
}

func (f *figures) add(g figures) {
	f.Sends += g.Sends
	f.Sent += g.Sent
	f.Replayed += g.Replayed
	f.Unknown += g.Unknown
	f.Failed += g.Failed
	f.InFlight += g.InFlight
	f.StoreFailed += g.StoreFailed
	f.Panics += g.Panics
	f.NetworkFaults += g.NetworkFaults
}
