package idemmail_test

import (
	"context"
	"errors"
	"iter"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
)

// A desk is a guard under AtMostOnce, with what its operator needs.
type desk struct {
	*shelf
	guard *idemmail.IdempotencyTransport
	seen  *observed
	work  work
}

func openDesk(t *testing.T, options idemmail.Options) *desk {
	d := &desk{shelf: newShelf(), seen: new(observed)}
	if options.Store == nil {
		options.Store = d.store
	}
	d.guard = openTransport(t, idemmail.TransportFunc(func(ctx context.Context, _ *idemmail.Message) (*idemmail.Receipt, error) {
		return d.work(ctx)
	}), d.seen.options(options))
	return d
}

// lose sends a message whose outcome is unknown.
func (d *desk) lose(t *testing.T, key string) {
	d.work = answers(nil, idemmail.MayBeSent(errors.New("lost")))
	_, err := d.guard.Send(t.Context(), doorMessage(key, "a"))
	require.ErrorIs(t, err, idemmail.ErrDeliveryUnknown)
}

// abandon leaves a reservation behind.
func (d *desk) abandon(t *testing.T, key string, lease time.Duration) {
	_, _, err := d.mem.Reserve(t.Context(), doorNamespace+":"+key, idemmail.Fingerprint(doorMessage(key, "a")), lease)
	require.NoError(t, err)
}

func (d *desk) list(t *testing.T, olderThan time.Duration) (entries []idemmail.Entry) {
	for e, err := range d.guard.Unsettled(t.Context(), olderThan) {
		require.NoError(t, err)
		entries = append(entries, e)
	}
	return entries
}

func (d *desk) keys(t *testing.T, olderThan time.Duration) (keys []string) {
	for _, e := range d.list(t, olderThan) {
		keys = append(keys, e.Key)
	}
	return keys
}

// C21, C43: what is unsettled is listed without the namespace, and nobody
// else's.
func TestUnsettled(t *testing.T) {
	d := openDesk(t, idemmail.Options{AtMostOnce: true})
	d.lose(t, "unknown")
	d.abandon(t, "pending", idemmail.NoExpiry)
	d.work = answers(nil, nil)
	_, err := d.guard.Send(t.Context(), doorMessage("sent", "a"))
	require.NoError(t, err)
	_, _, err = d.mem.Reserve(t.Context(), doorNamespace+"2:other", "", idemmail.NoExpiry)
	require.NoError(t, err)

	require.ElementsMatch(t, []string{"unknown", "pending"}, d.keys(t, 0))
	require.ElementsMatch(t, []string{"unknown"}, d.keys(t, time.Minute))
	d.clock.Advance(time.Minute)
	require.ElementsMatch(t, []string{"unknown", "pending"}, d.keys(t, time.Minute))

	for e, err := range d.guard.Unsettled(t.Context(), 0) {
		require.NoError(t, err)
		require.NotEmpty(t, e.Token)
		break // may be ended early
	}
}

// Without AtMostOnce an abandoned reservation vanishes with its lease.
func TestUnsettledWithoutAtMostOnce(t *testing.T) {
	d := openDesk(t, idemmail.Options{})
	d.abandon(t, "k", time.Minute)
	require.Equal(t, []string{"k"}, d.keys(t, 0))
	d.clock.Advance(time.Minute)
	require.Empty(t, d.keys(t, 0))
}

func TestLookup(t *testing.T) {
	d := openDesk(t, idemmail.Options{})
	e, err := d.guard.Lookup(t.Context(), "k")
	require.NoError(t, err)
	require.Nil(t, e)
	d.lose(t, "k")
	e, err = d.guard.Lookup(t.Context(), "k")
	require.NoError(t, err)
	require.Equal(t, "k", e.Key)
	require.Equal(t, idemmail.StatusUnknown, e.Record.Receipt.Status)
	for _, key := range []string{"", "a\nb", "\xff", strings.Repeat("k", 513)} {
		_, err = d.guard.Lookup(t.Context(), key)
		require.ErrorIs(t, err, idemmail.ErrInvalidKey, "%q", key)
	}
}

