package mailtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/idemmail/idemmail"
)

// A ledger is what an observer outside sees of a run: what the provider took,
// what callers were answered, and who held which key.
type ledger struct {
	run *run

	mu       sync.Mutex
	trace    []string
	accounts map[string]*account // by key
	faults   []*Fault
	broken   error // the simulation itself

	taken, repeated, waiting int
}

// An account is what there is to know of one key.
type account struct {
	attempts int // handed to the provider
	taken    int // by it
	by       []*process
	grips    []*grip             // reservations, in order
	last     *grip               // under which it was last taken
	asked    map[*process]moment // when each last began to reserve it
	final    idemmail.Result
}

// A grip is a reservation.
type grip struct {
	p       *process
	began   moment // before it was reserved or renewed
	ended   moment // after that
	settled bool
}

// A moment is a point on the clocks that the simulation can see.
type moment struct {
	real     time.Time
	advanced time.Duration
}

func (s *simulator) moment() moment {
	s.mu.Lock()
	defer s.mu.Unlock()
	return moment{time.Now(), s.advanced}
}

// most is the most that can have passed on the store's clock between m and n.
func (m moment) most(n moment) time.Duration { return n.real.Sub(m.real) + n.advanced - m.advanced }

// least is the least that has. Where the simulation moves the clock, it may
// stand still otherwise.
func (s *simulator) least(m, n moment) time.Duration {
	if s.Advance == nil {
		return n.real.Sub(m.real)
	}
	return n.advanced - m.advanced
}

// account answers that of a key. l is locked.
func (l *ledger) account(key string) *account {
	if l.accounts == nil {
		l.accounts = make(map[string]*account)
	}
	a := l.accounts[key]
	if a == nil {
		a = &account{asked: make(map[*process]moment)}
		l.accounts[key] = a
	}
	return a
}

// grip is the newest reservation of a process, or nil.
func (a *account) grip(p *process) *grip {
	for _, g := range slices.Backward(a.grips) {
		if g.p == p {
			return g
		}
	}
	return nil
}

func (l *ledger) note(what string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.trace = append(l.trace, what)
}

// fail notes that the simulation cannot be run.
func (l *ledger) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.broken = errors.Join(l.broken, err)
}

// err tells whether the simulation could be run.
func (l *ledger) err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.broken
}

// breach notes a fault. l is locked.
func (l *ledger) breach(kind FaultKind, key, format string, args ...any) {
	what := fmt.Sprintf(format, args...)
	l.trace = append(l.trace, fmt.Sprintf("%s: %s", kind, what))
	l.faults = append(l.faults, &Fault{Kind: kind, Key: key, What: what, Trace: slices.Clone(l.trace)})
}

func (l *ledger) reserved(p *process, key string, began moment, r idemmail.ReserveResult) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.account(key)
	a.asked[p] = began
	switch {
	case r.Err != nil:
		l.breach(FaultStoreFailed, key, "%s could not reserve it: %v", p.name, r.Err)
	case r.Token != "":
		a.grips = append(a.grips, &grip{p: p, began: began, ended: l.run.moment()})
	}
}

func (l *ledger) renewed(p *process, key string, began moment, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if g := l.account(key).grip(p); err == nil && g != nil {
		g.began, g.ended = began, l.run.moment()
	}
}

// settled notes that a key was completed or released.
func (l *ledger) settled(p *process, key string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch g := l.account(key).grip(p); {
	case err == nil && g != nil:
		g.settled = true
	case err != nil && !errors.Is(err, idemmail.ErrLeaseLost):
		l.breach(FaultStoreFailed, key, "%s could not settle it: %v", p.name, err)
	}
}

// attempt counts a message that the provider is handed, from 1.
func (l *ledger) attempt(key string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.run.judged(key) && !l.run.unkeyed {
		l.broken = errors.Join(l.broken, fmt.Errorf("mailtest: the provider was handed a message with the key %q, which is none of the job's: the transport must hand IdempotencyKey on", key))
	}
	a := l.account(key)
	a.attempts++
	return a.attempts
}

