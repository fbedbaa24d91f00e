package guarantees_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/itest/internal/backend"
	"github.com/idemmail/idemmail/itest/internal/worker"
)

// crowd is how many senders wait for one.
const crowd = 100

var waiting = []guarantee{
	{"WaitInFlight: a duplicate waits for the first one's receipt", func(t *testing.T, p *pair, key string) {
		first, waiters := p.crowd(t, key)
		first.End(worker.Sent)
		for _, w := range waiters {
			requireReplay(t, first.Answer(t), w.Answer(t))
		}
		require.Zero(t, begun(waiters))
	}},
	{"WaitInFlight: a definite failure lets exactly one waiter go", func(t *testing.T, p *pair, key string) {
		first, waiters := p.crowd(t, key)
		first.End(worker.Failed)
		require.Equal(t, idemmail.StatusFailed, first.Answer(t).Status)
		require.Eventually(t, func() bool { return begun(waiters) > 0 }, worker.Patience, time.Millisecond)
		var next *worker.Send
		for _, w := range waiters {
			if w.HasBegun() {
				next = w
			}
		}
		next.End(worker.Sent)
		require.True(t, next.Answer(t).Nil)
		require.False(t, next.Answer(t).Replayed)
		for _, w := range waiters {
			if w != next {
				requireReplay(t, next.Answer(t), w.Answer(t))
			}
		}
		require.Equal(t, 1, begun(waiters))
	}},
	{"WaitInFlight: a panic answers all with unknown", func(t *testing.T, p *pair, key string) {
		first, waiters := p.crowd(t, key)
		first.End(worker.Panic)
		require.True(t, first.Answer(t).Panicked)
		for _, w := range waiters {
			requireUnknown(t, idemmail.CodePanicked, w.Answer(t))
		}
		require.Zero(t, begun(waiters))
	}},
	{"WaitInFlight: a wait ends with its own context, or when it has been long enough", func(t *testing.T, p *pair, key string) {
		first := p.one.Send(waits, worker.Message{Key: key})
		first.AwaitBegun(t)
		requireInFlight(t, again(t, p.two, waitsShort, worker.Message{Key: key}))
		gone := p.two.Send(waits, worker.Message{Key: key})
		stays := p.two.Send(waits, worker.Message{Key: key})
		gone.Cancel()
		a := gone.Answer(t)
		require.False(t, gone.HasBegun())
		require.Contains(t, a.Is, "context.Canceled")
		require.False(t, stays.HasAnswer())

		first.Cancel() // ends nobody's wait but by its outcome
		requireUnknown(t, idemmail.CodeAborted, first.Answer(t))
		requireReplay(t, first.Answer(t), stays.Answer(t))
	}},
	{"WaitInFlight: another message under the key does not wait", func(t *testing.T, p *pair, key string) {
		first := p.one.Send(waits, worker.Message{Key: key})
		first.AwaitBegun(t)
		require.Equal(t, idemmail.CodeKeyReused, again(t, p.two, waits, worker.Message{Key: key, Subject: "another"}).Code)
		first.End(worker.Sent)
		first.Answer(t)
	}},
	{"WaitInFlight: a hundred waiters do not multiply the calls of the store", func(t *testing.T, p *pair, key string) {
		first := p.one.Send(byDefault, worker.Message{Key: key})
		first.AwaitBegun(t)
		store := &countingStore{Store: backend.Open(t, p.server.URL)}
		here := worker.StartHere(t, worker.Config{Store: store, Namespace: namespace, Modes: modes})
		began := time.Now()
		waiters := make([]*worker.Send, crowd)
		for i := range waiters {
			waiters[i] = here.Send(waits, worker.Message{Key: key})
		}
		require.Eventually(t, func() bool { return store.reserved.Load() >= crowd }, worker.Patience, time.Millisecond)
		time.Sleep(4 * short)
		// Each asks once and then waits; one of them asks for all, after 10 ms,
		// 20 ms and so on, up to once a second.
		most := crowd + 8 + int64(time.Since(began)/time.Second)
		require.LessOrEqual(t, store.reserved.Load(), most)
		first.End(worker.Sent)
		for _, w := range waiters {
			requireReplay(t, first.Answer(t), w.Answer(t))
		}
	}},
}

// crowd has one send begin, and many wait for it at both senders.
func (p *pair) crowd(t *testing.T, key string) (first *worker.Send, waiters []*worker.Send) {
	first = p.one.Send(waits, worker.Message{Key: key})
	first.AwaitBegun(t)
	for i := range crowd {
		w := p.one
		if i%2 == 0 {
			w = p.two
		}
		waiters = append(waiters, w.Send(waits, worker.Message{Key: key}))
	}
	return first, waiters
}

func begun(sends []*worker.Send) (n int) {
	for _, s := range sends {
		if s.HasBegun() {
			n++
		}
	}
	return n
}

// A countingStore counts the reservations that are asked for.
type countingStore struct {
	backend.Store
	reserved atomic.Int64
}

func (s *countingStore) Reserve(ctx context.Context, key, fingerprint string, lease time.Duration) (string, *idemmail.Record, error) {
	s.reserved.Add(1)
	return s.Store.Reserve(ctx, key, fingerprint, lease)
}
