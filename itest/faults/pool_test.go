package faults_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/itest/internal/backend"
	"github.com/idemmail/idemmail/itest/internal/worker"
)

// TestConnectionsThatHangWhileTheyAreMade takes all of a pool's connections to a
// PostgreSQL away, and has those hang that are made in their place. While that
// lasts each caller is answered in time; after it the pool recovers.
func TestConnectionsThatHangWhileTheyAreMade(t *testing.T) {
	t.Parallel()
	for _, b := range backend.Wanted() {
		if b.Name != "PostgreSQL" {
			continue
		}
		s := b.Start(t)
		p := startProxy(t, s.Addr)
		guard, err := idemmail.NewGuard(idemmail.Options{
			Store:        backend.Open(t, s.Through(p.addr)),
			Namespace:    "pool",
			StoreTimeout: loadTimeout,
			Logger:       discard,
		})
		require.NoError(t, err)
		// send sends many messages at once: more than the pool has connections.
		send := func(name string) (failed int, longest time.Duration) {
			var mu sync.Mutex // of the results
			var all sync.WaitGroup
			for i := range 50 {
				all.Go(func() {
					began := time.Now()
					_, err := guard.Do(t.Context(), fmt.Sprintf("%s %d", name, i), "f", func(context.Context) (*idemmail.Receipt, error) {
						time.Sleep(time.Millisecond)
						return nil, nil
					})
					mu.Lock()
					defer mu.Unlock()
					longest = max(longest, time.Since(began))
					if err != nil {
						failed++
					}
				})
			}
			all.Wait()
			return failed, longest
		}
		// Under new keys each time: one that could not be reserved in time may yet
		// be, and is freed by best effort.
		works := func(name string) {
			tries := 0
			require.Eventually(t, func() bool {
				tries++
				failed, _ := send(fmt.Sprint(name, tries))
				return failed == 0
			}, worker.Patience, time.Millisecond)
		}
		works("warm")

		p.sever()
		p.mend()
		startup := p.spoil("user\x00postgres", fault{request: none, end: hangs}, -1)
		for _, name := range []string{"one", "two", "three"} {
			failed, longest := send(name)
			t.Logf("%s: %d failed, the longest took %v", name, failed, longest.Round(time.Millisecond))
			require.Equal(t, 50, failed)
			require.Less(t, longest, 2*loadTimeout+netGrace)
		}
		require.NotZero(t, startup.hits.Load(), "connections must have hung")
		p.mend()
		began := time.Now()
		works("after")
		t.Logf("%d connections hung; all is well %v after their server answered again", startup.hits.Load(), time.Since(began).Round(time.Millisecond))
	}
}
