package idemmail_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
)

// A door is one of the five ways into the engine. Whatever is promised of one
// send holds through each of them.
type door struct {
	name string
	open func(t testing.TB, options idemmail.Options, do work) knock
}

// work is what the wrapped transport, or the function of Guard.Do, does.
type work func(ctx context.Context) (*idemmail.Receipt, error)

// A knock sends something under a key. What it is about tells it from other
// things under the key.
type knock func(ctx context.Context, key, about string) (*idemmail.Receipt, error)

const (
	doorNamespace = "shop"
	doorLease     = 10 * time.Minute // the defaults
	doorTTL       = 24 * time.Hour
)

var doors = []door{
	{"Send", openSend},
	{"SendMany in turn", openSendInTurn},
	{"SendMany together", openSendTogether},
	{"SendRaw", openSendRaw},
	{"Guard.Do", openDo},
}

// throughDoors runs a test through every door.
func throughDoors(t *testing.T, test func(*testing.T, door)) {
	for _, d := range doors {
		t.Run(d.name, func(t *testing.T) { test(t, d) })
	}
}

// throughDoorsAndStores runs a test through every door, with every kind of
// store that the engine treats in its own way.
func throughDoorsAndStores(t *testing.T, test func(*testing.T, door, *shelf)) {
	throughDoors(t, func(t *testing.T, d door) {
		for name, hide := range map[string]func(*idemmail.MemStore) idemmail.Store{
			"MemStore":   func(m *idemmail.MemStore) idemmail.Store { return m },
			"Store":      func(m *idemmail.MemStore) idemmail.Store { return struct{ idemmail.Store }{m} },
			"BatchStore": func(m *idemmail.MemStore) idemmail.Store { return struct{ *idemmail.MemStore }{m} },
		} {
			t.Run(name, func(t *testing.T) {
				mem, clock := newMemStore(0)
				test(t, d, &shelf{hide(mem), mem, clock})
			})
		}
	})
}

// A shelf is a store as the engine gets it, and the memory behind it.
type shelf struct {
	store idemmail.Store
	mem   *idemmail.MemStore
	clock *memClock
}

// newShelf returns the store that the engine treats most plainly.
func newShelf() *shelf {
	mem, clock := newMemStore(0)
	return &shelf{mem, mem, clock}
}

// entry returns what the store holds under a key of the doors' namespace.
func (s *shelf) entry(t testing.TB, key string) *idemmail.Entry {
	t.Helper()
	return lookup(t, s.mem, doorNamespace+":"+key)
}

// requireFree checks that nothing holds the key.
func (s *shelf) requireFree(t testing.TB, key string) {
	t.Helper()
	require.Nil(t, s.entry(t, key), "%s is held", key)
}

// requireKept checks that the key is done with the receipt for ttl.
func (s *shelf) requireKept(t testing.TB, key string, r *idemmail.Receipt, ttl time.Duration) {
	t.Helper()
	e := s.entry(t, key)
	require.NotNil(t, e, "%s is free", key)
	require.Equal(t, idemmail.StateDone, e.Record.State)
	want := *r
	want.Replayed = false
	require.Equal(t, &want, e.Record.Receipt)
	s.requireExpiry(t, e, ttl)
}

// requirePending checks that the key is reserved for lease.
func (s *shelf) requirePending(t testing.TB, key string, lease time.Duration) {
	t.Helper()
	e := s.entry(t, key)
	require.NotNil(t, e, "%s is free", key)
	require.Equal(t, idemmail.StatePending, e.Record.State)
	require.Nil(t, e.Record.Receipt)
	s.requireExpiry(t, e, lease)
}

func (s *shelf) requireExpiry(t testing.TB, e *idemmail.Entry, in time.Duration) {
	t.Helper()
	if in == idemmail.NoExpiry {
		require.Zero(t, e.ExpiresAt, "never")
		return
	}
	require.Equal(t, s.clock.Now().Add(in), e.ExpiresAt)
}

// requireSendError checks that an error is a SendError with the receipt.
func requireSendError(t testing.TB, key string, r *idemmail.Receipt, err error) *idemmail.SendError {
	t.Helper()
	require.Error(t, err)
	require.NotNil(t, r)
	var e *idemmail.SendError
	require.ErrorAs(t, err, &e)
	require.Same(t, r, e.Receipt)
	require.Equal(t, key, e.Key)
	require.Equal(t, r.Status != idemmail.StatusFailed, e.DeliveryUnknown())
	if r.Status == idemmail.StatusUnknown {
		require.ErrorIs(t, err, idemmail.ErrDeliveryUnknown)
	} else {
		require.NotErrorIs(t, err, idemmail.ErrDeliveryUnknown)
	}
	return e
}

// doorMessage is the message of a knock.
func doorMessage(key, about string) *idemmail.Message {
	return &idemmail.Message{Subject: about, IdempotencyKey: key}
}

