package mailtest

import (
	"context"
	"fmt"
	"sync"

	"github.com/idemmail/idemmail"
)

// way is how a job sends its messages.
type way string

const (
	oneByOne way = "by Send"
	atOnce   way = "by SendMany"
)

// mood is what the provider does with each message at first; later ones of the
// same key it takes.
type mood string

const (
	takes        mood = "the provider takes every message"
	refusesOnce  mood = "the provider refuses each message once"
	losesAnswers mood = "the provider takes every message, and its answers are lost"
)

// A plan says what happens in a run. At most one of crash, hold and crowd is
// not zero.
type plan struct {
	way   way
	mood  mood
	crash int // the step of the first process at which it crashes
	hold  int // the step at which it stands still while a second does the job
	crowd int // how many processes do the job at the same time
}

// A run is one job, done by several processes that share the store and the
// provider.
type run struct {
	*simulator
	plan
	ledger
	namespace string
	steps     int // of the first process
	done      bool
}

func (s *simulator) newRun(p plan) *run {
	if p.mood == "" {
		p.mood = takes
	}
	r := &run{simulator: s, plan: p, namespace: fmt.Sprintf("sim-%s-%d", s.id, s.runs.Add(1))}
	r.ledger.run = r
	return r
}

// do lets the processes of the run do the job, one after another but for a
// crowd, and judges what was answered in the end.
func (r *run) do() error {
	r.done = true
	if err := r.begin(); err != nil {
		return err
	}
	if err := r.follow("a process at once after it"); err != nil {
		return err
	}
	r.outlive()
	r.note("the lease passes")
	if err := r.follow("a process after the lease"); err != nil {
		return err
	}
	last, err := r.newProcess("the last process")
	if err != nil {
		return err
	}
	last.work()
	r.judgeEnd(last)
	return r.err()
}

// begin is what the run is about.
func (r *run) begin() error {
	if r.crowd > 0 {
		return r.race()
	}
	first, err := r.newProcess("the first process")
	if err != nil {
		return err
	}
	first.crashAt = r.crash
	if r.hold > 0 {
		first.holdAt = r.hold
		first.meanwhile = func() error { return r.follow("a process meanwhile") }
	}
	first.work()
	r.steps = first.taken
	return r.err()
}

func (r *run) follow(name string) error {
	p, err := r.newProcess(name)
	if err != nil {
		return err
	}
	p.work()
	return nil
}

// race has a crowd of processes do the job at the same time. They wait for one
// another before each reservation, so that those come as close together as
// goroutines can.
func (r *run) race() error {
	gates := make(map[string]*gate)
	for _, m := range r.Messages {
		if m != nil {
			gates[r.key(m)] = &gate{missing: r.crowd, open: make(chan struct{})}
		}
	}
	var all sync.WaitGroup
	for i := range r.crowd {
		p, err := r.newProcess(fmt.Sprintf("process %d", i+1))
		if err != nil {
			return err
		}
		p.gates = gates
		all.Go(p.work)
	}
	all.Wait()
	return nil
}

// A gate opens when nobody is missing any more.
type gate struct {
	mu      sync.Mutex
	missing int
	open    chan struct{}
	passed  map[*process]bool
}

// pass waits for the others, the first time that a process comes.
func (g *gate) pass(ctx context.Context, p *process) {
	g.mu.Lock()
	if g.passed[p] {
		g.mu.Unlock()
		return
	}
	if g.passed == nil {
		g.passed = make(map[*process]bool)
	}
	g.passed[p] = true
	if g.missing--; g.missing == 0 {
		close(g.open)
	}
	g.mu.Unlock()
	select {
	case <-g.open:
	case <-ctx.Done():
	}
}

// String says what is tried.
func (p plan) String() string {
	s := fmt.Sprintf("messages go %s and %s", p.way, p.mood)
	switch {
	case p.crash > 0:
		return fmt.Sprintf("%s, and the first process crashes at step %d", s, p.crash)
	case p.hold > 0:
		return fmt.Sprintf("%s, and the first process stands still at step %d", s, p.hold)
	case p.crowd > 0:
		return fmt.Sprintf("%s, and %d processes do the job at the same time", s, p.crowd)
	}
	return s
}

// judged reports whether a key is one of the job's.
func (r *run) judged(key string) bool {
	for _, m := range r.Messages {
		if m != nil && key != "" && r.key(m) == key {
			return true
		}
	}
	return false
}

// newTransport makes a process's transport over the wrapped store.
func (p *process) newTransport() (*idemmail.IdempotencyTransport, error) {
	store, err := p.run.Open()
	if err != nil {
		return nil, fmt.Errorf("mailtest: Simulation.Open: %w", err)
	}
	p.store = store
	next, err := p.run.Transport(&provider{p})
	if err != nil {
		return nil, fmt.Errorf("mailtest: Simulation.Transport: %w", err)
	}
	options := p.run.Options
	options.Store, options.Namespace = p.wrap(store), p.run.namespace
	t, err := idemmail.New(p.watch(next), options)
	if err != nil {
		return nil, fmt.Errorf("mailtest: %w", err)
	}
	return t, nil
}
