// Package simulate has package mailtest's simulator run over every store.
package simulate

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/itest/internal/backend"
	"github.com/idemmail/idemmail/itest/internal/soak"
	"github.com/idemmail/idemmail/mailtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Whichever step a process crashes at, each store keeps the promise.
func TestSimulation(t *testing.T) {
	backend.Each(t, func(t *testing.T, s *backend.Server) {
		var stores []idemmail.Store
		for range 4 {
			stores = append(stores, backend.Open(t, s.URL))
		}
		next := make(chan idemmail.Store, len(stores)) // round and round
		for _, store := range stores {
			next <- store
		}
		open := func() (idemmail.Store, error) {
			store := <-next
			next <- store
			return store, nil
		}
		for range soak.Scaled(1, 20) {
			for _, options := range []idemmail.Options{
				{Lease: 200 * time.Millisecond},
				{Lease: 200 * time.Millisecond, AtMostOnce: true},
			} {
				report, err := mailtest.Simulate(mailtest.Simulation{Open: open, Options: options})
				require.NoError(t, err, "AtMostOnce: %v", options.AtMostOnce)
				require.Positive(t, report.Crashes)
				require.Equal(t, options.AtMostOnce, report.Repeated == 0)
				t.Logf("AtMostOnce %v: %v", options.AtMostOnce, report)
			}
		}
	})
}