func doorOptions(o idemmail.Options) idemmail.Options {
	if o.Namespace == "" {
		o.Namespace = doorNamespace
	}
	if o.Logger == nil {
		o.Logger = quietLogger
	}
	return o
}

func openTransport(t testing.TB, next idemmail.Transport, options idemmail.Options) *idemmail.IdempotencyTransport {
	t.Helper()
	transport, err := idemmail.New(next, doorOptions(options))
	require.NoError(t, err)
	return transport
}

func openSend(t testing.TB, options idemmail.Options, do work) knock {
	transport := openTransport(t, idemmail.TransportFunc(func(ctx context.Context, _ *idemmail.Message) (*idemmail.Receipt, error) {
		return do(ctx)
	}), options)
	return func(ctx context.Context, key, about string) (*idemmail.Receipt, error) {
		return transport.Send(ctx, doorMessage(key, about))
	}
}

func openDo(t testing.TB, options idemmail.Options, do work) knock {
	guard, err := idemmail.NewGuard(doorOptions(options))
	require.NoError(t, err)
	return func(ctx context.Context, key, about string) (*idemmail.Receipt, error) {
		return guard.Do(ctx, key, about, do)
	}
}

// rawTransport sends raw messages; Send is not to be called.
type rawTransport struct {
	idemmail.Transport
	send func(context.Context, *idemmail.RawMessage) (*idemmail.Receipt, error)
}

func (r rawTransport) SendRaw(ctx context.Context, m *idemmail.RawMessage) (*idemmail.Receipt, error) {
	return r.send(ctx, m)
}

func openSendRaw(t testing.TB, options idemmail.Options, do work) knock {
	transport := openTransport(t, rawTransport{send: func(ctx context.Context, _ *idemmail.RawMessage) (*idemmail.Receipt, error) {
		return do(ctx)
	}}, options)
	return func(ctx context.Context, key, about string) (*idemmail.Receipt, error) {
		return transport.SendRaw(ctx, &idemmail.RawMessage{From: about + "@example.org", IdempotencyKey: key})
	}
}

// batchFunc is a transport that sends many at once; Send is not to be called.
type batchFunc struct {
	idemmail.Transport
	send func(context.Context, []*idemmail.Message) []idemmail.Result
}

func (b batchFunc) SendMany(ctx context.Context, msgs []*idemmail.Message) []idemmail.Result {
	return b.send(ctx, msgs)
}

func openSendInTurn(t testing.TB, options idemmail.Options, do work) knock {
	return amongBystanders(t, openTransport(t, idemmail.TransportFunc(func(ctx context.Context, m *idemmail.Message) (*idemmail.Receipt, error) {
		if isBystander(m) {
			return nil, nil
		}
		return do(ctx)
	}), options))
}

func openSendTogether(t testing.TB, options idemmail.Options, do work) knock {
	return amongBystanders(t, openTransport(t, batchFunc{send: func(ctx context.Context, msgs []*idemmail.Message) []idemmail.Result {
		results := make([]idemmail.Result, len(msgs))
		for i, m := range msgs {
			if !isBystander(m) {
				results[i].Receipt, results[i].Err = do(ctx)
			}
		}
		return results
	}}, options))
}

const bystander = "bystander/"

func isBystander(m *idemmail.Message) bool { return strings.HasPrefix(m.IdempotencyKey, bystander) }

// amongBystanders sends a message in the middle of a batch, so that several
// keys are reserved and settled. The others of the batch are sent, whatever
// becomes of it.
func amongBystanders(t testing.TB, transport *idemmail.IdempotencyTransport) knock {
	var made atomic.Int64
	stand := func() *idemmail.Message {
		return doorMessage(fmt.Sprint(bystander, made.Add(1)), "stands by")
	}
	return func(ctx context.Context, key, about string) (*idemmail.Receipt, error) {
		results := transport.SendMany(ctx, []*idemmail.Message{stand(), doorMessage(key, about), stand()})
		require.Len(t, results, 3)
		if deadline, ok := ctx.Deadline(); ctx.Err() == nil && (!ok || time.Now().Before(deadline)) {
			for _, i := range []int{0, 2} {
				require.NoError(t, results[i].Err, "a bystander")
				require.Equal(t, idemmail.StatusSent, results[i].Receipt.Status, "a bystander")
			}
		}
		return results[1].Receipt, results[1].Err
	}
}

// A counted work counts how often it was done.
func counted(n *atomic.Int64, do work) work {
	return func(ctx context.Context) (*idemmail.Receipt, error) {
		n.Add(1)
		return do(ctx)
	}
}

// answers is work that answers the same each time.
func answers(r *idemmail.Receipt, err error) work {
	return func(context.Context) (*idemmail.Receipt, error) { return r, err }
}
