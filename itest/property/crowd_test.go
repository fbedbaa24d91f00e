package property

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/idemmail/idemmail"
)

// Several processes send under a few keys at the same time, over a store with
// troubles of all sorts, with callers that give up and processes that crash.
// Whatever comes of it, no message is sent but by who holds its key, none is
// sent twice but where the promise lets it go again, none is lost, every caller
// is answered truly and in time, and in the end every key is free or settled.
func TestCrowd(t *testing.T) {
	check(t, 3000, 300_000, func(t *rapid.T) {
		c := newCrowd(t)
		c.work()
		c.judge()
	})
}

const (
	crowdLease = time.Minute
	grace      = time.Second // of a call, for pauses and the like
)

// A crowd is some processes on one store, and all that an observer outside
// sees of them.
type crowd struct {
	t         *rapid.T
	options   idemmail.Options
	mem       *idemmail.MemStore
	chance    int // of trouble at each call of the store, in a hundred
	processes []*crowdProcess
	jobs      []*job
	dice      dice

	mu       sync.Mutex
	sends    []*sending
	holds    map[string]*hold // by token
	unheard  map[string]bool  // keys of batches whose call panicked
	breaches []string
}

// A job is one call of a process.
type job struct {
	process *crowdProcess
	at      time.Duration // when it begins
	patient time.Duration // when its context ends; 0: never
	keys    []string
	variant string
	many    bool

	began, ended time.Time
	answers      []idemmail.Result // nil: nobody heard them
}

// jobKey is the key of the job in a context.
type jobKey struct{}

// A hold is a reservation as the store knows it.
type hold struct {
	key       string
	process   *crowdProcess
	job       *job      // that its token was answered to; nil: nobody
	began     time.Time // when it was reserved
	since     time.Time // when it was reserved or renewed
	used      int       // sends under it
	completed time.Time // zero: never
	status    idemmail.Status
	released  bool
	settled   time.Time // completed or released
}

// A sending is one send by the provider.
type sending struct {
	id, key, variant string
	process          *crowdProcess
	job              *job
	hold             *hold // nil: without a reservation
	lapsed           bool  // its lease may have ended before
	began, ended     time.Time
	accepted         bool
	status           idemmail.Status // that it must come to; empty: it did not end
}

func newCrowd(t *rapid.T) *crowd {
	c := &crowd{
		t:       t,
		mem:     idemmail.NewMemStore(idemmail.MemStoreOptions{}),
		chance:  rapid.SampledFrom([]int{0, 0, 5, 30}).Draw(t, "trouble"),
		holds:   make(map[string]*hold),
		unheard: make(map[string]bool),
		dice:    dice{seed: rapid.Uint64().Draw(t, "dice"), thrown: make(map[string]uint64)},
		options: idemmail.Options{
			Namespace:        namespace,
			Lease:            crowdLease,
			AtMostOnce:       rapid.Bool().Draw(t, "at most once"),
			RejectDuplicates: rapid.Bool().Draw(t, "reject duplicates"),
			WaitInFlight:     rapid.SampledFrom([]time.Duration{0, 3 * time.Second, 3 * time.Minute}).Draw(t, "wait"),
			Logger:           slog.New(slog.NewTextHandler(io.Discard, nil)),
		},
	}
	c.options.FailOpen = !c.options.AtMostOnce && rapid.IntRange(0, 3).Draw(t, "fail open") == 0
	together := rapid.Bool().Draw(t, "together")
	for i := range rapid.IntRange(1, 3).Draw(t, "processes") {
		p := &crowdProcess{crowd: c, name: fmt.Sprint(i), dead: make(chan struct{})}
		if rapid.IntRange(0, 3).Draw(t, "crashes") == 0 {
			p.crash = time.Duration(rapid.IntRange(0, 150).Draw(t, "crash")) * time.Second
		}
		p.open(as(rapid.SampledFrom(kinds).Draw(t, "store"), crowdStore{p}), together)
		c.processes = append(c.processes, p)
	}
	for range rapid.IntRange(1, 10).Draw(t, "calls") {
		j := &job{
			process: c.processes[rapid.IntRange(0, len(c.processes)-1).Draw(t, "process")],
			at:      time.Duration(rapid.IntRange(0, 120).Draw(t, "at")) * time.Second,
			keys:    rapid.SliceOfN(rapid.SampledFrom([]string{"one", "one", "one", "two", "three"}), 1, 4).Draw(t, "keys"),
			variant: rapid.SampledFrom([]string{"a", "a", "a", "a", "b"}).Draw(t, "variant"),
			many:    rapid.IntRange(0, 3).Draw(t, "many") == 0,
		}
		if rapid.IntRange(0, 3).Draw(t, "impatient") == 0 {
			j.patient = time.Duration(rapid.IntRange(0, 100_000).Draw(t, "patience")) * time.Millisecond
		}
		if !j.many {
			j.keys = j.keys[:1]
		}
		c.jobs = append(c.jobs, j)
	}
	return c
}

