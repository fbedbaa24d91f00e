package guarantees_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/itest/internal/backend"
	"github.com/idemmail/idemmail/itest/internal/soak"
	"github.com/idemmail/idemmail/itest/internal/worker"
)

// A guarantee is tested with two senders that share a store, each under keys of
// its own.
type guarantee struct {
	name string
	test func(t *testing.T, p *pair, key string)
}

func TestGuarantees(t *testing.T) {
	t.Parallel()
	backend.Each(t, func(t *testing.T, s *backend.Server) {
		p := newPair(t, s)
		for _, list := range [][]guarantee{basics, leases, waiting, failOpen} {
			for _, g := range list {
				t.Run(g.name, func(t *testing.T) {
					t.Parallel()
					g.test(t, p, g.name)
				})
			}
		}
	})
}

var basics = []guarantee{
	{"a duplicate is answered with the first one's receipt", func(t *testing.T, p *pair, key string) {
		first := send(t, p.one, byDefault, worker.Message{Key: key}, worker.Sent)
		require.True(t, first.Nil)
		require.False(t, first.Replayed)
		require.NotEmpty(t, first.ProviderID)
		requireReplay(t, first, again(t, p.two, byDefault, worker.Message{Key: key}))
		requireReplay(t, first, again(t, p.one, byDefault, worker.Message{Key: key}))
	}},
	{"a send in flight is told at once", func(t *testing.T, p *pair, key string) {
		first := p.one.Send(byDefault, worker.Message{Key: key})
		first.AwaitBegun(t)
		requireInFlight(t, again(t, p.two, byDefault, worker.Message{Key: key}))
		requireInFlight(t, again(t, p.one, byDefault, worker.Message{Key: key}))
		first.End(worker.Sent)
		requireReplay(t, first.Answer(t), again(t, p.two, byDefault, worker.Message{Key: key}))
	}},
	{"another message under the key is refused, in flight and done", func(t *testing.T, p *pair, key string) {
		first := p.one.Send(byDefault, worker.Message{Key: key})
		first.AwaitBegun(t)
		refused := func() {
			a := again(t, p.two, byDefault, worker.Message{Key: key, Subject: "another"})
			require.Equal(t, idemmail.StatusFailed, a.Status)
			require.Equal(t, idemmail.CodeKeyReused, a.Code)
			require.False(t, a.Retryable)
		}
		refused()
		first.End(worker.Sent)
		first.Answer(t)
		refused()
	}},
	{"a definite failure frees the key, for any message", func(t *testing.T, p *pair, key string) {
		for _, mode := range []string{byDefault, once} {
			a := send(t, p.one, mode, worker.Message{Key: key + mode}, worker.Failed)
			require.Equal(t, idemmail.StatusFailed, a.Status)
			a = send(t, p.two, mode, worker.Message{Key: key + mode, Subject: "another"}, worker.Sent)
			require.True(t, a.Nil)
			require.False(t, a.Replayed)
		}
	}},
	{"an unknown outcome is kept", func(t *testing.T, p *pair, key string) {
		first := send(t, p.one, byDefault, worker.Message{Key: key}, worker.Unknown)
		requireUnknown(t, "", first)
		requireReplay(t, first, again(t, p.two, byDefault, worker.Message{Key: key}))
	}},
	{"a panic is kept as unknown", func(t *testing.T, p *pair, key string) {
		first := p.one.Send(byDefault, worker.Message{Key: key})
		first.AwaitBegun(t)
		first.End(worker.Panic)
		require.True(t, first.Answer(t).Panicked)
		a := again(t, p.two, byDefault, worker.Message{Key: key})
		requireUnknown(t, idemmail.CodePanicked, a)
		require.True(t, a.Replayed)
	}},
	{"a caller who goes leaves no key pending", func(t *testing.T, p *pair, key string) {
		first := p.one.Send(byDefault, worker.Message{Key: key})
		first.AwaitBegun(t)
		first.Cancel()
		a := first.Answer(t)
		requireUnknown(t, idemmail.CodeAborted, a)
		require.Contains(t, a.Is, "context.Canceled")
		a = again(t, p.two, byDefault, worker.Message{Key: key})
		requireUnknown(t, idemmail.CodeAborted, a)
		require.NotContains(t, a.Is, "context.Canceled", "the first cause is not the duplicate's")
	}},
	{"each message of a batch is judged for itself", func(t *testing.T, p *pair, key string) {
		done := send(t, p.two, byDefault, worker.Message{Key: key + " done"}, worker.Sent)
		flying := p.two.Send(byDefault, worker.Message{Key: key + " in flight"})
		flying.AwaitBegun(t)
		batch := p.one.SendMany(byDefault, worker.Message{Key: key + " done"}, worker.Message{Key: key + " in flight"}, worker.Message{Key: key + " new"})
		batch[2].AwaitBegun(t)
		requireInFlight(t, again(t, p.two, byDefault, worker.Message{Key: key + " new"}))
		batch[2].End(worker.Sent)
		requireReplay(t, done, batch[0].Answer(t))
		requireInFlight(t, batch[1].Answer(t))
		requireReplay(t, batch[2].Answer(t), again(t, p.two, byDefault, worker.Message{Key: key + " new"}))
		flying.End(worker.Sent)
		require.True(t, flying.Answer(t).Nil)
	}},
	{"TTL: a receipt is kept so long, an unknown one too", func(t *testing.T, p *pair, key string) {
		require.True(t, send(t, p.one, briefly, worker.Message{Key: key + ", sent"}, worker.Sent).Nil)
		send(t, p.one, briefly, worker.Message{Key: key + ", unknown"}, worker.Unknown)
		goesAgain(t, p.two, briefly, worker.Message{Key: key + ", sent"})
		goesAgain(t, p.two, briefly, worker.Message{Key: key + ", unknown"})
	}},
	{"TTL: a scheduled message's receipt is kept from SendAt on", func(t *testing.T, p *pair, key string) {
		m := worker.Message{Key: key, SendAt: time.Now().Add(3 * time.Hour).Truncate(time.Second)}
		first := send(t, p.one, briefly, m, worker.Sent)
		require.WithinDuration(t, m.SendAt.Add(short), p.lookup(t, key).ExpiresAt, time.Minute)
		p.passTTL(t, key)
		requireReplay(t, first, again(t, p.two, briefly, m))
	}},
	{"AtMostOnce: an unknown outcome is kept for ever, a sent one for TTL", func(t *testing.T, p *pair, key string) {
		require.True(t, send(t, p.one, onceBriefly, worker.Message{Key: key + ", sent"}, worker.Sent).Nil)
		unknown := send(t, p.one, onceBriefly, worker.Message{Key: key + ", unknown"}, worker.Unknown)
		require.True(t, p.lookup(t, key+", unknown").ExpiresAt.IsZero())
		goesAgain(t, p.two, onceBriefly, worker.Message{Key: key + ", sent"})
		p.passTTL(t, key)
		requireReplay(t, unknown, again(t, p.two, onceBriefly, worker.Message{Key: key + ", unknown"}))
	}},
}