func TestResolve(t *testing.T) {
	given := &idemmail.Receipt{Status: idemmail.StatusSent, ProviderID: "id", Detail: strings.Repeat("x", 2000)}
	for _, test := range []struct {
		name    string
		receipt *idemmail.Receipt
		id      string
	}{{"with a receipt", given, "id"}, {"with nil: a bare one", nil, ""}} {
		t.Run(test.name, func(t *testing.T) {
			d := openDesk(t, idemmail.Options{AtMostOnce: true, TTL: time.Hour})
			d.lose(t, "unknown")
			d.abandon(t, "abandoned", idemmail.NoExpiry)
			d.clock.Advance(doorLease + time.Millisecond)
			entries := d.list(t, 0)
			require.Len(t, entries, 2)
			d.seen.events = nil
			for _, e := range entries {
				require.NoError(t, d.guard.Resolve(t.Context(), e, test.receipt))
				r, err := d.guard.Send(t.Context(), doorMessage(e.Key, "a"))
				require.NoError(t, err)
				require.True(t, r.Replayed)
				require.Equal(t, test.id, r.ProviderID)
				require.False(t, r.At.IsZero())
				require.LessOrEqual(t, len(r.Detail), 1024)
				_, err = d.guard.Send(t.Context(), doorMessage(e.Key, "b"))
				require.ErrorIs(t, err, idemmail.ErrKeyReused, "the fingerprint is kept")
				d.requireExpiry(t, d.entry(t, e.Key), time.Hour)
				require.ErrorIs(t, d.guard.Resolve(t.Context(), e, test.receipt), idemmail.ErrChanged, "settled once")
				require.ErrorIs(t, d.guard.Forget(t.Context(), e), idemmail.ErrChanged)
			}
			require.Len(t, given.Detail, 2000, "the caller's receipt is not changed")
			kinds := d.seen.kinds()
			require.Equal(t, idemmail.EventResolved, kinds[0])
			require.Equal(t, doorNamespace, d.seen.events[0].Namespace)
			require.Empty(t, d.keys(t, 0))
		})
	}
}

func TestResolveRefusesWhatIsNotSent(t *testing.T) {
	d := openDesk(t, idemmail.Options{AtMostOnce: true})
	d.lose(t, "k")
	e := d.list(t, 0)[0]
	for _, status := range []idemmail.Status{idemmail.StatusFailed, idemmail.StatusUnknown, "", "future"} {
		require.Error(t, d.guard.Resolve(t.Context(), e, &idemmail.Receipt{Status: status}))
		require.Equal(t, []string{"k"}, d.keys(t, 0))
	}
}

func TestForget(t *testing.T) {
	d := openDesk(t, idemmail.Options{AtMostOnce: true})
	d.lose(t, "unknown")
	d.abandon(t, "abandoned", idemmail.NoExpiry)
	d.clock.Advance(doorLease + time.Millisecond)
	d.work = answers(nil, nil)
	for _, e := range d.list(t, 0) {
		d.seen.events = nil
		require.NoError(t, d.guard.Forget(t.Context(), e))
		require.Equal(t, []idemmail.EventKind{idemmail.EventForgotten}, d.seen.kinds())
		r, err := d.guard.Send(t.Context(), doorMessage(e.Key, "b"))
		require.NoError(t, err)
		require.False(t, r.Replayed, "the key was free, for any message")
		require.ErrorIs(t, d.guard.Forget(t.Context(), e), idemmail.ErrChanged)
	}
}

// C43: a live owner's key is refused, however old the listing says it is.
func TestLiveOwnersKeyIsNotSettled(t *testing.T) {
	d := openDesk(t, idemmail.Options{AtMostOnce: true})
	d.abandon(t, "k", idemmail.NoExpiry)
	e := d.list(t, 0)[0]
	d.clock.Advance(doorLease)
	settle := map[string]func() error{
		"Resolve": func() error { return d.guard.Resolve(t.Context(), e, nil) },
		"Forget":  func() error { return d.guard.Forget(t.Context(), e) },
	}
	for name, do := range settle {
		require.ErrorIs(t, do(), idemmail.ErrInFlight, name)
	}

	// Listed as old, and renewed since.
	d.clock.Advance(time.Hour)
	e = d.list(t, time.Hour)[0]
	require.NoError(t, d.mem.Renew(t.Context(), doorNamespace+":k", e.Token, idemmail.NoExpiry))
	for name, do := range settle {
		require.ErrorIs(t, do(), idemmail.ErrInFlight, name)
	}

	// Settled by its owner since.
	done := memDone("", statusSent)
	require.NoError(t, d.mem.Complete(t.Context(), doorNamespace+":k", e.Token, done, time.Minute))
	for name, do := range settle {
		require.ErrorIs(t, do(), idemmail.ErrChanged, name)
	}
	d.clock.Advance(time.Minute)
	d.abandon(t, "k", idemmail.NoExpiry)
	e = d.list(t, 0)[0]
	require.NoError(t, d.mem.Release(t.Context(), doorNamespace+":k", e.Token))
	for name, do := range settle {
		require.ErrorIs(t, do(), idemmail.ErrChanged, name)
	}
	d.abandon(t, "k", idemmail.NoExpiry)
	for name, do := range settle {
		require.ErrorIs(t, do(), idemmail.ErrChanged, name)
	}
	require.Equal(t, idemmail.StatePending, d.entry(t, "k").Record.State)
}

