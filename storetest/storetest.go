// Package storetest tests an implementation of [idemmail.Store] against the
// whole contract in that package: who wins a key, what the token fences, what
// survives, and when it ends. Where the store is an [idemmail.BatchStore], an
// [idemmail.Renewer] or an [idemmail.Reconciler], it is held to that too.
//
// A store's own test is a few lines:
//
//	func TestStore(t *testing.T) {
//		storetest.Run(t, storetest.Config{
//			Open: func() (idemmail.Store, error) { return mystore.New(db), nil },
//		})
//	}
//
// Each rule is a subtest with a name, so "go test -run TestStore/takeover"
// runs those about a lease that another has taken over. A broken rule says
// what the contract wants, why, and what the store did instead.
//
// What cannot be seen through the interface is not tested: answers that get
// lost between client and server, data under a key that is not the store's
// own ([idemmail.ErrBadRecord]), a Reserve that frees what it may have taken.
// Test these beside it, with a proxy and with hand-made data.
package storetest

import (
	"errors"
	"testing"
	"time"

	"github.com/idemmail/idemmail"
)

// Config says what is tested. Open is required.
type Config struct {
	// Open answers a store. It is called once per rule, never by two rules at
	// a time. It may answer a new store, or the same one each time, and the
	// store may hold other data: every rule makes keys of its own, with a
	// random part, and leaves them behind. Whatever has to be closed is
	// Open's affair (t.Cleanup).
	Open func() (idemmail.Store, error)

	// Advance moves the clock by which the store's records end, of every store
	// that Open answered. The store's time may pass by itself besides. The
	// kit moves it by a minute or an hour at a time, and by some years in all.
	//
	// Nil means that real time passes: the kit then waits out leases of 100 ms
	// and more, for some ten seconds in all, which asks for a store whose unit
	// of time is 10 ms or finer. A store with a coarser one needs an Advance;
	// there, a unit of up to a second does. In a testing/synctest bubble, with
	// a store that takes its time from package time, Check waits for nothing.
	Advance func(time.Duration)
}

// Run tests each rule in a subtest of its name. A rule about an ability that
// the store does not have is skipped, and so is one that builds on a rule that
// is broken: mend that first. A store that does not answer, even though the
// context has ended, is given up after a good half minute.
func Run(t *testing.T, c Config) {
	t.Helper()
	x := newExam(c)
	for _, r := range rules() {
		t.Run(r.name, func(t *testing.T) {
			t.Helper()
			switch v := x.judge(r); {
			case v.broken != nil:
				t.Error(v.broken)
			case v.skipped != "":
				t.Skip(v.skipped)
			}
		})
	}
}

// Check tests the same rules as [Run] and answers nil, or the broken rules
// joined, each by its name. Errors of Open and of the store are wrapped.
func Check(c Config) error {
	x := newExam(c)
	var broken []error
	for _, r := range rules() {
		if v := x.judge(r); v.broken != nil {
			broken = append(broken, v.broken)
		}
	}
	return errors.Join(broken...)
}