// work has all jobs done, and waits until nothing is under way any more.
func (c *crowd) work() {
	var all sync.WaitGroup
	for _, p := range c.processes {
		if p.crash > 0 {
			all.Go(func() {
				time.Sleep(p.crash)
				close(p.dead)
			})
		}
	}
	for _, j := range c.jobs {
		all.Go(func() { c.do(j) })
	}
	all.Wait()
	time.Sleep(2 * lateness)
	synctest.Wait()
}

func (c *crowd) do(j *job) {
	time.Sleep(j.at)
	ctx, cancel := context.WithCancel(context.WithValue(context.Background(), jobKey{}, j))
	defer cancel()
	if j.patient > 0 {
		defer time.AfterFunc(j.patient, cancel).Stop()
	}
	j.began, j.ended = time.Now(), time.Now()
	if j.process.isDead() {
		return
	}
	results, how := watch(func() []idemmail.Result {
		if !j.many {
			r, err := j.process.transport.Send(ctx, newMessage(j.keys[0], j.variant))
			return []idemmail.Result{{Receipt: r, Err: err}}
		}
		var messages []*idemmail.Message
		for _, key := range j.keys {
			messages = append(messages, newMessage(key, j.variant))
		}
		return j.process.transport.SendMany(ctx, messages)
	})
	j.ended = time.Now()
	if how != "" && how != "panic" {
		c.breach("a call ended by %q", how)
	}
	if how == "" && !j.process.isDead() {
		j.answers = results
	}
}

func (c *crowd) breach(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.breaches = append(c.breaches, fmt.Sprintf(format, args...))
}

// judge looks at all that was seen.
func (c *crowd) judge() {
	for _, j := range c.jobs {
		c.judgeJob(j)
	}
	c.judgeSends()
	c.judgeEnd()
	if len(c.breaches) > 0 {
		c.t.Fatalf("%s\nsends:\n%s", strings.Join(c.breaches, "\n"), c.describe())
	}
}

func (c *crowd) describe() string {
	var b strings.Builder
	for _, s := range c.sends {
		fmt.Fprintf(&b, "%+v\n  under %+v\n", *s, s.hold)
	}
	return b.String()
}

// judgeJob: the answers are true, and came in time.
func (c *crowd) judgeJob(j *job) {
	bound := grace
	for range j.keys { // at worst one after another
		bound += c.options.WaitInFlight + 4*(storeTimeout+grace)
	}
	for _, s := range c.sends {
		if s.job == j {
			bound += s.ended.Sub(s.began)
		}
	}
	if took := j.ended.Sub(j.began); took > bound {
		c.breach("a call took %v, its bound is %v", took, bound)
	}
	if j.answers == nil {
		return
	}
	if len(j.answers) != len(j.keys) {
		c.breach("%d answers to %d messages", len(j.answers), len(j.keys))
		return
	}
	for i, a := range j.answers {
		if err := c.judgeAnswer(j, j.keys[i], a); err != nil {
			c.breach("%q at %v, by process %s: answered %+v, %v: %v", j.keys[i], j.at, j.process.name, a.Receipt, a.Err, err)
		}
	}
}

func (c *crowd) judgeAnswer(j *job, key string, a idemmail.Result) error {
	r := a.Receipt
	if r == nil {
		return errors.New("no receipt")
	}
	duplicate := errors.Is(a.Err, idemmail.ErrDuplicate)
	if (a.Err == nil || duplicate) && r.Status == idemmail.StatusFailed || a.Err == nil && r.Status != idemmail.StatusSent {
		return errors.New("status and error do not agree")
	}
	var own *sending // of this receipt
	for _, s := range c.sends {
		if s.id == r.ProviderID {
			own = s
		}
	}
	mine := own != nil && own.job == j
	switch r.Status {
	case idemmail.StatusSent:
		if own == nil || own.key != key || own.variant != j.variant || !own.accepted || own.status != idemmail.StatusSent {
			return errors.New("no send was sent")
		}
		if r.Replayed != !mine && !j.many { // within a batch the same key may come twice
			return errors.New("replayed, or not, wrongly")
		}
	case idemmail.StatusFailed:
		if own != nil && own.accepted {
			return errors.New("the provider has accepted it")
		}
	}
	switch r.Code {
	case idemmail.CodeInFlight:
		if !j.many && c.options.WaitInFlight > j.ended.Sub(j.began) && (j.patient == 0 || j.ended.Sub(j.began) < j.patient) {
			return errors.New("it did not wait")
		}
		if !j.many && c.chance == 0 && !c.held(key, j.ended.Add(-2*grace), j.ended) {
			return errors.New("nobody held the key")
		}
	case idemmail.CodeAbandoned:
		if !c.options.AtMostOnce {
			return errors.New("abandoned, without AtMostOnce")
		}
	case idemmail.CodeStoreFailed:
		if c.chance == 0 {
			return errors.New("the store did not fail")
		}
	case idemmail.CodeNotBegun:
		if j.patient == 0 {
			return errors.New("its context did not end")
		}
	}
	return nil
}

