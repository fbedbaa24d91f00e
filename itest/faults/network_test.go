package faults_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/itest/internal/backend"
)

// faults are what a network does to a request and its answer.
var faults = []fault{
	{name: "latency", delay: 100 * time.Millisecond},
	{name: "request lost, closed", request: none, end: closed},
	{name: "request lost, reset", request: none, end: reset},
	{name: "request lost, half-open", request: none, end: hangs},
	{name: "request cut in half, reset", request: half, end: reset},
	{name: "request cut in half, half-open", request: half, end: hangs},
	{name: "answer lost, closed", answer: none, end: closed},
	{name: "answer lost, reset", answer: none, end: reset},
	{name: "answer lost, half-open", answer: none, end: hangs},
	{name: "answer cut after a byte, reset", answer: oneByte, end: reset},
	{name: "answer cut in half, half-open", answer: half, end: hangs},
	{name: "answer cut before its last byte, closed", answer: allButOne, end: closed},
}

// lasting are those that are tried as faults that last.
var lasting = slices.DeleteFunc(slices.Clone(faults), func(f fault) bool {
	return f.name != "request lost, reset" && f.name != "answer lost, reset" && f.name != "answer lost, half-open"
})

// A command is one of the store's.
type command string

const (
	reserve  command = "reserve"
	complete command = "complete"
	release  command = "release"
	renew    command = "renew"
)

var commands = []command{renew, complete, release, reserve}

const (
	netTimeout = 3 * time.Second // StoreTimeout
	netLease   = 3 * netTimeout  // so that a renewal that hangs leaves time for another
	netGrace   = 5 * time.Second // for a machine that has much else to do
	netCells   = 18              // at a time
)

var errRefused = errors.New("refused")

// A cell is a command and the fault that befalls it.
type cell struct {
	command    command
	fault      fault
	atMostOnce bool
}

func (c cell) String() string { return fmt.Sprintf("%s, %s", c.command, c.fault.name) }

func cellsOf(commands []command, faults []fault, atMostOnce bool) (cells []cell) {
	for _, c := range commands {
		for _, f := range faults {
			cells = append(cells, cell{c, f, atMostOnce})
		}
	}
	return cells
}

// An experience is what came of a cell.
type experience struct {
	answers []string      // of the calls; those that are alike, one after another, once
	longest time.Duration // a call, but for the send in it
	settled time.Duration // after the first call began
	sends   int64         // begun
	taken   int64         // of them, by the provider
	hits    int64         // of the fault
	events  []idemmail.EventKind
}

// TestNetworkFaults has each fault befall each command of the store once: it
// costs nobody his mail, and doubles none.
func TestNetworkFaults(t *testing.T) {
	t.Parallel()
	backend.EachShared(t, func(t *testing.T, s *backend.Server) {
		for c, e := range befallAll(t, s, cellsOf(commands, faults, false), 1) {
			t.Run(c.String(), func(t *testing.T) { c.assertHarmless(t, e) })
		}
	})
}

// TestNetworkFaultsThatLast has faults befall each command until the first call
// is over. What could not be kept or freed waits for the end of the lease, and
// with AtMostOnce for an operator.
func TestNetworkFaultsThatLast(t *testing.T) {
	t.Parallel()
	cells := cellsOf([]command{complete, release, reserve}, lasting, false)
	cells = append(cells, cellsOf([]command{complete, release, reserve}, lasting, true)...)
	backend.EachShared(t, func(t *testing.T, s *backend.Server) {
		for c, e := range befallAll(t, s, cells, -1) {
			t.Run(fmt.Sprintf("%s, AtMostOnce %v", c, c.atMostOnce), func(t *testing.T) { c.assertBounded(t, e) })
		}
	})
}

// befallAll has their faults befall the cells, each in a lab of its own: some
// clients drop all connections where one fails.
func befallAll(t *testing.T, s *backend.Server, cells []cell, times int) map[cell]experience {
	if s.Addr == "" {
		t.Skip("there is no network in between")
	}
	experiences := map[cell]experience{}
	var mu sync.Mutex // of experiences
	var running sync.WaitGroup
	places := make(chan struct{}, netCells)
	for _, c := range cells {
		places <- struct{}{}
		l := newLab(t, s, idemmail.Options{AtMostOnce: c.atMostOnce})
		running.Go(func() {
			defer func() { <-places }()
			e := l.befall(t, c, times)
			mu.Lock()
			defer mu.Unlock()
			experiences[c] = e
		})
	}
	running.Wait()
	return experiences
}

