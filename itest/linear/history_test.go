package linear

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/idemmail/idemmail"
)

// A recorder has clients ask stores at random, and writes down what they ask
// and are answered.
type recorder struct {
	unit  time.Duration // what leases, TTLs and pauses are made of
	crowd bool          // clients make no pauses, and no record lasts long
	keys  []string
	steps int // of each client
	began time.Time

	mu      sync.Mutex
	history []porcupine.Operation
	known   map[string][]idemmail.Entry // by key: tokens that somebody was answered, the newest last
	broken  error                       // an answer that is none of the contract's
	longest time.Duration               // from a question to its answer
}

// record has one client per store ask. The same seed asks the same questions,
// as far as answers allow.
func record(seed uint64, unit time.Duration, crowd bool, keys, steps int, clients []idemmail.Store) *recorder {
	r := &recorder{unit: unit, crowd: crowd, steps: steps, began: time.Now(), known: make(map[string][]idemmail.Entry)}
	for i := range keys {
		r.keys = append(r.keys, fmt.Sprintf("linear:%x-%d", rand.Uint64(), i))
	}
	var all sync.WaitGroup
	for i, store := range clients {
		c := &client{recorder: r, id: i, store: store, rand: rand.New(rand.NewPCG(seed, uint64(i)))}
		all.Go(c.run)
	}
	all.Wait()
	return r
}

// A client asks one question after another.
type client struct {
	*recorder
	id    int
	store idemmail.Store
	rand  *rand.Rand
}

func (c *client) run() {
	for i := range c.steps {
		c.ask(i)
		if !c.crowd && c.rand.IntN(3) > 0 { // else at once
			time.Sleep(time.Duration(c.rand.Int64N(int64(c.unit))))
		}
	}
}

// life is mostly so short that it ends within the history.
func (c *client) life() time.Duration {
	if c.crowd {
		return c.unit/4 + time.Duration(c.rand.Int64N(int64(c.unit)))
	}
	switch c.rand.IntN(20) {
	case 0:
		return idemmail.NoExpiry
	case 1, 2, 3:
		return 100 * c.unit
	}
	return c.unit/4 + time.Duration(c.rand.Int64N(int64(6*c.unit)))
}

func (c *client) ask(i int) {
	keys := c.keys
	if batch, ok := c.store.(idemmail.BatchStore); ok && c.rand.IntN(4) == 0 {
		shuffled := slices.Clone(keys)
		c.rand.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		c.askMany(i, batch, shuffled[:1+c.rand.IntN(len(shuffled))])
		return
	}
	key := keys[c.rand.IntN(len(keys))]
	q := question{key: key, life: c.life(), fingerprint: c.name(i), receipt: c.name(i)}
	e := c.entry(key)
	q.token, q.state = e.Token, e.Record.State
	ctx := context.Background()
	renewer, _ := c.store.(idemmail.Renewer)
	reconciler, _ := c.store.(idemmail.Reconciler)

	n := c.rand.IntN(20)
	switch {
	case n < 7 || q.token == "":
		q.method = "reserve"
		c.note(q, func(a *answer) (err error) {
			a.token, a.held, err = c.store.Reserve(ctx, key, q.fingerprint, q.life)
			return err
		})
	case n < 10:
		q.method = "complete"
		c.note(q, func(*answer) error { return c.store.Complete(ctx, key, q.token, q.done(), q.life) })
	case n < 13:
		q.method = "release"
		c.note(q, func(*answer) error { return c.store.Release(ctx, key, q.token) })
	case n < 16 && renewer != nil:
		q.method = "renew"
		c.note(q, func(*answer) error { return renewer.Renew(ctx, key, q.token, q.life) })
	case reconciler == nil:
	case n == 18:
		q.method = "forget"
		c.note(q, func(*answer) error { return reconciler.Forget(ctx, e) })
	case n == 19:
		q.method = "resolve"
		r := q.done().Receipt
		r.Status = idemmail.StatusSent
		c.note(q, func(*answer) error { return reconciler.Resolve(ctx, e, r, q.life) })
	default:
		q.method = "lookup"
		c.note(q, func(a *answer) error {
			e, err := reconciler.Lookup(ctx, key)
			if e != nil {
				a.token, a.held = e.Token, &e.Record
			}
			return err
		})
	}
}