var leases = []guarantee{
	{"renewal: a lease that is shorter than its send is safe", func(t *testing.T, p *pair, key string) {
		keepsItsLease(t, p.one, p.two, renewed, key, renewedLease*5/2)
	}},
	{"MaxSend: a send that takes longer is unknown", func(t *testing.T, p *pair, key string) {
		first := p.one.Send(bounded, worker.Message{Key: key})
		first.AwaitBegun(t)
		first.End(worker.Hang)
		a := first.Answer(t)
		requireUnknown(t, idemmail.CodeAborted, a)
		requireReplay(t, a, again(t, p.two, bounded, worker.Message{Key: key}))
	}},
	{"MaxSend: a lease is not renewed after it, and the one who takes over has the key", func(t *testing.T, p *pair, key string) {
		first := p.one.Send(runsOut, worker.Message{Key: key, Deaf: true})
		first.AwaitBegun(t)
		goesAgain(t, p.two, runsOut, worker.Message{Key: key})
		second := again(t, p.two, byDefault, worker.Message{Key: key})
		first.End(worker.Sent)
		late := first.Answer(t)
		require.True(t, late.Nil, "its caller gets its own receipt")
		require.NotEqual(t, second.ProviderID, late.ProviderID)
		require.Contains(t, first.Observed(), idemmail.EventLeaseLost)
		requireReplay(t, second, again(t, p.one, byDefault, worker.Message{Key: key}))
	}},
	{"AtMostOnce: what was abandoned is never sent, and listed", func(t *testing.T, p *pair, key string) {
		first := p.one.Send(onceRunsOut, worker.Message{Key: key, Deaf: true})
		first.AwaitBegun(t)
		var a worker.Answer
		require.Eventually(t, func() bool {
			a = again(t, p.two, onceRunsOut, worker.Message{Key: key})
			return a.Code != idemmail.CodeInFlight
		}, worker.Patience, 20*time.Millisecond)
		requireUnknown(t, idemmail.CodeAbandoned, a)
		require.Contains(t, a.Is, "ErrAbandoned")
		require.Eventually(t, func() bool { // the two clients' ideas of the server's time differ by a moment
			return slices.Contains(unsettled(t, p.guard(t, short), short), key)
		}, worker.Patience, 20*time.Millisecond)

		first.End(worker.Sent) // it lived after all
		require.True(t, first.Answer(t).Nil)
		requireReplay(t, first.Answer(t), again(t, p.two, onceRunsOut, worker.Message{Key: key}))
		require.NotContains(t, unsettled(t, p.guard(t, short), short), key)
	}},
	{"AtMostOnce: renewal keeps a long send from being taken for abandoned", func(t *testing.T, p *pair, key string) {
		keepsItsLease(t, p.one, p.two, onceRenewed, key, renewedLease*5/2)
	}},
}

