package guarantees_test

import (
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/itest/internal/backend"
	"github.com/idemmail/idemmail/itest/internal/worker"
)

const namespace = "guarantees"

// short is a lease, a TTL or a wait whose end a test waits for.
const short = 500 * time.Millisecond

// What the senders' modes are called.
const (
	byDefault   = "default"
	renewed     = "renewed"       // a lease that is shorter than its send
	runsOut     = "runs out"      // a short lease that is not renewed for long
	once        = "once"          // AtMostOnce
	onceRenewed = "once renewed"  // and a lease that is shorter than its send
	onceRunsOut = "once runs out" // both
	briefly     = "briefly"       // a short TTL
	onceBriefly = "once briefly"  // and AtMostOnce
	bounded     = "bounded"       // a short MaxSend
	waits       = "waits"         // WaitInFlight
	waitsShort  = "waits short"   // but not for long
)

// renewedLease is short enough to pass within a test, were it not renewed, and
// long enough for a machine that has much else to do.
const renewedLease = 3 * time.Second

var modes = map[string]worker.Mode{
	byDefault:   {Lease: time.Hour},
	renewed:     {Lease: renewedLease, MaxSend: time.Hour},
	runsOut:     {Lease: short, MaxSend: short},
	once:        {Lease: time.Hour, AtMostOnce: true},
	onceRenewed: {Lease: renewedLease, MaxSend: time.Hour, AtMostOnce: true},
	onceRunsOut: {Lease: short, MaxSend: short, AtMostOnce: true},
	briefly:     {Lease: time.Hour, TTL: short},
	onceBriefly: {Lease: time.Hour, TTL: short, AtMostOnce: true},
	bounded:     {Lease: time.Hour, MaxSend: short},
	waits:       {Lease: time.Hour, WaitInFlight: time.Hour},
	waitsShort:  {Lease: time.Hour, WaitInFlight: short},
}

func init() {
	for name, m := range modes {
		m.StoreTimeout = 20 * time.Second // for a machine that has much else to do
		modes[name] = m
	}
}

// A pair is two senders that share a store.
type pair struct {
	server   *backend.Server
	store    backend.Store // of the test
	one, two *worker.Worker
}

// newPair starts two senders: in processes of their own where these can share
// the store.
func newPair(t *testing.T, s *backend.Server) *pair {
	start := worker.Start
	if !s.Shared() {
		start = worker.StartHere
	}
	config := worker.Config{URL: s.URL, Namespace: namespace, Modes: modes}
	return &pair{s, backend.Open(t, s.URL), start(t, config), start(t, config)}
}

// guard is the test's own, for what an operator does.
func (p *pair) guard(t *testing.T, lease time.Duration) *idemmail.Guard {
	t.Helper()
	g, err := idemmail.NewGuard(idemmail.Options{Store: p.store, Namespace: namespace, Lease: lease, AtMostOnce: true, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	return g
}

// lookup answers what holds a key.
func (p *pair) lookup(t *testing.T, key string) *idemmail.Entry {
	t.Helper()
	e, err := p.store.Lookup(t.Context(), namespace+":"+key)
	require.NoError(t, err)
	return e
}

// unsettled lists the keys that wait for an operator.
func unsettled(t *testing.T, g *idemmail.Guard, olderThan time.Duration) (keys []string) {
	t.Helper()
	for e, err := range g.Unsettled(t.Context(), olderThan) {
		require.NoError(t, err, e.Key)
		keys = append(keys, e.Key)
	}
	return keys
}

// send has a message sent, with the outcome.
func send(t *testing.T, w *worker.Worker, mode string, m worker.Message, o worker.Outcome) worker.Answer {
	t.Helper()
	s := w.Send(mode, m)
	s.AwaitBegun(t)
	s.End(o)
	return s.Answer(t)
}

// again asks for a message that is not to be sent.
func again(t *testing.T, w *worker.Worker, mode string, m worker.Message) worker.Answer {
	t.Helper()
	s := w.Send(mode, m)
	a := s.Answer(t)
	require.False(t, s.HasBegun(), "it must not be sent")
	return a
}

// goesAgain waits until a key is free, and has its message sent.
func goesAgain(t *testing.T, w *worker.Worker, mode string, m worker.Message) {
	t.Helper()
	require.Eventually(t, func() bool {
		s := w.Send(mode, m)
		for !s.HasAnswer() && !s.HasBegun() {
			time.Sleep(time.Millisecond)
		}
		if !s.HasBegun() {
			return false
		}
		s.End(worker.Sent)
		return s.Answer(t).Nil
	}, worker.Patience, 20*time.Millisecond, "%s must go again", m.Key)
}

// passTTL waits until a TTL of short has passed that began before.
func (p *pair) passTTL(t *testing.T, key string) {
	t.Helper()
	control := worker.Message{Key: key + ", control"}
	require.True(t, send(t, p.one, briefly, control, worker.Sent).Nil)
	goesAgain(t, p.two, briefly, control)
}

func requireReplay(t *testing.T, first, a worker.Answer) {
	t.Helper()
	require.True(t, a.Replayed)
	require.Equal(t, first.Status, a.Status)
	require.Equal(t, first.Code, a.Code)
	require.Equal(t, first.ProviderID, a.ProviderID)
	require.Equal(t, a.Status == idemmail.StatusSent, a.Nil)
}

func requireInFlight(t *testing.T, a worker.Answer) {
	t.Helper()
	require.Equal(t, idemmail.CodeInFlight, a.Code)
	require.Equal(t, idemmail.StatusUnknown, a.Status)
	require.True(t, a.Retryable)
	require.False(t, a.Nil)
	require.Contains(t, a.Is, "ErrInFlight")
}

func requireUnknown(t *testing.T, code string, a worker.Answer) {
	t.Helper()
	require.Equal(t, idemmail.StatusUnknown, a.Status)
	require.Equal(t, code, a.Code)
	require.False(t, a.Retryable)
	require.Contains(t, a.Is, "ErrDeliveryUnknown")
}