// assertHarmless asserts that a fault that came once changed nothing.
func (c cell) assertHarmless(t *testing.T, e experience) {
	t.Logf("%v in %v, events %v", e.answers, e.longest.Round(time.Millisecond), e.events)
	require.EqualValues(t, 1, e.hits, "the fault must have come")
	require.EqualValues(t, 1, e.taken)
	require.Less(t, e.longest, 2*netTimeout+netGrace)
	require.NotContains(t, e.events, idemmail.EventLeaseLost)
	before := e.answers[:len(e.answers)-1]
	switch c.command {
	case reserve: // failures are told as such, and nothing is sent
		require.Equal(t, "sent", before[len(before)-1])
		for _, a := range before[:len(before)-1] { // in flight: until the store has freed it
			require.Contains(t, []string{"store_failed", "in flight"}, a)
		}
		require.Less(t, e.settled, netLease, "freed, and not by its end")
		require.EqualValues(t, 1, e.sends)
	case release:
		require.Equal(t, []string{"refused", "sent"}, before, "the key must have been freed")
		require.EqualValues(t, 2, e.sends)
	default:
		require.Equal(t, []string{"sent"}, before)
		require.EqualValues(t, 1, e.sends)
	}
	if c.command == renew {
		require.Contains(t, e.events, idemmail.EventRenewed)
	}
}

// assertBounded asserts what holds of a fault that lasted.
func (c cell) assertBounded(t *testing.T, e experience) {
	t.Logf("%v in %v, events %v", e.answers, e.longest.Round(time.Millisecond), e.events)
	require.NotZero(t, e.hits, "the fault must have come")
	require.Less(t, e.longest, 2*netTimeout+netGrace)
	require.Contains(t, e.events, idemmail.EventStoreFailed)
	first := map[command]string{reserve: "store_failed", complete: "sent", release: "refused"}[c.command]
	require.Equal(t, first, e.answers[0], "the caller learns what became of his message")
	if c.atMostOnce {
		require.EqualValues(t, 1, e.taken)
		return
	}
	require.NotZero(t, e.taken)
	if e.taken > 1 { // the receipt could not be kept
		require.Equal(t, complete, c.command)
		require.EqualValues(t, 2, e.taken)
		const vague = 250 * time.Millisecond // how well a client may know the server's time
		require.Greater(t, e.settled, netLease-vague, "repeated within its lease")
	}
}

// A lab is a guard whose store is behind a proxy.
type lab struct {
	proxy     *proxy
	guard     *idemmail.Guard
	namespace string

	mu      sync.Mutex // of what follows
	arms    map[string]func()
	events  map[string][]idemmail.EventKind
	renewed map[string]chan struct{}
}

var labs atomic.Int64

func newLab(t *testing.T, s *backend.Server, opts idemmail.Options) *lab {
	l := &lab{
		namespace: fmt.Sprintf("net%d", labs.Add(1)),
		proxy:     startProxy(t, s.Addr),
		arms:      map[string]func(){},
		events:    map[string][]idemmail.EventKind{},
		renewed:   map[string]chan struct{}{},
	}
	store := backend.Open(t, s.Through(l.proxy.addr))
	opts.Store = armedStore{store, l}
	opts.Namespace, opts.Lease, opts.StoreTimeout, opts.Logger, opts.Observe = l.namespace, netLease, netTimeout, discard, l.observe
	guard, err := idemmail.NewGuard(opts)
	require.NoError(t, err)
	l.guard = guard
	_, err = guard.Do(t.Context(), "warm", "f", func(context.Context) (*idemmail.Receipt, error) { return nil, nil })
	require.NoError(t, err)
	return l
}

func (l *lab) observe(_ context.Context, e idemmail.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if kinds := l.events[e.Key]; len(kinds) == 0 || kinds[len(kinds)-1] != e.Kind {
		l.events[e.Key] = append(kinds, e.Kind)
	}
	if c := l.renewed[e.Key]; c != nil && e.Kind == idemmail.EventRenewed {
		close(c)
		delete(l.renewed, e.Key)
	}
}

// arm has f called before the next such command for the key.
func (l *lab) arm(c command, key string, f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.arms[string(c)+" "+l.namespace+":"+key] = f
}

