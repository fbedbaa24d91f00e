package faults_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/itest/internal/soak"
	"github.com/idemmail/idemmail/itest/internal/worker"
)

const (
	loadTimeout = time.Second // StoreTimeout
	loadLease   = 4 * loadTimeout
	loadSenders = 16 // goroutines of each guard
)

// A load is a job of many messages that each of several guards does, as a queue
// would that hands each message to each of them until it is settled.
type load struct {
	namespace string
	guards    []*idemmail.Guard
	keys      []string
	giveUp    bool // on a message that the store has failed

	mu       sync.Mutex // of what follows
	sends    map[string][]sending
	settled  map[string]int // by how many guards
	moved    chan struct{}  // closed when settled next changes
	failures int            // of the store
	longest  time.Duration  // a call, but for the send in it
}

// A sending is a message that the provider has taken.
type sending struct {
	called time.Time // when the call began: its reservation is younger
	taken  time.Time
}

func newLoad(t *testing.T, stores ...idemmail.Store) *load {
	l := &load{namespace: fmt.Sprintf("load%d", labs.Add(1)), sends: map[string][]sending{}, settled: map[string]int{}, moved: make(chan struct{})}
	for _, s := range stores {
		g, err := idemmail.NewGuard(idemmail.Options{
			Store:        s,
			Namespace:    l.namespace,
			Lease:        loadLease,
			StoreTimeout: loadTimeout,
			Logger:       discard,
		})
		require.NoError(t, err)
		l.guards = append(l.guards, g)
	}
	for i := range soak.Scaled(300, 20_000) {
		l.keys = append(l.keys, fmt.Sprintf("message %d", i))
	}
	return l
}

// run does the job, and has the fault come when a third of it is done.
func (l *load) run(t *testing.T, fault func(t testing.TB)) {
	var all sync.WaitGroup
	for _, g := range l.guards {
		queue := make(chan string)
		all.Go(func() {
			defer close(queue)
			for _, i := range rand.Perm(len(l.keys)) {
				queue <- l.keys[i]
			}
		})
		for range loadSenders {
			all.Go(func() {
				for key := range queue {
					l.settle(t, g, key)
				}
			})
		}
	}
	l.await(t, len(l.keys)/3)
	fault(t)
	all.Wait()
}

// await waits until so many messages were settled by a guard.
func (l *load) await(t testing.TB, n int) {
	deadline := time.After(worker.Patience)
	for {
		l.mu.Lock()
		done, moved := len(l.settled) >= n, l.moved
		l.mu.Unlock()
		if done {
			return
		}
		select {
		case <-moved:
		case <-deadline:
			t.Fatal("the job does not come along")
		}
	}
}

// settle sends a message until it is settled.
func (l *load) settle(t *testing.T, g *idemmail.Guard, key string) {
	for tries := 1; t.Context().Err() == nil; tries++ {
		called := time.Now()
		var inSend time.Duration
		r, err := g.Do(t.Context(), key, "f", func(context.Context) (*idemmail.Receipt, error) {
			defer func(began time.Time) { inSend = time.Since(began) }(time.Now())
			time.Sleep(time.Duration(1+rand.IntN(5)) * time.Millisecond)
			if tries == 1 && rand.IntN(10) == 0 {
				return nil, idemmail.NotSent(errRefused)
			}
			l.mu.Lock()
			defer l.mu.Unlock()
			l.sends[key] = append(l.sends[key], sending{called, time.Now()})
			return &idemmail.Receipt{Status: idemmail.StatusSent}, nil
		})
		l.mu.Lock()
		l.longest = max(l.longest, time.Since(called)-inSend)
		if r.Code == idemmail.CodeStoreFailed {
			l.failures++
		}
		if err == nil {
			l.settled[key]++
			close(l.moved)
			l.moved = make(chan struct{})
		}
		l.mu.Unlock()
		if err == nil || l.giveUp && r.Code == idemmail.CodeStoreFailed {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// assertReported asserts that each caller was answered within its bound.
func (l *load) assertReported(t *testing.T) {
	t.Logf("%d messages, %d calls for which the store failed, the longest took %v", len(l.keys), l.failures, l.longest.Round(time.Millisecond))
	const grace = 5 * time.Second // for a machine that has much else to do
	require.Less(t, l.longest, 2*loadTimeout+grace)
	for key, n := range l.settled {
		require.NotZero(t, n)
		require.NotEmpty(t, l.sends[key], "%s was answered as sent and is lost", key)
	}
}

// assertNoneLost asserts that each message went, and that no key is stuck.
func (l *load) assertNoneLost(t *testing.T) {
	l.assertReported(t)
	for _, key := range l.keys {
		require.Equal(t, len(l.guards), l.settled[key], key)
		require.NotEmpty(t, l.sends[key], "%s is lost", key)
	}
	for _, key := range l.keys {
		require.Eventually(t, func() bool {
			e, err := l.guards[0].Lookup(t.Context(), key)
			return err == nil && (e == nil || e.Record.State == idemmail.StateDone)
		}, worker.Patience, 50*time.Millisecond, "%s must be free or settled", key)
	}
}

// assertOnce asserts also that none went twice within a live lease.
func (l *load) assertOnce(t *testing.T) {
	l.assertNoneLost(t)
	repeats := 0
	for _, sends := range l.sends {
		repeats += len(sends) - 1
	}
	t.Logf("%d were repeated after their lease", repeats)
	require.Empty(t, l.doubles(), "a message went twice within a live lease")
}

// doubles lists the messages that went again before the lease had passed under
// which they had gone.
func (l *load) doubles() (keys []string) {
	const vague = 250 * time.Millisecond // how well a client may know the server's time
	for key, sends := range l.sends {
		for i := 1; i < len(sends); i++ {
			if sends[i].taken.Sub(sends[i-1].called) < loadLease-vague {
				keys = append(keys, key)
			}
		}
	}
	return keys
}
