package idemmail_test

import (
	"context"
	"net/mail"
	"net/textproto"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
)

// spoil changes all of a receipt that its owner can reach.
func spoil(r *idemmail.Receipt) {
	for i := range r.Accepted {
		r.Accepted[i] = "spoilt"
	}
	for i := range r.Rejected {
		r.Rejected[i] = idemmail.Rejection{Address: "spoilt"}
	}
	*r = idemmail.Receipt{Status: "spoilt", Accepted: append(r.Accepted, "spoilt")}
}

// Receipts are copies: what a caller, or the transport, does with its own
// changes no other.
func TestReceiptsAreCopies(t *testing.T) {
	for _, test := range []struct {
		name   string
		status idemmail.Status
		err    error
	}{{"sent", statusSent, nil}, {"unknown", statusUnknown, errMaybe}} {
		t.Run(test.name, func(t *testing.T) {
			throughDoorsAndStores(t, func(t *testing.T, d door, s *shelf) {
				own := acceptedReceipt(test.status)
				send := d.open(t, idemmail.Options{Store: s.store}, answers(own, test.err))
				r, _ := send(t.Context(), "k", "a")
				require.Equal(t, acceptedReceipt(test.status), own, "the transport's own receipt was changed")

				want := copyOf(r)
				spoil(own)
				require.Equal(t, &want, r)
				s.requireKept(t, "k", &want, doorTTL)
				spoil(r)
				s.requireKept(t, "k", &want, doorTTL)

				want.Replayed = true
				for range 3 {
					r, _ := send(t.Context(), "k", "a")
					require.Equal(t, &want, r)
					spoil(r)
				}
			})
		})
	}
}

// A store of somebody else's that answers what it keeps, and no copy of it,
// does not find that changed. The race detector looks on.
func TestStoreThatAnswersWhatItKeeps(t *testing.T) {
	throughDoors(t, func(t *testing.T, d door) {
		kept := &idemmail.Record{State: idemmail.StateDone, Receipt: acceptedReceipt(statusSent)}
		for name, store := range map[string]idemmail.Store{
			"Store":      held{newShelf().mem, func(string) *idemmail.Record { return kept }},
			"BatchStore": &endingStore{MemStore: newShelf().mem, held: kept, end: func() {}},
		} {
			t.Run(name, func(t *testing.T) {
				send := d.open(t, idemmail.Options{Store: store}, notToBeSent(t))
				var wg sync.WaitGroup
				for range 4 {
					wg.Go(func() {
						r, err := send(t.Context(), "k", "a")
						requireReplay(t, r, err)
						spoil(r)
					})
				}
				wg.Wait()
				require.Equal(t, acceptedReceipt(statusSent), kept.Receipt)
			})
		}
	})
}

// A store that is left behind while it keeps a receipt keeps what it was given,
// whatever the caller has done to his meanwhile.
func TestStoreThatIsLeftBehindKeepsItsOwn(t *testing.T) {
	throughDoors(t, func(t *testing.T, d door) {
		synctest.Test(t, func(t *testing.T) {
			mem := idemmail.NewMemStore(idemmail.MemStoreOptions{})
			send := d.open(t, idemmail.Options{Store: keepsLate{mem}}, answers(acceptedReceipt(statusSent), nil))
			r, err := send(t.Context(), "k", "a")
			requireFirst(t, r, err)
			want := copyOf(r)
			spoil(r)
			time.Sleep(2 * time.Minute)
			require.Equal(t, &want, lookup(t, mem, doorNamespace+":k").Record.Receipt)
		})
	})
}

// keepsLate is a store that ignores the end of a context.
type keepsLate struct{ *idemmail.MemStore }

func (s keepsLate) Complete(ctx context.Context, key, token string, rec idemmail.Record, ttl time.Duration) error {
	time.Sleep(time.Minute)
	return s.MemStore.Complete(context.WithoutCancel(ctx), key, token, rec, ttl)
}

func (s keepsLate) CompleteMany(ctx context.Context, reqs []idemmail.CompleteRequest) []error {
	time.Sleep(time.Minute)
	return s.MemStore.CompleteMany(context.WithoutCancel(ctx), reqs)
}

// copyOf is a copy of a receipt that shares nothing with it.
func copyOf(r *idemmail.Receipt) idemmail.Receipt {
	c := *r
	c.Accepted = append([]string(nil), r.Accepted...)
	c.Rejected = append([]idemmail.Rejection(nil), r.Rejected...)
	return c
}

