package idemmail_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
)

// A context is awaited where the Guard watches its end, and only there.
func TestAwaited(t *testing.T) {
	inBubble(t, func(t *testing.T, d door) {
		store := newHookedStore()
		calls := 0
		look := func(ctx context.Context, _ int, next func() error) error {
			calls++
			require.True(t, idemmail.Awaited(ctx), "of the Guard")
			require.True(t, idemmail.Awaited(context.WithValue(ctx, ctxValue{}, "more")), "with a value more")
			sooner, cancel := context.WithTimeout(ctx, time.Millisecond)
			defer cancel()
			require.False(t, idemmail.Awaited(sooner), "with an end of its own")
			require.False(t, idemmail.Awaited(context.WithoutCancel(ctx)), "without its end")
			return next()
		}
		store.complete, store.release = look, look
		store.reserve = func(ctx context.Context, n int, next func() (string, *idemmail.Record, error)) (token string, held *idemmail.Record, err error) {
			err = look(ctx, n, func() (err error) { token, held, err = next(); return err })
			return token, held, err
		}
		outcome := sendsWell
		send := d.open(t, idemmail.Options{Store: store}, func(ctx context.Context) (*idemmail.Receipt, error) {
			require.False(t, idemmail.Awaited(ctx), "of the send")
			return outcome(ctx)
		})
		_, err := send(t.Context(), "sent", "a")
		require.NoError(t, err)
		outcome = failsSurely
		_, err = send(t.Context(), "failed", "a")
		require.ErrorIs(t, err, errRefused)
		require.Equal(t, 4, calls)
	})
	require.False(t, idemmail.Awaited(context.Background()))
	require.False(t, idemmail.Awaited(t.Context()))
}
