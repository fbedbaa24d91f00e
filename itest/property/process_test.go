package property

import (
	"context"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/idemmail/idemmail"
)

// Dice are thrown for what is drawn while goroutines run. The same throw of the
// same dice answers the same, whatever else is going on.
type dice struct {
	seed   uint64
	mu     sync.Mutex
	thrown map[string]uint64
}

func (d *dice) throw(what string) *rand.Rand {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.thrown[what]++
	h := fnv.New64()
	fmt.Fprint(h, what)
	return rand.New(rand.NewPCG(d.seed+d.thrown[what], h.Sum64()))
}

// A crowdProcess is one process of a crowd: from its crash on it reaches
// neither the store nor the provider.
type crowdProcess struct {
	*crowd
	name      string
	crash     time.Duration // when; 0: never
	dead      chan struct{}
	calm      bool // nothing ails it
	transport *idemmail.IdempotencyTransport

	failed map[string]bool // the calls of the store that it had trouble with
}

func (p *crowdProcess) open(store idemmail.Store, together bool) {
	p.failed = make(map[string]bool)
	options := p.options
	options.Store = store
	var next idemmail.Transport = crowdTransport{p}
	if together {
		next = crowdBatch{crowdTransport{p}}
	}
	t, err := idemmail.New(next, options)
	if err != nil {
		p.t.Fatal(err)
	}
	p.transport = t
}

func (p *crowdProcess) crashes() bool { return p.crash > 0 }

func (p *crowdProcess) isDead() bool {
	select {
	case <-p.dead:
		return true
	default:
		return false
	}
}

// sleep waits for d, or for the crash.
func (p *crowdProcess) sleep(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-p.dead:
	}
}

// crowdTransport sends for a process.
type crowdTransport struct{ *crowdProcess }

func (p crowdTransport) Send(ctx context.Context, m *idemmail.Message) (*idemmail.Receipt, error) {
	if p.isDead() {
		return nil, errDead
	}
	s := &sending{key: m.IdempotencyKey, variant: strings.TrimPrefix(m.Subject, "secret "), process: p.crowdProcess, began: time.Now()}
	s.job, _ = ctx.Value(jobKey{}).(*job)
	p.begin(s)
	dice := p.dice.throw("send " + p.name + s.key)
	before, after := time.Duration(0), time.Duration(0)
	if !p.calm {
		before, after = time.Duration(dice.IntN(60_000))*time.Millisecond, time.Duration(dice.IntN(20_000))*time.Millisecond
		if dice.IntN(2) == 0 {
			before, after = 0, 0
		}
	}
	n := dice.IntN(10)
	if p.calm {
		n = 0
	}
	obeys := dice.IntN(3) > 0
	receipt := &idemmail.Receipt{ProviderID: s.id}
	if !p.work(ctx, before, obeys) { // it gives up before the provider has it all
		return receipt, p.end(s, idemmail.StatusFailed, idemmail.NotSent(errTransport))
	}
	if n >= 8 {
		return receipt, p.end(s, idemmail.StatusFailed, idemmail.NotSent(errTransport))
	}
	p.accept(s)
	if !p.work(ctx, after, obeys) {
		return receipt, p.end(s, idemmail.StatusUnknown, fmt.Errorf("given up: %w", context.Canceled))
	}
	switch n {
	case 7:
		_ = p.end(s, idemmail.StatusUnknown, nil)
		panic(errTransport)
	case 6:
		return receipt, p.end(s, idemmail.StatusUnknown, idemmail.MayBeSent(errTransport))
	}
	receipt.Status = idemmail.StatusSent
	return receipt, p.end(s, idemmail.StatusSent, nil)
}

// work lasts for d and reports whether it was not given up.
func (p *crowdProcess) work(ctx context.Context, d time.Duration, obeys bool) bool {
	if !obeys {
		ctx = context.WithoutCancel(ctx)
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return !p.isDead()
	case <-ctx.Done():
		return false
	case <-p.dead:
		return false
	}
}

// begin notes that a send begins: who sends must hold the key, unless it could
// not be reserved and FailOpen is set, or its batch took longer than its lease.
func (p *crowdProcess) begin(s *sending) {
	e, err := p.mem.Lookup(context.Background(), namespace+":"+s.key)
	if err != nil {
		p.breach("lookup: %v", err)
	}
	p.crowd.mu.Lock()
	s.id = fmt.Sprintf("%s#%d", s.key, len(p.sends)+1)
	p.sends = append(p.sends, s)
	open := p.options.FailOpen && (p.failed["reserve "+namespace+":"+s.key] || s.job.many && p.failed["reserve"])
	if !open {
		s.hold = p.heldBy(s)
	}
	holds := s.hold != nil && e != nil && p.holds[e.Token] == s.hold && e.Record.State == idemmail.StatePending
	if s.hold != nil {
		s.hold.used++
		s.lapsed = s.job.many && !p.options.AtMostOnce && time.Since(s.hold.since) >= crowdLease
	}
	p.crowd.mu.Unlock()
	if !holds && !s.lapsed && !open && !p.calm {
		p.breach("%q is sent by process %s, which does not hold it: %+v", s.key, p.name, e)
	}
}

// heldBy is the newest reservation that the job of a send was answered and has
// not settled.
func (p *crowdProcess) heldBy(s *sending) (newest *hold) {
	for _, h := range p.holds {
		mine := h.key == s.key && h.job != nil && h.job == s.job && !h.released && h.completed.IsZero()
		if mine && (newest == nil || h.since.After(newest.since)) {
			newest = h
		}
	}
	return newest
}

// accept lets the provider have the message, unless there is nobody any more
// to hand it over.
func (p *crowdProcess) accept(s *sending) {
	if p.isDead() {
		return
	}
	p.crowd.mu.Lock()
	defer p.crowd.mu.Unlock()
	s.accepted = true
}

// end notes what a send must come to, and answers the error.
func (p *crowdProcess) end(s *sending, status idemmail.Status, err error) error {
	p.crowd.mu.Lock()
	defer p.crowd.mu.Unlock()
	s.ended = time.Now()
	if !p.isDead() {
		s.status = status
	}
	return err
}

type crowdBatch struct{ crowdTransport }

// SendMany sends one after another. If it panics, none has an answer.
func (b crowdBatch) SendMany(ctx context.Context, msgs []*idemmail.Message) []idemmail.Result {
	results := make([]idemmail.Result, len(msgs))
	defer func() {
		v := recover()
		if v == nil {
			return
		}
		job, _ := ctx.Value(jobKey{}).(*job)
		b.crowd.mu.Lock()
		defer b.crowd.mu.Unlock()
		for _, m := range msgs {
			b.unheard[m.IdempotencyKey] = true
			for _, s := range b.sends {
				if s.job == job && s.key == m.IdempotencyKey && !b.isDead() {
					s.status = idemmail.StatusUnknown
				}
			}
		}
		panic(v)
	}()
	for i, m := range msgs {
		results[i].Receipt, results[i].Err = b.Send(ctx, m)
	}
	return results
}
