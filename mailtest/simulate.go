package mailtest

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/idemmail/idemmail"
)

// A Simulation says what [Simulate] tries. Open is required.
type Simulation struct {
	// Open opens the store as a process does that starts: whatever it answers,
	// now and later, must share what is kept. It may answer the same store each
	// time. Each run uses keys of its own and leaves them behind; what has to
	// be closed is Open's affair.
	Open func() (idemmail.Store, error)

	// Transport makes the transport that is tried: what a starting process
	// puts between idemmail and its provider, such as a decorator that retries.
	// It must hand each message on to the provider, which knows it by its
	// IdempotencyKey. Each call makes one that shares no locks with those
	// before. Nil: the provider itself.
	Transport func(provider idemmail.BatchTransport) (idemmail.Transport, error)

	// Options are those that the program uses. Namespace and Store are
	// replaced; WaitInFlight is taken for 0, and a TTL that would end within a
	// run is raised. A nil Logger logs nothing.
	Options idemmail.Options

	// Advance moves the clock by which the store's records end, as in package
	// storetest: [Clock.Advance], or that of a server which stands in for the
	// real one. In a bubble of testing/synctest it is time.Sleep. Nil: real
	// time passes, and Options.Lease must be 10 seconds at most; 200
	// milliseconds make a simulation of some seconds.
	Advance func(time.Duration)

	// Messages are what the job sends, those without a key too. Nil: two of
	// Simulate's own.
	Messages []*idemmail.Message
}

// Simulate tries whether a store and a transport together keep the promise of
// package idemmail. It has a job send some messages, again and again in runs
// of their own, and lets a process that does it crash between any two steps:
// before and after each call of the store, between the requests of a call with
// many, before and after the provider takes a message, and before and after
// the transport. Other processes then do the job once more, at once and when
// the lease has passed. The provider takes every message, or refuses each one
// once, or takes it and its answer is lost. Messages go by Send and by
// SendMany. Other runs have a second process do the job while the first stands
// still at a step, and a crowd of processes do it at the same time.
//
// The error is nil when the promise was kept each time: no message was taken
// twice by the provider, but after the crash of a process whose lease had
// passed and whose receipt was not kept (with Options.AtMostOnce not even
// then), or, in real time, by one that was too slow for its lease; and none was
// lost, that is, answered as sent though the provider never took it. Otherwise
// it joins the first [*Fault] of each kind, which errors.As finds; the report
// has all. The report is nil where the simulation cannot be run.
//
// A crash here is a process that from one step on reaches nothing any more:
// its calls of the store and of the provider do nothing and answer an error,
// and its context ends. But for the crowds, whose goroutines race, the same
// simulation runs the same way each time.
func Simulate(s Simulation) (*Report, error) {
	sim, err := newSimulator(s)
	if err != nil {
		return nil, err
	}
	var runs []*run
	for _, way := range []way{oneByOne, atOnce} {
		for _, mood := range []mood{takes, refusesOnce, losesAnswers} {
			whole := sim.newRun(plan{way: way, mood: mood})
			if err := whole.do(); err != nil {
				return nil, err
			}
			runs = append(runs, whole)
			for at := 1; at <= whole.steps; at++ {
				runs = append(runs, sim.newRun(plan{way: way, mood: mood, crash: at}))
				if mood == takes {
					runs = append(runs, sim.newRun(plan{way: way, mood: mood, hold: at}))
				}
			}
		}
		for range crowds {
			runs = append(runs, sim.newRun(plan{way: way, crowd: crowd}))
		}
	}
	if err := sim.doAll(runs); err != nil {
		return nil, err
	}
	report := new(Report)
	for _, r := range runs {
		report.add(r)
	}
	return report, report.err()
}

const (
	crowds = 3 // runs with a crowd, for each way of sending
	crowd  = 8 // processes

	defaultLease = 10 * time.Minute // of idemmail.Options
	defaultTTL   = 24 * time.Hour
	longestWait  = 10 * time.Second
	longestLease = 366 * 24 * time.Hour
	parallel     = 32 // runs at a time in real time: they mostly wait
)

// A simulator has what all runs share.
type simulator struct {
	Simulation
	lease   time.Duration
	margin  time.Duration // beyond the lease, for the store's unit of time
	unkeyed bool          // some message has no key
	id      string
	runs    atomic.Int64

	mu       sync.Mutex
	advanced time.Duration
}

func newSimulator(s Simulation) (*simulator, error) {
	if s.Open == nil {
		return nil, errors.New("mailtest: Simulation.Open is nil")
	}
	if s.Transport == nil {
		s.Transport = func(provider idemmail.BatchTransport) (idemmail.Transport, error) { return provider, nil }
	}
	if s.Messages == nil {
		s.Messages = []*idemmail.Message{
			{Subject: "first", IdempotencyKey: "simulated/1"},
			{Subject: "second", IdempotencyKey: "simulated/2"},
		}
	}
	if s.Options.Logger == nil {
		s.Options.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	s.Options.WaitInFlight = 0
	sim := &simulator{Simulation: s, lease: cmp.Or(s.Options.Lease, defaultLease), id: strings.ToLower(rand.Text()[:10])}
	keyed := func(m *idemmail.Message) bool { return m != nil && sim.key(m) != "" }
	sim.unkeyed = slices.ContainsFunc(s.Messages, func(m *idemmail.Message) bool { return m != nil && !keyed(m) })
	if !slices.ContainsFunc(s.Messages, keyed) {
		return nil, errors.New("mailtest: no message of the simulation has an idempotency key")
	}

	sim.margin = 2 * time.Second
	if s.Advance == nil {
		sim.margin = 100 * time.Millisecond
		if sim.lease > longestWait {
			return nil, fmt.Errorf("mailtest: Options.Lease is %v, which would be waited out for each crash: set Simulation.Advance, or a lease of %v at most", sim.lease, longestWait)
		}
	}
	if sim.lease > longestLease {
		return nil, fmt.Errorf("mailtest: Options.Lease is %v: no clock can be moved by it again and again; NoExpiry can be simulated", sim.lease)
	}
	if ttl := cmp.Or(s.Options.TTL, defaultTTL); ttl > 0 {
		sim.Options.TTL = max(ttl, 10*max(sim.lease, 0)+time.Hour)
	}
	return sim, nil
}

// key is the key of a message as idemmail finds it.
func (s *simulator) key(m *idemmail.Message) string {
	if s.Options.Key != nil {
		return s.Options.Key(m)
	}
	return m.IdempotencyKey
}

// outlive lets so much time pass that every lease has ended, unless none ends.
func (s *simulator) outlive() {
	switch d := s.lease + s.margin; {
	case s.lease < 0: // NoExpiry, or what idemmail.New has refused
	case s.Advance == nil:
		time.Sleep(d)
	default:
		s.Advance(d)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.advanced += d
	}
}

// doAll does the runs that are not done: one after another where they share a
// clock that they move.
func (s *simulator) doAll(runs []*run) error {
	workers := 1
	if s.Advance == nil {
		workers = parallel
	}
	todo := make(chan *run)
	errs := make([]error, workers)
	var all sync.WaitGroup
	for i := range workers {
		all.Go(func() {
			for r := range todo {
				errs[i] = errors.Join(errs[i], r.do())
			}
		})
	}
	for _, r := range runs {
		if !r.done {
			todo <- r
		}
	}
	close(todo)
	all.Wait()
	return errors.Join(errs...)
}