// One message, sent by many at once, goes once; each caller owns the receipt
// that it gets. The race detector looks on.
func TestConcurrentSendsOfOneMessage(t *testing.T) {
	throughDoorsAndStores(t, func(t *testing.T, d door, s *shelf) {
		var sends, sent, inFlight atomic.Int64
		own := acceptedReceipt(statusSent)
		send := d.open(t, idemmail.Options{Store: s.store}, counted(&sends, answers(own, nil)))
		var wg sync.WaitGroup
		for range 16 {
			wg.Go(func() {
				for range 4 {
					r, err := send(t.Context(), "k", "a")
					switch {
					case err != nil:
						requireInFlight(t, r, err)
						inFlight.Add(1)
					case !r.Replayed:
						sent.Add(1)
					}
					spoil(r)
				}
			})
		}
		wg.Wait()
		require.EqualValues(t, 1, sends.Load())
		require.EqualValues(t, 1, sent.Load())
		require.Less(t, inFlight.Load(), int64(16*4))
		r, err := send(t.Context(), "k", "a")
		requireReplay(t, r, err)
		require.Equal(t, own.Accepted, r.Accepted)
	})
}

func requireInFlight(t testing.TB, r *idemmail.Receipt, err error) {
	t.Helper()
	requireSendError(t, "k", r, err)
	require.ErrorIs(t, err, idemmail.ErrInFlight)
}

// The caller's message stays as it is, whatever the decorator adds to what it
// hands on. Goroutines may send the same one: the race detector looks on.
func TestTheMessageIsNotChanged(t *testing.T) {
	yes := true
	build := func() *idemmail.Message {
		return &idemmail.Message{
			From: mail.Address{Name: "Shop", Address: "Shop@EXAMPLE.com"}, To: []mail.Address{{Address: "z@Example.org"}, {Address: "a@example.org"}},
			Subject: "Your order", Text: "Thank\r\nyou", Header: textproto.MIMEHeader{"x-order": {"2", "1"}, "Message-id": {}},
			Tags: []string{"b", "a"}, Metadata: map[string]string{"b": "1", "a": "2"}, Tracking: idemmail.Tracking{Opens: &yes},
			Attachments: []idemmail.Attachment{{Filename: "b.pdf", Content: []byte("1")}}, IdempotencyKey: "own",
		}
	}
	options := idemmail.Options{
		MessageIDDomain: "example.org",
		Key:             func(m *idemmail.Message) string { return strings.ToUpper(m.IdempotencyKey) },
		RawKey:          func(m *idemmail.RawMessage) string { return strings.ToUpper(m.IdempotencyKey) },
	}
	next := new(handedOn)
	for name, transport := range map[string]*idemmail.IdempotencyTransport{
		"single": openTransport(t, next.single(), options), "together": openTransport(t, next.together(), options),
	} {
		t.Run(name, func(t *testing.T) {
			m := build()
			var wg sync.WaitGroup
			for range 4 {
				wg.Go(func() {
					_, _ = transport.Send(context.Background(), m)
					transport.SendMany(context.Background(), []*idemmail.Message{m, m})
				})
			}
			wg.Wait()
			require.Equal(t, build(), m)
		})
	}

	t.Run("raw", func(t *testing.T) {
		transport := openTransport(t, next.raw(), options)
		m := &idemmail.RawMessage{From: "a@Example.org", To: []string{"z@Example.org", "a@example.org"}, Data: []byte("Subject: x\r\n\r\n"), IdempotencyKey: "own"}
		want := *m
		want.To = []string{"z@Example.org", "a@example.org"}
		want.Data = []byte("Subject: x\r\n\r\n")
		_, err := transport.SendRaw(t.Context(), m)
		require.NoError(t, err)
		require.Equal(t, &want, m)
	})
}

// What the caller does to a message after the send changes nothing of what is
// kept.
func TestTheMessageIsNotKept(t *testing.T) {
	s := newShelf()
	transport := openTransport(t, new(handedOn).single(), idemmail.Options{Store: s.store})
	m := &idemmail.Message{Subject: "a", MessageID: "m@example.org", To: []mail.Address{{Address: "a@example.org"}}, IdempotencyKey: "k"}
	_, err := transport.Send(t.Context(), m)
	require.NoError(t, err)
	m.Subject, m.MessageID, m.To[0].Address = "b", "other@example.org", "b@example.org"
	_, err = transport.Send(t.Context(), m)
	require.ErrorIs(t, err, idemmail.ErrKeyReused)
	m.Subject, m.To[0].Address = "a", "a@example.org"
	r, err := transport.Send(t.Context(), m)
	requireReplay(t, r, err)
	require.Equal(t, "m@example.org", r.MessageID)
}

// A send that is over is not kept in memory, by a timer say, until its lease
// would have ended.
func TestSendThatIsOverIsLetGo(t *testing.T) {
	throughDoors(t, func(t *testing.T, d door) {
		gone := make(chan struct{})
		send := d.open(t, idemmail.Options{}, func(context.Context) (*idemmail.Receipt, error) {
			r := &idemmail.Receipt{ProviderID: "id"}
			runtime.AddCleanup(r, func(gone chan struct{}) { close(gone) }, gone)
			return r, nil
		})
		r, err := send(t.Context(), "k", "a")
		requireFirst(t, r, err)
		for range 1000 {
			runtime.GC()
			select {
			case <-gone:
				return
			case <-time.After(time.Millisecond):
			}
		}
		t.Error("the transport's receipt is still in memory")
	})
}