// held reports whether somebody held the key pending at some time in between.
func (c *crowd) held(key string, from, to time.Time) bool {
	for _, h := range c.holds {
		if h.key != key || h.began.After(to) {
			continue
		}
		settled := h.released || !h.completed.IsZero()
		lapsed := !c.options.AtMostOnce && h.since.Add(crowdLease).Before(from)
		if settled && !h.settled.Before(from) || !settled && !lapsed {
			return true
		}
	}
	return false
}

// judgeSends: what goes again goes only where the first send's receipt was not
// kept before its lease ended.
func (c *crowd) judgeSends() {
	accepted := make(map[string]*sending)
	for _, s := range c.sends {
		first := accepted[s.key]
		if first != nil {
			switch {
			case c.options.AtMostOnce:
				c.breach("%q was sent again, with AtMostOnce", s.key)
			case s.hold == nil || first.hold == nil || s.lapsed: // FailOpen, or too slow
			case !first.hold.completed.IsZero() && first.hold.completed.Before(s.began):
				c.breach("%q was sent again, though its receipt was kept", s.key)
			}
		}
		if s.accepted {
			accepted[s.key] = s
		}
	}
	for token, h := range c.holds {
		if h.used > 1 {
			c.breach("%d sends under the reservation %s of %q", h.used, token, h.key)
		}
		if h.settled.IsZero() && h.used == 0 && c.chance == 0 && !h.process.crashes() && !c.lost(h) {
			c.breach("%q was reserved, and neither sent nor settled", h.key)
		}
	}
	for _, s := range c.sends {
		h := s.hold
		switch {
		case h == nil || s.status == "":
		case !h.completed.IsZero() && h.status != s.status:
			c.breach("%q was kept as %s, and it was %s", s.key, h.status, s.status)
		case h.released && s.status != idemmail.StatusFailed:
			c.breach("%q was freed, and it was %s", s.key, s.status)
		case c.chance == 0 && !s.process.crashes() && h.settled.IsZero() && !c.lost(h):
			c.breach("%q was not settled, and the store works", s.key)
		}
	}
}

// lost reports whether the lease of a reservation may have ended before its
// job did.
func (c *crowd) lost(h *hold) bool {
	return !c.options.AtMostOnce && h.job != nil && h.job.ended.Sub(h.since) >= crowdLease-grace
}

// judgeEnd: in the end, by a process that nothing ails, each key is answered
// as sent, or as unknown, and is settled.
func (c *crowd) judgeEnd() {
	ctx := context.Background()
	last := &crowdProcess{crowd: c, name: "last", dead: make(chan struct{}), calm: true}
	ctx = context.WithValue(ctx, jobKey{}, &job{process: last})
	last.open(c.mem, false)
	time.Sleep(crowdLease)
	for _, key := range []string{"one", "two", "three"} {
		accepted, unknown, open := 0, 0, 0
		for _, s := range c.sends {
			if s.key == key && s.accepted {
				accepted++
			}
			if s.key == key && s.status != idemmail.StatusFailed {
				unknown++
			}
			if s.key == key && s.hold == nil {
				open++
			}
		}
		before := len(c.sends)
		r, err := last.transport.Send(ctx, newMessage(key, "a"))
		sent := len(c.sends) > before
		switch {
		case err == nil && accepted == 0 && !sent:
			c.breach("%q is lost: answered as sent, and never accepted", key)
		case errors.Is(err, idemmail.ErrInFlight):
			c.breach("%q is in flight in the end", key)
		case r.Status == idemmail.StatusFailed && !errors.Is(err, idemmail.ErrKeyReused):
			c.breach("%q fails in the end: %v", key, err)
		case r.Code == idemmail.CodeAbandoned && !c.options.AtMostOnce:
			c.breach("%q is abandoned", key)
		case r.Status == idemmail.StatusUnknown && r.Code != idemmail.CodeAbandoned && unknown == 0 && !c.unheard[key]:
			c.breach("%q is unknown in the end, and no send was: %v", key, err)
		}
		e, err := c.mem.Lookup(ctx, namespace+":"+key)
		switch {
		case err != nil:
			c.breach("lookup: %v", err)
		case e != nil && e.Record.State == idemmail.StatePending && !c.options.AtMostOnce:
			c.breach("%q is pending in the end", key)
		}
	}
}
