package mailtest_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/mailtest"
)

// stubborn is a transport that tries again whatever went wrong.
type stubborn struct{ next idemmail.Transport }

func (s stubborn) Send(ctx context.Context, m *idemmail.Message) (*idemmail.Receipt, error) {
	receipt, err := s.next.Send(ctx, m)
	for range 2 {
		if err != nil {
			receipt, err = s.next.Send(ctx, m)
		}
	}
	return receipt, err
}

// A decorator that repeats a send whose answer was lost is found out.
func ExampleSimulate() {
	var clock mailtest.Clock
	store := idemmail.NewMemStore(idemmail.MemStoreOptions{Now: clock.Now})

	report, err := mailtest.Simulate(mailtest.Simulation{
		Open:    func() (idemmail.Store, error) { return store, nil },
		Advance: clock.Advance,
		Transport: func(provider idemmail.BatchTransport) (idemmail.Transport, error) {
			return stubborn{provider}, nil
		},
	})

	var fault *mailtest.Fault
	if errors.As(err, &fault) {
		fmt.Printf("%s: %s\n", fault.Kind, fault.What)
		fmt.Println("where", fault.Run)
	}
	fmt.Println("crashes tried:", report.Crashes > 0)
	// Output:
	// doubled: the first process sends it, though it has sent it already
	// where messages go by Send and the provider takes every message, and its answers are lost
	// crashes tried: true
}

// A store that keeps its keys in memory, with a clock that the simulation
// moves, and the options that the program uses.
func ExampleSimulate_atMostOnce() {
	var clock mailtest.Clock
	store := idemmail.NewMemStore(idemmail.MemStoreOptions{Now: clock.Now})

	report, err := mailtest.Simulate(mailtest.Simulation{
		Open:    func() (idemmail.Store, error) { return store, nil },
		Advance: clock.Advance,
		Options: idemmail.Options{AtMostOnce: true},
	})
	fmt.Println("sent again after a crash:", report.Repeated, err)
	// Output: sent again after a crash: 0 <nil>
}
