package guarantees_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/itest/internal/backend"
	"github.com/idemmail/idemmail/itest/internal/worker"
)

var failOpen = []guarantee{
	{"FailOpen: without its store a message goes all the same, otherwise it is refused", func(t *testing.T, p *pair, key string) {
		here := worker.StartHere(t, worker.Config{Store: p.broken(t), Namespace: namespace, Modes: map[string]worker.Mode{
			"open":   {FailOpen: true},
			"closed": {},
			"once":   {AtMostOnce: true},
		}})
		for range 2 {
			s := here.Send("open", worker.Message{Key: key})
			s.AwaitBegun(t)
			s.End(worker.Sent)
			require.True(t, s.Answer(t).Nil)
			require.Contains(t, s.Observed(), idemmail.EventStoreFailed)
		}
		for _, mode := range []string{"closed", "once"} {
			a := again(t, here, mode, worker.Message{Key: key})
			require.Equal(t, idemmail.StatusFailed, a.Status)
			require.Equal(t, idemmail.CodeStoreFailed, a.Code)
			require.True(t, a.Retryable)
			require.Contains(t, a.Is, "ErrStoreFailed")
		}
	}},
	{"FailOpen: never past a record that this version does not know", func(t *testing.T, p *pair, key string) {
		here := worker.StartHere(t, worker.Config{Store: p.store, Namespace: namespace, Modes: map[string]worker.Mode{"open": {FailOpen: true}}})
		token, _, err := p.store.Reserve(t.Context(), namespace+":"+key, "of no version", time.Hour)
		require.NoError(t, err)
		require.NoError(t, p.store.Complete(t.Context(), namespace+":"+key, token, idemmail.Record{
			State: idemmail.StateDone, Fingerprint: "of no version", Receipt: &idemmail.Receipt{Status: "delivered"},
		}, time.Hour))
		a := again(t, here, "open", worker.Message{Key: key})
		require.Equal(t, idemmail.CodeStoreFailed, a.Code)
		require.Contains(t, a.Is, "ErrBadRecord")
	}},
}

// broken answers a store that cannot reserve: its client is closed, or it is
// full.
func (p *pair) broken(t *testing.T) idemmail.Store {
	if !p.server.Shared() {
		s := idemmail.NewMemStore(idemmail.MemStoreOptions{MaxEntries: 1})
		_, _, err := s.Reserve(t.Context(), "another", "", time.Hour)
		require.NoError(t, err)
		return s
	}
	s, hangUp, err := backend.Dial(p.server.URL)
	require.NoError(t, err)
	hangUp()
	return s
}
