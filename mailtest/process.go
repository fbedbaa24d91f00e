package mailtest

import (
	"context"
	"fmt"
	"sync"

	"github.com/idemmail/idemmail"
)

// errCrashed is what a process that has crashed is answered by everything. It
// wraps ErrLeaseLost, so that nobody tries to settle a key again.
var errCrashed = fmt.Errorf("mailtest: the process has crashed: %w", idemmail.ErrLeaseLost)

// A process does the job of a run once. It takes steps, at one of which it may
// crash, or stand still.
type process struct {
	run       *run
	name      string
	store     idemmail.Store // as Open answered it
	transport *idemmail.IdempotencyTransport
	ctx       context.Context
	crash     context.CancelFunc

	crashAt, holdAt int          // steps; 0: none
	meanwhile       func() error // done while it stands still
	gates           map[string]*gate

	mu    sync.Mutex
	taken int // steps
	dead  bool
}

func (r *run) newProcess(name string) (*process, error) {
	p := &process{run: r, name: name}
	p.ctx, p.crash = context.WithCancel(context.Background())
	t, err := p.newTransport()
	if err != nil {
		p.crash()
		return nil, err
	}
	p.transport = t
	return p, nil
}

// work does the job: it sends every message, until it crashes.
func (p *process) work() {
	defer p.crash() // it ends
	defer func() {
		if v := recover(); v != nil {
			p.run.fail(fmt.Errorf("mailtest: the transport panicked: %v", v))
		}
	}()
	messages := p.run.Messages
	if p.run.way == atOnce {
		p.answered(messages, p.transport.SendMany(p.ctx, messages))
		return
	}
	for i, m := range messages {
		var r idemmail.Result
		r.Receipt, r.Err = p.transport.Send(p.ctx, m)
		p.answered(messages[i:i+1], []idemmail.Result{r})
	}
}

// answered notes answers, unless nobody is there any more to hear them.
func (p *process) answered(messages []*idemmail.Message, results []idemmail.Result) {
	if p.crashed() {
		return
	}
	for i, r := range results {
		if m := messages[i]; m != nil && r.Receipt != nil {
			if key := p.run.key(m); key != "" {
				p.run.answered(p, key, r)
			}
		}
	}
}

func (p *process) crashed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dead
}

// step is called between any two things that others can see. An error means
// that the process is no more: what was to come next must not happen.
func (p *process) step(what string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dead {
		return errCrashed
	}
	p.taken++
	switch p.taken {
	case p.crashAt:
		p.dead = true
		p.run.note(p.name + " crashes before: " + what)
		p.crash()
		return errCrashed
	case p.holdAt:
		p.run.note(p.name + " stands still before: " + what)
		p.mu.Unlock()
		err := p.meanwhile()
		p.mu.Lock()
		p.run.fail(err)
	}
	p.run.note(p.name + ": " + what)
	return nil
}

// A provider is where the messages of a process go. All share the ledger of
// the run.
type provider struct{ p *process }

func (v *provider) ID() string { return "provider" }

func (v *provider) Send(_ context.Context, m *idemmail.Message) (*idemmail.Receipt, error) {
	p := v.p
	if err := p.step("the provider is handed " + m.IdempotencyKey); err != nil {
		return nil, err
	}
	attempt := p.run.attempt(m.IdempotencyKey)
	if p.run.mood == refusesOnce && attempt == 1 {
		return &idemmail.Receipt{Status: idemmail.StatusFailed}, idemmail.NotSent(ErrRefused)
	}
	p.run.delivered(p, m.IdempotencyKey)
	if err := p.step("the provider has taken " + m.IdempotencyKey); err != nil {
		return nil, err
	}
	if p.run.mood == losesAnswers && attempt == 1 {
		return nil, idemmail.MayBeSent(ErrLost)
	}
	return &idemmail.Receipt{Status: idemmail.StatusSent, ProviderID: fmt.Sprintf("%s#%d", m.IdempotencyKey, attempt)}, nil
}

func (v *provider) SendMany(ctx context.Context, msgs []*idemmail.Message) []idemmail.Result {
	results := make([]idemmail.Result, len(msgs))
	for i, m := range msgs {
		results[i].Receipt, results[i].Err = v.Send(ctx, m)
	}
	return results
}

// watch has the steps before and after a transport counted.
func (p *process) watch(next idemmail.Transport) idemmail.Transport {
	w := watched{p, next}
	if batch, ok := next.(idemmail.BatchTransport); ok {
		return watchedBatch{w, batch}
	}
	return w
}

type watched struct {
	p    *process
	next idemmail.Transport
}

// Unwrap shows the transport to those who look for its ID.
func (w watched) Unwrap() idemmail.Transport { return w.next }

func (w watched) Send(ctx context.Context, m *idemmail.Message) (*idemmail.Receipt, error) {
	if err := w.p.step("the transport begins with " + m.IdempotencyKey); err != nil {
		return nil, err
	}
	r, err := w.next.Send(ctx, m)
	if crashed := w.p.step("the transport has answered for " + m.IdempotencyKey); crashed != nil {
		return nil, crashed
	}
	return r, err
}

type watchedBatch struct {
	watched
	batch idemmail.BatchTransport
}

func (w watchedBatch) SendMany(ctx context.Context, msgs []*idemmail.Message) []idemmail.Result {
	err := w.p.step("the transport begins with all")
	if err == nil {
		results := w.batch.SendMany(ctx, msgs)
		if err = w.p.step("the transport has answered for all"); err == nil {
			return results
		}
	}
	results := make([]idemmail.Result, len(msgs))
	for i := range results {
		results[i].Err = err
	}
	return results
}