func (l *lab) before(c command, key string) {
	l.mu.Lock()
	f := l.arms[string(c)+" "+key]
	delete(l.arms, string(c)+" "+key)
	l.mu.Unlock()
	if f != nil {
		f()
	}
}

// An armedStore tells its lab of each command.
type armedStore struct {
	backend.Store
	lab *lab
}

func (s armedStore) Reserve(ctx context.Context, key, fingerprint string, lease time.Duration) (string, *idemmail.Record, error) {
	s.lab.before(reserve, key)
	return s.Store.Reserve(ctx, key, fingerprint, lease)
}

func (s armedStore) Complete(ctx context.Context, key, token string, rec idemmail.Record, ttl time.Duration) error {
	s.lab.before(complete, key)
	return s.Store.Complete(ctx, key, token, rec, ttl)
}

func (s armedStore) Release(ctx context.Context, key, token string) error {
	s.lab.before(release, key)
	return s.Store.Release(ctx, key, token)
}

func (s armedStore) Renew(ctx context.Context, key, token string, lease time.Duration) error {
	s.lab.before(renew, key)
	return s.Store.Renew(ctx, key, token, lease)
}

// befall has a fault befall a command so many times, and runs the job under the
// cell's key as a queue would: until it is settled, and once more.
func (l *lab) befall(t *testing.T, c cell, times int) experience {
	var e experience
	key := c.String() + "!"
	var hit atomic.Pointer[rule]
	l.arm(c.command, key, func() { hit.Store(l.proxy.spoil(l.namespace+":"+key, c.fault, times)) })
	var sends, taken atomic.Int64
	var inSend time.Duration
	send := func(ctx context.Context) (*idemmail.Receipt, error) {
		began := time.Now()
		defer func() { inSend = time.Since(began) }()
		n := sends.Add(1)
		switch {
		case c.command == release && n == 1:
			return nil, idemmail.NotSent(errRefused)
		case c.command == renew && n == 1:
			l.awaitRenewal(ctx, key)
		}
		taken.Add(1)
		return &idemmail.Receipt{Status: idemmail.StatusSent}, nil
	}
	first := time.Now()
	for last := ""; last != "replayed" && t.Context().Err() == nil; time.Sleep(50 * time.Millisecond) {
		began := time.Now()
		inSend = 0
		r, err := l.guard.Do(t.Context(), key, "f", send)
		e.longest = max(e.longest, time.Since(began)-inSend)
		if times < 0 {
			l.proxy.mend()
		}
		if errors.Is(err, idemmail.ErrAbandoned) {
			l.settle(t, key, taken.Load() > 0)
		}
		if a := describe(r, err); a != last {
			e.answers = append(e.answers, a)
			last = a
		}
	}
	e.settled = time.Since(first)
	e.sends, e.taken = sends.Load(), taken.Load()
	if r := hit.Load(); r != nil {
		e.hits = r.hits.Load()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	e.events = slices.Clone(l.events[key])
	return e
}

// settle is what an operator does about an abandoned key, which must be listed.
func (l *lab) settle(t *testing.T, key string, delivered bool) {
	for e, err := range l.guard.Unsettled(t.Context(), netLease) {
		if err == nil && e.Key == key && delivered {
			err = l.guard.Resolve(t.Context(), e, nil)
		} else if err == nil && e.Key == key {
			err = l.guard.Forget(t.Context(), e)
		}
		if err != nil {
			t.Error(err)
		}
	}
}

// awaitRenewal waits until the lease has been renewed.
func (l *lab) awaitRenewal(ctx context.Context, key string) {
	c := make(chan struct{})
	l.mu.Lock()
	l.renewed[key] = c
	l.mu.Unlock()
	select {
	case <-c:
	case <-ctx.Done():
	}
}

// describe says in a word what a call was answered.
func describe(r *idemmail.Receipt, err error) string {
	switch {
	case err == nil && r.Replayed:
		return "replayed"
	case err == nil:
		return "sent"
	case errors.Is(err, errRefused) && r.Status == idemmail.StatusFailed:
		return "refused"
	case errors.Is(err, idemmail.ErrStoreFailed) && r.Status == idemmail.StatusFailed && r.Retryable:
		return "store_failed"
	case errors.Is(err, idemmail.ErrInFlight) && r.Retryable:
		return "in flight"
	case errors.Is(err, idemmail.ErrAbandoned) && !r.Retryable:
		return "abandoned"
	}
	return r.Code + ": " + err.Error()
}
