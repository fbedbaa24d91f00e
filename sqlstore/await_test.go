package sqlstore

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
)

// A call that its client does not end returns as its context ends. Where a
// Guard waits for that as well, it has no second goroutine to be left in.
func TestCallsAreLeftBehindOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// takes answers how long await takes for what lasts two seconds.
		takes := func(ctx context.Context) (time.Duration, error) {
			began := time.Now()
			_, err := await(ctx, func() bool { time.Sleep(2 * time.Second); return true }, nil)
			return time.Since(began), err
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		took, err := takes(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, time.Second, took)

		inGuard := make(chan time.Duration, 1)
		store := reserving(func(ctx context.Context) {
			took, err := takes(ctx)
			assert.NoError(t, err)
			inGuard <- took
		})
		guard, err := idemmail.NewGuard(idemmail.Options{Namespace: "n", Store: store, StoreTimeout: time.Second})
		require.NoError(t, err)
		began := time.Now()
		_, err = guard.Do(t.Context(), "k", "f", nil)
		require.ErrorIs(t, err, idemmail.ErrStoreFailed)
		require.Less(t, time.Since(began), 2*time.Second)
		require.Equal(t, 2*time.Second, <-inGuard)
	})
}

// reserving is a store of which only Reserve is called.
type reserving func(ctx context.Context)

func (f reserving) Reserve(ctx context.Context, _, _ string, _ time.Duration) (string, *idemmail.Record, error) {
	f(ctx)
	return "", nil, ctx.Err()
}
func (reserving) Complete(context.Context, string, string, idemmail.Record, time.Duration) error {
	panic("nothing is reserved")
}
func (reserving) Release(context.Context, string, string) error { panic("nothing is reserved") }