// keepsItsLease has a send take so long, while another sender asks for its key
// all the time.
func keepsItsLease(t *testing.T, one, two *worker.Worker, mode, key string, took time.Duration) {
	first := one.Send(mode, worker.Message{Key: key})
	first.AwaitBegun(t)
	for began := time.Now(); time.Since(began) < took; time.Sleep(100 * time.Millisecond) {
		requireInFlight(t, again(t, two, mode, worker.Message{Key: key}))
	}
	first.End(worker.Sent)
	require.True(t, first.Answer(t).Nil)
	require.Contains(t, first.Observed(), idemmail.EventRenewed)
	require.NotContains(t, first.Observed(), idemmail.EventLeaseLost)
	requireReplay(t, first.Answer(t), again(t, two, mode, worker.Message{Key: key}))
}

// TestLeaseOfASecond is the long form of what renewal promises: nothing else
// runs meanwhile, so that the machine keeps up.
func TestLeaseOfASecond(t *testing.T) {
	if !soak.Wanted() {
		t.Skip("takes half a minute for each store: run by make soak (IDEMMAIL_SOAK=1)")
	}
	backend.Each(t, func(t *testing.T, s *backend.Server) {
		start := worker.Start
		if !s.Shared() {
			start = worker.StartHere
		}
		config := worker.Config{URL: s.URL, Namespace: namespace, Modes: map[string]worker.Mode{
			"default":    {Lease: time.Second, MaxSend: time.Hour},
			"AtMostOnce": {Lease: time.Second, MaxSend: time.Hour, AtMostOnce: true},
		}}
		for mode := range config.Modes {
			t.Run(mode, func(t *testing.T) {
				t.Parallel()
				keepsItsLease(t, start(t, config), start(t, config), mode, mode, 30*time.Second)
			})
		}
	})
}
