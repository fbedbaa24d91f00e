package await_test

import (
	"context"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/internal/await"
)

// A call that its client does not end returns as its context ends. Where a
// Guard waits for that as well, it has no second goroutine to be left in.
func TestCallsAreLeftBehindOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// takes answers how long Call takes for what lasts two seconds.
		takes := func(ctx context.Context) (time.Duration, error) {
			began := time.Now()
			_, err := await.Call(ctx, func() bool { time.Sleep(2 * time.Second); return true }, nil)
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

func TestAPanicOfTheClientIsAnError(t *testing.T) {
	endless, ending := context.Background(), t.Context()
	for _, ctx := range []context.Context{endless, ending} {
		_, err := await.Call(ctx, func() bool { panic("hook") }, nil)
		require.ErrorContains(t, err, "the client panicked: hook")
	}
}

func TestAClientThatEndsItsGoroutineIsAnError(t *testing.T) {
	_, err := await.Call(t.Context(), func() bool { runtime.Goexit(); return true }, nil)
	require.ErrorContains(t, err, "ended the goroutine")
}

func TestNothingIsDoneOnceTheContextHasEnded(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := await.Call(ctx, func() bool { t.Error("done"); return true }, nil)
	require.ErrorIs(t, err, context.Canceled)
}

// What comes too late is not dropped, and what takes it may panic.
func TestALateAnswerIsTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		taken := make(chan string, 1)
		answer, err := await.Call(ctx, func() string { time.Sleep(time.Minute); return "late" }, func(s string) {
			taken <- s
			panic("late")
		})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Empty(t, answer)
		require.Equal(t, "late", <-taken)
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