// With Lease NoExpiry no age says that an owner is dead: the operator does.
func TestPendingKeyWithLeaseNoExpiryIsSettledAtOnce(t *testing.T) {
	d := openDesk(t, idemmail.Options{Lease: idemmail.NoExpiry})
	d.abandon(t, "k", idemmail.NoExpiry)
	require.NoError(t, d.guard.Forget(t.Context(), d.list(t, 0)[0]))
	d.requireFree(t, "k")
}

func TestStoreThatIsNoReconciler(t *testing.T) {
	d := openDesk(t, idemmail.Options{Store: struct{ idemmail.Store }{idemmail.NewMemStore(idemmail.MemStoreOptions{})}})
	_, err := d.guard.Lookup(t.Context(), "k")
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorIs(t, d.guard.Resolve(t.Context(), idemmail.Entry{Key: "k"}, nil), errors.ErrUnsupported)
	require.ErrorIs(t, d.guard.Resolve(t.Context(), idemmail.Entry{Key: "k"}, receiptOf(statusFailed)), errors.ErrUnsupported)
	require.ErrorIs(t, d.guard.Forget(t.Context(), idemmail.Entry{Key: "k"}), errors.ErrUnsupported)
	n := 0
	for e, err := range d.guard.Unsettled(t.Context(), 0) {
		require.ErrorIs(t, err, errors.ErrUnsupported)
		require.Zero(t, e)
		n++
	}
	require.Equal(t, 1, n)
}

// foreignStore lists data that is no record.
type foreignStore struct{ *idemmail.MemStore }

func (s foreignStore) Unsettled(ctx context.Context, prefix string, olderThan time.Duration) iter.Seq2[idemmail.Entry, error] {
	return func(yield func(idemmail.Entry, error) bool) {
		if !yield(idemmail.Entry{Key: prefix + "foreign"}, idemmail.ErrBadRecord) {
			return
		}
		for e, err := range s.MemStore.Unsettled(ctx, prefix, olderThan) {
			if !yield(e, err) {
				return
			}
		}
	}
}

func TestForeignRecordInTheListing(t *testing.T) {
	mem := idemmail.NewMemStore(idemmail.MemStoreOptions{})
	d := openDesk(t, idemmail.Options{AtMostOnce: true, Store: foreignStore{mem}})
	d.lose(t, "k")
	var keys []string
	for e, err := range d.guard.Unsettled(t.Context(), 0) {
		keys = append(keys, e.Key)
		if e.Key == "foreign" {
			require.ErrorIs(t, err, idemmail.ErrBadRecord)
		} else {
			require.NoError(t, err)
		}
	}
	require.Equal(t, []string{"foreign", "k"}, keys)
}

// Every call of the store is bounded here, too.
func TestReconcilingIsBounded(t *testing.T) {
	inBubble(t, func(t *testing.T, _ door) {
		store := &hangingReconciler{idemmail.NewMemStore(idemmail.MemStoreOptions{})}
		d := openDesk(t, idemmail.Options{Store: store, StoreTimeout: time.Second})
		for name, do := range map[string]func() error{
			"Lookup": func() error { _, err := d.guard.Lookup(t.Context(), "k"); return err },
			"Resolve": func() error {
				return d.guard.Resolve(t.Context(), idemmail.Entry{Key: "k", Record: idemmail.Record{State: idemmail.StateDone}}, nil)
			},
			"Forget": func() error {
				return d.guard.Forget(t.Context(), idemmail.Entry{Key: "k", Record: idemmail.Record{State: idemmail.StateDone}})
			},
		} {
			began := time.Now()
			require.ErrorIs(t, do(), context.DeadlineExceeded, name)
			require.Less(t, time.Since(began), 2*time.Second, name)
		}
		time.Sleep(time.Hour)
	})
}

type hangingReconciler struct{ *idemmail.MemStore }

func (s *hangingReconciler) Lookup(context.Context, string) (*idemmail.Entry, error) {
	time.Sleep(time.Minute)
	return nil, nil
}

func (s *hangingReconciler) Resolve(context.Context, idemmail.Entry, *idemmail.Receipt, time.Duration) error {
	time.Sleep(time.Minute)
	return nil
}

func (s *hangingReconciler) Forget(context.Context, idemmail.Entry) error {
	time.Sleep(time.Minute)
	return nil
}