// askMany asks for several keys in one call.
func (c *client) askMany(i int, batch idemmail.BatchStore, keys []string) {
	ctx := context.Background()
	questions := make([]question, len(keys))
	for n, key := range keys {
		e := c.entry(key)
		name := fmt.Sprintf("%s.%d", c.name(i), n)
		questions[n] = question{key: key, token: e.Token, state: e.Record.State, life: c.life(), fingerprint: name, receipt: name, many: len(keys) > 1}
	}
	answers := make([]answer, len(keys))
	errs := make([]error, len(keys))
	method := []string{"reserve", "complete", "renew"}[c.rand.IntN(3)]
	if slices.ContainsFunc(questions, func(q question) bool { return q.token == "" }) {
		method = "reserve"
	}
	asked := time.Since(c.began)
	switch method {
	case "reserve":
		reqs := make([]idemmail.ReserveRequest, len(keys))
		for n, q := range questions {
			reqs[n] = idemmail.ReserveRequest{Key: q.key, Fingerprint: q.fingerprint, Lease: q.life}
		}
		for n, r := range batch.ReserveMany(ctx, reqs) {
			answers[n], errs[n] = answer{token: r.Token, held: r.Held}, r.Err
		}
	case "complete":
		reqs := make([]idemmail.CompleteRequest, len(keys))
		for n, q := range questions {
			reqs[n] = idemmail.CompleteRequest{Key: q.key, Token: q.token, Record: q.done(), TTL: q.life}
		}
		copy(errs, batch.CompleteMany(ctx, reqs))
	case "renew":
		reqs := make([]idemmail.RenewRequest, len(keys))
		for n, q := range questions {
			reqs[n] = idemmail.RenewRequest{Key: q.key, Token: q.token, Lease: q.life}
		}
		copy(errs, batch.RenewMany(ctx, reqs))
	}
	answered := time.Since(c.began)
	for n, q := range questions {
		q.method, q.asked, answers[n].answered = method, asked, answered
		c.write(q, answers[n], errs[n])
	}
}

// name is different for each question.
func (c *client) name(i int) string { return fmt.Sprintf("%d.%d", c.id, i) }

func (q question) done() idemmail.Record {
	return idemmail.Record{State: idemmail.StateDone, Fingerprint: q.fingerprint,
		Receipt: &idemmail.Receipt{Status: idemmail.StatusUnknown, ProviderID: q.receipt}}
}

// entry is one of the newest that are known of a key, mostly the newest.
func (c *client) entry(key string) idemmail.Entry {
	c.mu.Lock()
	defer c.mu.Unlock()
	known := c.known[key]
	if len(known) == 0 {
		return idemmail.Entry{Key: key}
	}
	back := 0
	if c.rand.IntN(3) == 0 {
		back = c.rand.IntN(min(4, len(known)))
	}
	e := known[len(known)-1-back]
	if c.rand.IntN(4) == 0 { // it may have been completed meanwhile
		e.Record.State = idemmail.StateDone
	}
	return e
}

func (c *client) note(q question, ask func(*answer) error) {
	var a answer
	q.asked = time.Since(c.began)
	err := ask(&a)
	a.answered = time.Since(c.began)
	c.write(q, a, err)
}

func (r *recorder) write(q question, a answer, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.longest = max(r.longest, a.answered-q.asked)
	wanted := idemmail.ErrLeaseLost
	switch q.method {
	case "reserve", "lookup":
		wanted = nil
	case "forget", "resolve":
		wanted = idemmail.ErrChanged
	}
	switch {
	case err == nil:
	case wanted != nil && errors.Is(err, wanted):
		a.refused = true
	default:
		r.broken = errors.Join(r.broken, fmt.Errorf("%s of %s: %w", q.method, q.key, err))
		return
	}
	if a.token != "" {
		state := idemmail.StatePending
		if a.held != nil {
			state = a.held.State
		}
		r.known[q.key] = append(r.known[q.key], idemmail.Entry{Key: q.key, Token: a.token, Record: idemmail.Record{State: state}})
	}
	r.history = append(r.history, porcupine.Operation{
		ClientId: len(r.history) % 64, // a batch asks about several keys at once
		Input:    q, Call: int64(q.asked), Output: a, Return: int64(a.answered),
	})
}
