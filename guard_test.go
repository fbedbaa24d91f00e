package idemmail_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
)

// What is special to Guard.Do; all that it has in common with Send is tested
// through each door.
func TestGuardDo(t *testing.T) {
	t.Run("keeps the caller's fingerprint as c:", func(t *testing.T) {
		for _, fingerprint := range []string{"", "a", "1:a", "c:a", "größe\n"} {
			mem, _ := newMemStore(0)
			guard, err := idemmail.NewGuard(idemmail.Options{Namespace: "hook", Store: mem, Logger: quietLogger})
			require.NoError(t, err)
			var runs atomic.Int64
			run := counted(&runs, answers(nil, nil))
			r, err := guard.Do(t.Context(), "k", fingerprint, run)
			requireFirst(t, r, err)
			require.Equal(t, "hook", r.Transport)
			require.Equal(t, "c:"+fingerprint, lookup(t, mem, "hook:k").Record.Fingerprint)

			r, err = guard.Do(t.Context(), "k", fingerprint, run)
			requireReplay(t, r, err)
			_, err = guard.Do(t.Context(), "k", fingerprint+"x", run)
			require.ErrorIs(t, err, idemmail.ErrKeyReused, "compared whole")
			require.EqualValues(t, 1, runs.Load())
		}
	})

	// A raw hash, say: not every store could keep it.
	t.Run("keeps one that is not text as its SHA-256", func(t *testing.T) {
		for _, fingerprint := range []string{"\xff\xfe", "\xff\xfd", "a\x00", "a\x00b"} {
			mem, _ := newMemStore(0)
			guard, err := idemmail.NewGuard(idemmail.Options{Namespace: "hook", Store: mem, Logger: quietLogger})
			require.NoError(t, err)
			for range 2 {
				_, err := guard.Do(t.Context(), "k", fingerprint, answers(nil, nil))
				require.NoError(t, err)
			}
			require.Equal(t, fmt.Sprintf("c:%x", sha256.Sum256([]byte(fingerprint))), lookup(t, mem, "hook:k").Record.Fingerprint)
			for _, other := range []string{"\ufffd\ufffd", "\xff\xfc", "a"} {
				_, err = guard.Do(t.Context(), "k", other, answers(nil, nil))
				require.ErrorIs(t, err, idemmail.ErrKeyReused)
			}
		}
	})

	t.Run("gives the function its own context", func(t *testing.T) {
		type contextKey struct{}
		guard, err := idemmail.NewGuard(idemmail.Options{Namespace: "hook"})
		require.NoError(t, err)
		ctx := context.WithValue(t.Context(), contextKey{}, 17)
		var inside context.Context
		_, err = guard.Do(ctx, "k", "", func(ctx context.Context) (*idemmail.Receipt, error) {
			inside = ctx
			require.Equal(t, 17, ctx.Value(contextKey{}))
			return nil, ctx.Err()
		})
		require.NoError(t, err)
		require.Error(t, inside.Err(), "it ends with the run")
		require.NoError(t, ctx.Err())
	})

	t.Run("is not concerned by options about messages", func(t *testing.T) {
		guard, err := idemmail.NewGuard(idemmail.Options{
			Namespace:       "hook",
			MessageIDDomain: "example.org",
			Key:             func(*idemmail.Message) string { t.Error("Key"); return "" },
			RawKey:          func(*idemmail.RawMessage) string { t.Error("RawKey"); return "" },
			Fingerprint:     func(*idemmail.Message) string { t.Error("Fingerprint"); return "" },
		})
		require.NoError(t, err)
		r, err := guard.Do(t.Context(), "k", "", answers(nil, nil))
		requireFirst(t, r, err)
		require.Empty(t, r.MessageID)
	})

	t.Run("shares its keys with a transport of its namespace", func(t *testing.T) {
		s := newShelf()
		guard, err := idemmail.NewGuard(idemmail.Options{Namespace: doorNamespace, Store: s.store})
		require.NoError(t, err)
		transport := openTransport(t, new(handedOn).single(), idemmail.Options{
			Store:       s.store,
			Fingerprint: func(m *idemmail.Message) string { return m.Subject },
		})
		r, err := transport.Send(t.Context(), doorMessage("k", "a"))
		requireFirst(t, r, err)
		r, err = guard.Do(t.Context(), "k", "a", notToBeSent(t))
		requireReplay(t, r, err)
	})
}
