package faults_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/itest/internal/backend"
	"github.com/idemmail/idemmail/itest/internal/worker"
)

const (
	lateTimeout = 1500 * time.Millisecond // StoreTimeout
	lateAnswer  = 2300 * time.Millisecond // before the clients give up, after 3 seconds
	lateCancel  = 500 * time.Millisecond  // when a caller goes
	lateGrace   = 5 * time.Second         // for a machine that has much else to do
)

// A lateness is a reservation that is made, but of which nobody hears in time.
type lateness struct {
	keys  int // in one call
	fault fault
	stuck bool // the first try to free the keys hangs, too
	goes  bool // the caller, while the reservation is being made
}

func (l lateness) String() string {
	s := fmt.Sprintf("%d keys, %s", l.keys, l.fault.name)
	if l.stuck {
		s += ", freeing hangs"
	}
	if l.goes {
		s += ", cancelled"
	}
	return s
}

// A belated is what came of a lateness.
type belated struct {
	answers  []idemmail.Result
	answered time.Duration
	hits     int64         // of the fault
	early    int           // messages that went with the first call
	freed    time.Duration // after the first call, until all keys were free
	held     int           // keys that did not become free
	listed   int           // of them, for an operator
	again    []idemmail.Result
	replays  []idemmail.Result
	sent     int // messages in the end
}

// TestLateReservations has reservations succeed when their callers have gone,
// with AtMostOnce, so that no lease ends by itself: the keys must become free
// all the same, and the messages go.
func TestLateReservations(t *testing.T) {
	t.Parallel()
	backend.EachShared(t, func(t *testing.T, s *backend.Server) {
		if s.Addr == "" {
			t.Skip("there is no network in between")
		}
		direct := backend.Open(t, s.URL)
		late := fault{name: "answer late", late: lateAnswer}
		var cases []lateness
		for _, keys := range []int{1, 40} {
			for _, goes := range []bool{false, true} {
				cases = append(cases,
					lateness{keys: keys, fault: late, goes: goes},
					lateness{keys: keys, fault: fault{name: "answer lost, half-open", answer: none, end: hangs}, goes: goes},
					lateness{keys: keys, fault: late, goes: goes, stuck: true})
			}
		}
		results := map[lateness]belated{}
		var mu sync.Mutex // of results
		var running sync.WaitGroup
		for _, c := range cases {
			o := openLate(t, s)
			running.Go(func() {
				b := c.run(t, o, direct)
				mu.Lock()
				defer mu.Unlock()
				results[c] = b
			})
		}
		running.Wait()
		for c, b := range results {
			t.Run(c.String(), func(t *testing.T) { c.assert(t, b) })
		}
	})
}

// A lateOffice is a transport whose store is behind a proxy.
type lateOffice struct {
	namespace string
	proxy     *proxy
	mails     *outbox
	transport *idemmail.IdempotencyTransport
}

func openLate(t *testing.T, s *backend.Server) *lateOffice {
	o := &lateOffice{namespace: fmt.Sprintf("late%d", labs.Add(1)), proxy: startProxy(t, s.Addr), mails: &outbox{}}
	store := backend.Open(t, s.Through(o.proxy.addr))
	o.transport = lateTransport(t, o.mails, store, o.namespace, lateTimeout)
	for _, keys := range []int{1, 2} { // the client is connected, and the server prepared
		o.transport.SendMany(t.Context(), lateBatch(fmt.Sprintf("warm %d", keys), keys))
	}
	o.mails.sent.Store(0)
	return o
}

func lateBatch(name string, keys int) (messages []*idemmail.Message) {
	for i := range keys {
		messages = append(messages, &idemmail.Message{Subject: "s", IdempotencyKey: fmt.Sprintf("%s %d!", name, i)})
	}
	return messages
}

func (l lateness) run(t *testing.T, o *lateOffice, direct backend.Store) (b belated) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	messages := lateBatch("message", l.keys)
	first := o.namespace + ":" + messages[0].IdempotencyKey
	rule := o.proxy.spoil(first, l.fault, 1)
	if l.stuck {
		o.proxy.spoil(first, fault{request: none, end: hangs}, 1)
	}
	if l.goes {
		time.AfterFunc(lateCancel, cancel)
	}
	began := time.Now()
	b.answers = o.transport.SendMany(ctx, messages)
	b.answered = time.Since(began)
	b.early = int(o.mails.sent.Load())

	free := func() bool {
		b.held = 0
		for _, m := range messages {
			if e, err := direct.Lookup(t.Context(), o.namespace+":"+m.IdempotencyKey); err != nil || e != nil {
				b.held++
			}
		}
		return b.held == 0
	}
	for !free() && time.Since(began) < lateTimeout+lateAnswer+lateGrace {
		time.Sleep(20 * time.Millisecond)
	}
	b.freed, b.hits = time.Since(began), rule.hits.Load()
	o.proxy.mend()
	operator := (&desk{namespace: o.namespace}).guard(t, direct)
	left, err := list(operator.Unsettled(t.Context(), 0))
	if err != nil {
		t.Error(err)
	}
	b.listed = len(left)
	for _, e := range left {
		if err := operator.Forget(t.Context(), e); err != nil {
			t.Error(err)
		}
	}
	again := lateTransport(t, o.mails, direct, o.namespace, netTimeout+netGrace)
	b.again = again.SendMany(t.Context(), messages)
	b.replays = again.SendMany(t.Context(), messages)
	b.sent = int(o.mails.sent.Load())
	return b
}

