package sqlstore_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
)

// What an operator does, by way of a Guard, with sends that were abandoned.
func testGuardReconciles(t *testing.T, srv server) {
	s, db := srv.store(t)
	ctx := t.Context()
	g, err := idemmail.NewGuard(idemmail.Options{Store: s, Namespace: "orders", Lease: time.Minute, AtMostOnce: true})
	require.NoError(t, err)
	send := func(key string, r *idemmail.Receipt, err error) error {
		_, err = g.Do(ctx, key, "f", func(context.Context) (*idemmail.Receipt, error) { return r, err })
		return err
	}
	require.NoError(t, send("sent", &idemmail.Receipt{Status: idemmail.StatusSent}, nil))
	require.ErrorIs(t, send("unknown", &idemmail.Receipt{Status: idemmail.StatusUnknown}, nil), idemmail.ErrDeliveryUnknown)
	for _, key := range []string{"lives", "abandoned", "renewed"} {
		_, _, err := s.Reserve(ctx, "orders:"+key, "c:f", idemmail.NoExpiry) // whose process ended
		require.NoError(t, err)
	}
	reserve(t, s, "others:unknown", idemmail.NoExpiry)
	execute(t, db, "UPDATE idemmail SET at = at - 3600000 WHERE key IN ('orders:abandoned', 'orders:renewed')")

	entries := map[string]idemmail.Entry{}
	for e, err := range g.Unsettled(ctx, 5*time.Minute) {
		require.NoError(t, err)
		entries[e.Key] = e
	}
	require.Len(t, entries, 3)
	require.ErrorIs(t, send("abandoned", nil, nil), idemmail.ErrAbandoned)

	// A live owner's key is refused, and so is one that was renewed since.
	lives, err := g.Lookup(ctx, "lives")
	require.NoError(t, err)
	require.ErrorIs(t, g.Forget(ctx, *lives), idemmail.ErrInFlight)
	require.NoError(t, s.Renew(ctx, "orders:renewed", entries["renewed"].Token, idemmail.NoExpiry))
	require.ErrorIs(t, g.Resolve(ctx, entries["renewed"], nil), idemmail.ErrInFlight)

	require.NoError(t, g.Resolve(ctx, entries["unknown"], &idemmail.Receipt{Status: idemmail.StatusSent, ProviderID: "found"}))
	require.ErrorIs(t, g.Forget(ctx, entries["unknown"]), idemmail.ErrChanged)
	r, err := g.Do(ctx, "unknown", "f", nil)
	require.NoError(t, err)
	require.Equal(t, "found", r.ProviderID)
	require.True(t, r.Replayed)

	require.NoError(t, g.Forget(ctx, entries["abandoned"]))
	require.ErrorIs(t, g.Resolve(ctx, entries["abandoned"], nil), idemmail.ErrChanged)
	require.NoError(t, send("abandoned", &idemmail.Receipt{Status: idemmail.StatusSent}, nil))
}
