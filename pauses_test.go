package idemmail_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
)

// Tries to settle come soon at first, then once a second: a store that is down
// is not stormed. None begins when the time is over.
func TestSettlingIsTriedAgainWithGrowingPauses(t *testing.T) {
	const ms = time.Millisecond
	want := []time.Duration{0, 10 * ms, 30 * ms, 70 * ms, 150 * ms, 310 * ms, 630 * ms, 1270 * ms, 2270 * ms, 3270 * ms}
	inBubble(t, func(t *testing.T, d door) {
		for key, work := range map[string]work{"sent": sendsWell, "failed": failsSurely} {
			began, tried := time.Now(), []time.Duration(nil)
			store := newHookedStore()
			fails := func(context.Context, int, func() error) error {
				tried = append(tried, time.Since(began))
				return errFlaky
			}
			store.complete, store.release = fails, fails
			send := d.open(t, idemmail.Options{Store: store, StoreTimeout: 4270 * ms}, work)
			_, _ = send(t.Context(), key, "a")
			require.Equal(t, want, tried, key)
		}
	})
}