func (l lateness) assert(t *testing.T, b belated) {
	t.Logf("answered in %v, %d of %d keys free after %v", b.answered.Round(time.Millisecond), l.keys-b.held, l.keys, b.freed.Round(time.Millisecond))
	bound, want := lateTimeout, idemmail.ErrStoreFailed
	if l.goes {
		bound, want = lateCancel, idemmail.ErrNotBegun
	}
	require.Less(t, b.answered, bound+lateGrace)
	for _, r := range b.answers {
		require.ErrorIs(t, r.Err, want)
	}
	require.Zero(t, b.early)
	require.EqualValues(t, 1, b.hits, "the fault must have come")
	require.Equal(t, b.held, b.listed)
	require.Zero(t, b.held, "every key becomes free")
	for i, r := range b.again {
		require.NoError(t, r.Err)
		require.False(t, r.Receipt.Replayed)
		require.NoError(t, b.replays[i].Err)
		require.True(t, b.replays[i].Receipt.Replayed)
	}
	require.Equal(t, l.keys, b.sent)
}

// An outbox is a provider that takes messages one at a time or many at once.
type outbox struct{ sent atomic.Int64 }

func (*outbox) ID() string { return "outbox" }

func (o *outbox) Send(context.Context, *idemmail.Message) (*idemmail.Receipt, error) {
	o.sent.Add(1)
	return &idemmail.Receipt{Status: idemmail.StatusSent}, nil
}

func (o *outbox) SendMany(ctx context.Context, messages []*idemmail.Message) []idemmail.Result {
	results := make([]idemmail.Result, len(messages))
	for i, m := range messages {
		results[i].Receipt, results[i].Err = o.Send(ctx, m)
	}
	return results
}

func lateTransport(t *testing.T, next idemmail.Transport, store idemmail.Store, namespace string, timeout time.Duration) *idemmail.IdempotencyTransport {
	transport, err := idemmail.New(next, idemmail.Options{
		Store:        store,
		Namespace:    namespace,
		StoreTimeout: timeout,
		AtMostOnce:   true,
		Logger:       discard,
	})
	require.NoError(t, err)
	return transport
}

// TestReservationsOnAHeldServer has many callers wait for a server that answers
// nothing, with clients that look at no context. Some go meanwhile. Each is
// answered in time, and once the server goes on each message goes, once: what it
// reserved for nobody is free again, or listed for an operator.
func TestReservationsOnAHeldServer(t *testing.T) {
	t.Parallel()
	backend.EachShared(t, func(t *testing.T, s *backend.Server) {
		if s.Hold == nil {
			t.Skip("this server cannot do that")
		}
		const callers = 200
		mails := &outbox{}
		store, direct := backend.Open(t, s.URL), backend.Open(t, s.URL)
		namespace := fmt.Sprintf("held%d", labs.Add(1))
		transport := lateTransport(t, mails, store, namespace, lateTimeout)
		message := func(i int) *idemmail.Message {
			return &idemmail.Message{Subject: "s", IdempotencyKey: fmt.Sprintf("message %d", i)}
		}
		inTime := lateTransport(t, &outbox{}, store, namespace+"-warm", netTimeout+netGrace)
		var warming sync.WaitGroup
		for i := range callers { // as many connections as the client makes
			warming.Go(func() { _, _ = inTime.Send(t.Context(), message(i)) })
		}
		warming.Wait()

		hold(t, s)
		var longest, longestGone atomic.Int64
		var all sync.WaitGroup
		for i := range callers {
			all.Go(func() {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				began, measure, want := time.Now(), &longest, idemmail.ErrStoreFailed
				if i%2 == 0 {
					time.AfterFunc(lateCancel, cancel)
					measure, want = &longestGone, idemmail.ErrNotBegun
				}
				_, err := transport.Send(ctx, message(i))
				if !errors.Is(err, want) {
					t.Errorf("%v, not %v", err, want)
				}
				for took := int64(time.Since(began)); ; {
					if old := measure.Load(); took <= old || measure.CompareAndSwap(old, took) {
						break
					}
				}
			})
		}
		all.Wait()
		s.Continue(t)
		require.Less(t, time.Duration(longest.Load()), lateTimeout+lateGrace)
		require.Less(t, time.Duration(longestGone.Load()), lateCancel+lateGrace)
		require.Zero(t, mails.sent.Load())

		operator := (&desk{namespace: namespace}).guard(t, direct)
		forgotten := 0
		again := lateTransport(t, mails, direct, namespace, netTimeout+netGrace)
		began := time.Now()
		for i := range callers {
			require.Eventually(t, func() bool {
				_, err := again.Send(t.Context(), message(i))
				if err != nil && time.Since(began) > lateTimeout+lateGrace { // longer than any store tries to free it
					if e, _ := operator.Lookup(t.Context(), message(i).IdempotencyKey); e != nil && operator.Forget(t.Context(), *e) == nil {
						forgotten++
					}
				}
				return err == nil
			}, worker.Patience, 20*time.Millisecond)
		}
		require.EqualValues(t, callers, mails.sent.Load())
		t.Logf("%d callers, answered within %v, and %v where they went after %v; %d keys were left to an operator", callers,
			time.Duration(longest.Load()).Round(time.Millisecond), time.Duration(longestGone.Load()).Round(time.Millisecond), lateCancel, forgotten)
	})
}
