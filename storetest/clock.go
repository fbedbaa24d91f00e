package storetest

import "time"

// long is a lease or TTL that outlasts every rule, whatever it does to the
// clock.
const long = 100 * time.Hour

// year is longer than any sensible lease or TTL, and short enough that several
// rules can advance one clock by it.
const year = 366 * 24 * time.Hour

// The store's clock is not seen: it may be one that only Advance moves, or one
// that runs by itself, or both, and Redis stand-ins have one of each. So a
// rule that needs a lease to end passes more time than it lasts; one that
// needs it not to have ended looks afterwards how long it took, and tries
// again with a longer one where that was too long.

// short is a lease or TTL to be outlived.
func (p *probe) short() time.Duration {
	if p.advance != nil {
		return time.Minute
	}
	return 100 * time.Millisecond
}

// margin is what a store's unit of time, and the error of its idea of its
// server's time, may add to a duration or take from it.
func (p *probe) margin() time.Duration {
	if p.advance != nil {
		return 2 * time.Second
	}
	return 100 * time.Millisecond
}

// pass lets d pass on the clock by which records end.
func (p *probe) pass(d time.Duration) {
	if p.advance == nil {
		p.sleep(d)
		return
	}
	p.mu.Lock()
	p.advanced += d
	p.mu.Unlock()
	p.advance(d)
}

// outlive lets so much time pass that what lasts d has ended.
func (p *probe) outlive(d time.Duration) { p.pass(d + p.margin()) }

// endure lets a year pass, or, in real time, a moment.
func (p *probe) endure() {
	if p.advance != nil {
		p.pass(year)
		return
	}
	p.pass(2 * p.margin())
}

func (p *probe) sleep(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-p.ctx.Done():
		p.stopf("the rule's time was over")
	}
}

// leases are durations for what must not have ended by then: each is tried
// where the one before was too short for this machine.
func (p *probe) leases() []time.Duration {
	if p.advance != nil {
		return []time.Duration{time.Minute, 10 * time.Minute}
	}
	return []time.Duration{400 * time.Millisecond, 1600 * time.Millisecond, 6400 * time.Millisecond}
}

// A moment is a point on the clocks that the kit can see.
type moment struct {
	real     time.Time
	advanced time.Duration
}

func (p *probe) now() moment {
	p.mu.Lock()
	defer p.mu.Unlock()
	return moment{real: time.Now(), advanced: p.advanced}
}

// since answers the most that can have passed on the store's clock since m.
func (p *probe) since(m moment) time.Duration {
	now := p.now()
	return now.real.Sub(m.real) + now.advanced - m.advanced
}

// A birth is the call that a record's age counts from.
type birth struct{ began, ended moment }

// born calls f, which reserves, renews or completes.
func (p *probe) born(f func()) birth {
	b := birth{began: p.now()}
	f()
	b.ended = p.now()
	return b
}

// How long age really waits, and how far from it an age may be.
const (
	aging     = 300 * time.Millisecond
	agingSlip = 200 * time.Millisecond
)

// grow lets records grow older. Ages may go by another clock of the server
// than the one that Advance moves (miniredis: FastForward ends keys, TIME goes
// on as it was), so time passes on both.
func (p *probe) grow() {
	if p.advance != nil {
		p.pass(p.short())
	}
	p.sleep(aging)
}

// age notes an age that fits neither clock. It was asked for then and answered
// just now.
func (p *probe) age(what string, age time.Duration, b birth, asked moment) {
	now := p.now()
	least, most := asked.real.Sub(b.ended.real), now.real.Sub(b.began.real)
	if age >= 0 && age >= least-agingSlip && age <= most+agingSlip {
		return
	}
	if p.advance != nil {
		moved := now.advanced - b.began.advanced
		if age >= 0 && age >= moved-p.margin() && age <= moved+most+p.margin() {
			return
		}
		least, most = moved, moved+most
	}
	p.failf("%s: the age must be about %v to %v; it was %v", what, least, most, age)
}

// heldAge notes whether a key is free, or shows an age that fits neither clock.
func (p *probe) heldAge(key, what string, b birth) {
	asked := p.now()
	if held := p.held(key, what); held != nil {
		p.age(what, held.Age, b, asked)
	}
}
