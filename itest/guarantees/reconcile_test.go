package guarantees_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/itest/internal/backend"
	"github.com/idemmail/idemmail/itest/internal/worker"
)

var errLost = errors.New("connection lost")

func TestReconciliation(t *testing.T) {
	t.Parallel()
	backend.Each(t, func(t *testing.T, s *backend.Server) {
		p := newPair(t, s)
		for _, g := range reconciliation {
			t.Run(g.name, func(t *testing.T) {
				t.Parallel()
				g.test(t, p, g.name)
			})
		}
	})
}

var reconciliation = []guarantee{
	{"a listing has what is unsettled, and nothing else", func(t *testing.T, p *pair, key string) {
		desk := newDesk(t, p.store, "listing")
		desk.send(t, "sent", nil)
		desk.send(t, "failed", idemmail.NotSent(errLost))
		desk.send(t, "unknown", idemmail.MayBeSent(errLost))
		desk.reserve(t, "old")
		newDesk(t, p.store, "listing-of-another").reserve(t, "another namespace's")
		newDesk(t, p.store, "list").reserve(t, "another namespace's")

		const old = 3 * time.Second
		var olderThan time.Duration
		require.Eventually(t, func() bool {
			e, err := desk.Lookup(t.Context(), "old")
			require.NoError(t, err)
			olderThan = e.Record.Age
			return olderThan > old
		}, worker.Patience, 10*time.Millisecond)
		desk.reserve(t, "young")
		require.ElementsMatch(t, []string{"old", "unknown"}, unsettled(t, desk.Guard, olderThan))
		require.ElementsMatch(t, []string{"old", "unknown", "young"}, unsettled(t, desk.Guard, 0))
		require.ElementsMatch(t, []string{"unknown"}, unsettled(t, desk.Guard, time.Hour))
		for e, err := range desk.Unsettled(t.Context(), 0) {
			require.NoError(t, err)
			same, err := desk.Lookup(t.Context(), e.Key)
			require.NoError(t, err)
			require.Equal(t, same.Token, e.Token)
			require.Equal(t, same.Record.State, e.Record.State)
			require.Equal(t, same.Record.Receipt, e.Record.Receipt)
		}
	}},
	{"what is resolved is answered with its receipt, by every sender", func(t *testing.T, p *pair, key string) {
		send(t, p.one, byDefault, worker.Message{Key: key}, worker.Unknown)
		receipt := &idemmail.Receipt{Status: idemmail.StatusSent, ProviderID: "found in the log"}
		require.NoError(t, p.guard(t, time.Hour).Resolve(t.Context(), p.listed(t, key), receipt))
		for _, w := range []*worker.Worker{p.one, p.two} {
			a := again(t, w, byDefault, worker.Message{Key: key})
			require.True(t, a.Nil)
			require.True(t, a.Replayed)
			require.Equal(t, "found in the log", a.ProviderID)
		}
		require.NotContains(t, unsettled(t, p.guard(t, time.Hour), 0), key)
	}},
	{"what is forgotten goes, once", func(t *testing.T, p *pair, key string) {
		send(t, p.one, byDefault, worker.Message{Key: key}, worker.Unknown)
		require.NoError(t, p.guard(t, time.Hour).Forget(t.Context(), p.listed(t, key)))
		require.Nil(t, p.lookup(t, key))
		first := send(t, p.two, byDefault, worker.Message{Key: key}, worker.Sent)
		requireReplay(t, first, again(t, p.one, byDefault, worker.Message{Key: key}))
	}},
	{"an abandoned key is resolved or forgotten, and its late owner changes nothing", func(t *testing.T, p *pair, key string) {
		guard := p.guard(t, short)
		var owners []*worker.Send
		outcomes := []worker.Outcome{worker.Sent, worker.Failed, worker.Unknown}
		for _, outcome := range outcomes {
			for _, way := range []string{"resolved", "forgotten"} {
				owner := p.one.Send(onceRunsOut, worker.Message{Key: fmt.Sprintf("%s: %s, then %s", key, way, outcome), Deaf: true})
				owner.AwaitBegun(t)
				owners = append(owners, owner)
			}
		}
		for i, owner := range owners {
			require.Eventually(t, func() bool { return p.lookup(t, owner.Key).Record.Age > 2*short }, worker.Patience, 10*time.Millisecond)
			e := p.listed(t, owner.Key)
			if i%2 == 0 {
				require.NoError(t, guard.Resolve(t.Context(), e, nil))
			} else {
				require.NoError(t, guard.Forget(t.Context(), e))
				require.True(t, send(t, p.two, once, worker.Message{Key: owner.Key}, worker.Sent).Nil)
			}
			before := p.lookup(t, owner.Key)
			owner.End(outcomes[i/2])
			owner.Answer(t)
			require.Contains(t, owner.Observed(), idemmail.EventLeaseLost)
			after := p.lookup(t, owner.Key)
			require.Equal(t, before.Token, after.Token)
			require.Equal(t, before.Record.Receipt, after.Record.Receipt)
		}
	}},
	{"fenced: a record that has moved on is left alone", func(t *testing.T, p *pair, key string) {
		guard := p.guard(t, time.Hour)
		send(t, p.one, byDefault, worker.Message{Key: key}, worker.Unknown)
		e := p.listed(t, key)
		require.NoError(t, guard.Resolve(t.Context(), e, &idemmail.Receipt{Status: idemmail.StatusSent, ProviderID: "by another"}))
		require.ErrorIs(t, guard.Resolve(t.Context(), e, nil), idemmail.ErrChanged)
		require.ErrorIs(t, guard.Forget(t.Context(), e), idemmail.ErrChanged)
		require.Equal(t, "by another", p.lookup(t, key).Record.Receipt.ProviderID)

		owner := p.one.Send(once, worker.Message{Key: key + " pending"})
		owner.AwaitBegun(t)
		e = p.listed(t, key+" pending")
		owner.End(worker.Sent)
		owner.Answer(t)
		require.ErrorIs(t, guard.Resolve(t.Context(), e, nil), idemmail.ErrChanged)
		require.ErrorIs(t, guard.Forget(t.Context(), e), idemmail.ErrChanged)
		require.Equal(t, owner.Answer(t).ProviderID, p.lookup(t, key+" pending").Record.Receipt.ProviderID)
	}},
	{"a live owner's key is refused", func(t *testing.T, p *pair, key string) {
		owner := p.one.Send(once, worker.Message{Key: key})
		owner.AwaitBegun(t)
		guard, e := p.guard(t, time.Hour), p.listed(t, key)
		require.ErrorIs(t, guard.Resolve(t.Context(), e, nil), idemmail.ErrInFlight)
		require.ErrorIs(t, guard.Forget(t.Context(), e), idemmail.ErrInFlight)
		require.Equal(t, e.Token, p.lookup(t, key).Token)
		owner.End(worker.Sent)
		require.True(t, owner.Answer(t).Nil)
	}},
	{"what is listed can be settled while the listing goes on", func(t *testing.T, p *pair, key string) {
		desk := newDesk(t, p.store, "meanwhile")
		const n = 300
		desk.leaveUnknown(t, n, "")
		i := 0
		for e, err := range desk.Unsettled(t.Context(), 0) {
			require.NoError(t, err)
			if i++; i%2 == 0 {
				err = desk.Resolve(t.Context(), e, nil)
			} else {
				err = desk.Forget(t.Context(), e)
			}
			require.NoError(t, err)
		}
		require.Equal(t, n, i)
		require.Empty(t, unsettled(t, desk.Guard, 0))
	}},
	{"a listing can be ended early, or with its context", func(t *testing.T, p *pair, key string) {
		desk := newDesk(t, p.store, "early")
		desk.leaveUnknown(t, 300, "")
		for range 3 {
			for _, err := range desk.Unsettled(t.Context(), 0) {
				require.NoError(t, err)
				break
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var last error
		for _, err := range desk.Unsettled(ctx, 0) {
			cancel()
			last = err
		}
		if p.server.Shared() { // a MemStore need not notice
			require.ErrorIs(t, last, context.Canceled)
		}
		desk.send(t, "afterwards", nil)
	}},
}

// TestListingsAreStreamed measures what a listing holds: never all of it.
func TestListingsAreStreamed(t *testing.T) {
	const (
		entries = 600
		size    = 16 << 10 // of each
	)
	for _, b := range backend.Wanted() {
		t.Run(b.Name, func(t *testing.T) {
			desk := newDesk(t, backend.Open(t, b.Start(t).URL), "streamed")
			desk.leaveUnknown(t, entries, strings.Repeat("x", size))
			before, most, n := heap(), int64(0), 0
			for _, err := range desk.Unsettled(t.Context(), 0) {
				require.NoError(t, err)
				if n++; n%100 == 1 {
					most = max(most, heap()-before)
				}
			}
			require.Equal(t, entries, n)
			t.Logf("%d entries of %d KiB each: %.1f MiB at most", entries, size>>10, float64(most)/(1<<20))
			require.Less(t, most, int64(entries*size/2))
		})
	}
}

func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// listed answers the entry of a key that must be listed.
func (p *pair) listed(t *testing.T, key string) idemmail.Entry {
	t.Helper()
	for e, err := range p.guard(t, time.Hour).Unsettled(t.Context(), 0) {
		require.NoError(t, err, e.Key)
		if e.Key == key {
			return e
		}
	}
	t.Fatalf("%s is not listed", key)
	return idemmail.Entry{}
}

// A desk is where an operator works, in a namespace of his own.
type desk struct {
	*idemmail.Guard
	store     backend.Store
	namespace string
}

func newDesk(t *testing.T, s backend.Store, namespace string) desk {
	t.Helper()
	g, err := idemmail.NewGuard(idemmail.Options{
		Store: s, Namespace: namespace, AtMostOnce: true, StoreTimeout: 20 * time.Second, Logger: slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)
	return desk{g, s, namespace}
}

func (d desk) send(t *testing.T, key string, outcome error) {
	t.Helper()
	_, err := d.Do(t.Context(), key, "f", func(context.Context) (*idemmail.Receipt, error) { return nil, outcome })
	require.ErrorIs(t, err, outcome)
}

// reserve leaves a key as a process that died does.
func (d desk) reserve(t *testing.T, key string) {
	t.Helper()
	_, held, err := d.store.Reserve(t.Context(), d.namespace+":"+key, "c:f", idemmail.NoExpiry)
	require.NoError(t, err)
	require.Nil(t, held)
}

// leaveUnknown leaves so many keys with an unknown outcome.
func (d desk) leaveUnknown(t *testing.T, n int, detail string) {
	t.Helper()
	for n > 0 {
		reqs := make([]idemmail.CompleteRequest, min(n, 200))
		for i := range reqs {
			reqs[i] = idemmail.CompleteRequest{
				Key:   fmt.Sprintf("%s:%d", d.namespace, n-i),
				Token: fmt.Sprintf("token %d", n-i),
				Record: idemmail.Record{State: idemmail.StateDone, Fingerprint: "c:f", Receipt: &idemmail.Receipt{
					Status: idemmail.StatusUnknown, Detail: detail,
				}},
				TTL: idemmail.NoExpiry,
			}
		}
		for _, err := range d.store.CompleteMany(t.Context(), reqs) {
			require.NoError(t, err)
		}
		n -= len(reqs)
	}
}