// delivered judges that the provider takes a message.
func (l *ledger) delivered(p *process, key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.account(key)
	if a.taken > 0 && l.run.judged(key) {
		if why := l.why(a, p); why != "" {
			l.breach(FaultDoubled, key, "%s sends it, though %s", p.name, why)
		} else {
			l.repeated++
		}
	}
	a.taken++
	l.taken++
	a.by = append(a.by, p)
	a.last = a.grip(p)
}

// why says why a message must not be taken again. It is empty where it may:
// the promise is at least once, and the lease of the process that sent it has
// passed before its receipt was kept, or that of the process which sends it now
// and took too long.
func (l *ledger) why(a *account, p *process) string {
	g, mine := a.last, a.grip(p)
	switch {
	case g == nil:
		return "it was sent before, without a reservation"
	case g.p == p:
		return "it has sent it already"
	case l.run.Options.AtMostOnce:
		return g.p.name + " had sent it, and AtMostOnce is set"
	case mine != nil && l.outlived(mine):
		return ""
	case g.settled:
		return g.p.name + " had sent it and had settled its key"
	case !l.outlived(g):
		return g.p.name + " had sent it and its lease has not passed"
	}
	return ""
}

// outlived reports whether the lease of a reservation may have passed.
func (l *ledger) outlived(g *grip) bool {
	lease := l.run.lease
	return lease != idemmail.NoExpiry && g.began.most(l.run.moment()) >= lease-min(l.run.margin, lease/4)
}

// answered judges what a caller is answered.
func (l *ledger) answered(p *process, key string, r idemmail.Result) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.account(key)
	a.final = r
	text := string(r.Receipt.Status)
	if r.Receipt.Code != "" {
		text += ", " + r.Receipt.Code
	}
	l.trace = append(l.trace, fmt.Sprintf("%s is answered for %s: %s", p.name, key, text))
	switch {
	case r.Err == nil && a.taken == 0:
		l.breach(FaultLost, key, "%s is answered that it was sent, and the provider never took it", p.name)
	case r.Receipt.Status == idemmail.StatusFailed && (slices.Contains(a.by, p) || r.Receipt.Replayed && a.taken > 0):
		l.breach(FaultMisreported, key, "%s is answered that it failed, and the provider took it", p.name)
	case errors.Is(r.Err, idemmail.ErrKeyReused):
		l.breach(FaultRefused, key, "%s is answered that the key was used for another message: the fingerprint changes from one attempt to the next", p.name)
	case errors.Is(r.Err, idemmail.ErrInFlight) && l.run.crowd == 0 && !l.held(a, a.asked[p]):
		l.breach(FaultStuck, key, "%s is answered that it is in flight, and nobody holds its key any more", p.name)
	}
}

// held reports whether somebody may have held a key at that moment.
func (l *ledger) held(a *account, at moment) bool {
	return slices.ContainsFunc(a.grips, func(g *grip) bool {
		ends := l.run.lease != idemmail.NoExpiry
		return !g.settled && !(ends && l.run.least(g.ended, at) >= l.run.lease+l.run.margin)
	})
}

// judgeEnd judges what is left of a run whose last process has ended.
func (l *ledger) judgeEnd(last *process) {
	listed := make(map[string]bool)
	reconciler, reconciles := last.store.(idemmail.Reconciler)
	if reconciles {
		for e, err := range reconciler.Unsettled(context.Background(), l.run.namespace+":", 0) {
			if err != nil {
				l.fail(fmt.Errorf("mailtest: list what is unsettled: %w", err))
				return
			}
			listed[last.bare(e.Key)] = true
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, m := range l.run.Messages {
		if m == nil {
			continue
		}
		key := l.run.key(m)
		a := l.accounts[key]
		if key == "" || a == nil || a.final.Receipt == nil || a.final.Receipt.Status != idemmail.StatusUnknown {
			continue
		}
		l.waiting++
		if reconciles && !listed[key] {
			l.breach(FaultUnlisted, key, "its outcome is unknown, and Unsettled does not list it")
		}
	}
}
