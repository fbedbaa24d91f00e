package idemmail_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/mail"
	"net/textproto"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
)

// secretMessage has a word in every place that a log must not show.
func secretMessage(key string) *idemmail.Message {
	return &idemmail.Message{
		From:           mail.Address{Name: "secret", Address: "secret@example.com"},
		To:             []mail.Address{{Address: "secret@example.org"}},
		Subject:        "secret",
		Text:           "secret",
		HTML:           "secret",
		Header:         textproto.MIMEHeader{"X-Secret": {"secret"}},
		Metadata:       map[string]string{"secret": "secret"},
		Tags:           []string{"secret"},
		Attachments:    []idemmail.Attachment{{Filename: "secret", Content: []byte("secret")}},
		IdempotencyKey: key,
	}
}

// Levels, codes and silence, by what is decided.
func TestLogging(t *testing.T) {
	unknown := idemmail.MayBeSent(errors.New("secret answer of the provider"))
	for _, test := range []struct {
		name  string
		setUp func(t *testing.T, s *shelf) // before the send
		err   error                        // of the transport
		store func(s *hookedStore)
		want  []string // level and what the line has
	}{
		{name: "sent", want: []string{"DEBUG status=sent"}},
		{name: "failed", err: idemmail.NotSent(errors.New("secret")), want: []string{"DEBUG status=failed"}},
		{name: "unknown", err: unknown, want: []string{"WARN status=unknown"}},
		{name: "answered as before", setUp: func(t *testing.T, s *shelf) {
			_, err := openTransport(t, idemmail.TransportFunc(func(context.Context, *idemmail.Message) (*idemmail.Receipt, error) { return nil, nil }),
				idemmail.Options{Store: s.store}).Send(t.Context(), secretMessage("k"))
			require.NoError(t, err)
		}, want: []string{"DEBUG status=sent"}},
		{name: "in flight", setUp: func(t *testing.T, s *shelf) {
			_, _, err := s.mem.Reserve(t.Context(), doorNamespace+":k", "", time.Hour)
			require.NoError(t, err)
		}, want: []string{"INFO code=idempotency.in_flight"}},
		{name: "key reused", setUp: func(t *testing.T, s *shelf) {
			_, _, err := s.mem.Reserve(t.Context(), doorNamespace+":k", "1:other", time.Hour)
			require.NoError(t, err)
		}, want: []string{"WARN code=idempotency.key_reused"}},
		{name: "store failure", store: func(s *hookedStore) {
			s.reserve = func(context.Context, int, func() (string, *idemmail.Record, error)) (string, *idemmail.Record, error) {
				return "", nil, errors.New("connection refused")
			}
		}, want: []string{"WARN code=idempotency.store_failed error=\"connection refused\"", "DEBUG code=idempotency.store_failed"}},
		{name: "receipt that could not be kept", store: func(s *hookedStore) {
			s.complete = func(context.Context, int, func() error) error { return idemmail.ErrStoreFull }
		}, want: []string{"WARN code=idempotency.store_failed error=\"idemmail: store is full\"", "DEBUG status=sent"}},
		{name: "lost lease", store: func(s *hookedStore) {
			s.complete = func(context.Context, int, func() error) error { return idemmail.ErrLeaseLost }
		}, want: []string{"WARN error=\"idemmail: lease lost\"", "DEBUG status=sent"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var log bytes.Buffer
			s := newShelf()
			hooked := &hookedStore{MemStore: s.mem}
			if test.setUp != nil {
				test.setUp(t, s)
			}
			if test.store != nil {
				test.store(hooked)
			}
			transport := openTransport(t, idemmail.TransportFunc(func(context.Context, *idemmail.Message) (*idemmail.Receipt, error) {
				if test.err != nil {
					return nil, test.err
				}
				return &idemmail.Receipt{Response: "secret", Accepted: []string{"secret@example.org"}}, nil
			}), idemmail.Options{
				Store:  hooked,
				Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})),
			})
			_, _ = transport.Send(t.Context(), secretMessage("k"))
			lines := strings.Split(strings.TrimSpace(log.String()), "\n")
			require.Len(t, lines, len(test.want), log.String())
			for i, want := range test.want {
				level, part, _ := strings.Cut(want, " ")
				require.Contains(t, lines[i], "level="+level)
				require.Contains(t, lines[i], part)
				require.Contains(t, lines[i], "key=k")
				require.Contains(t, lines[i], "namespace="+doorNamespace)
			}
			require.NotContains(t, strings.ToLower(log.String()), "secret")
		})
	}
}

// A nil Logger is slog.Default(), taken at each call.
func TestNilLoggerIsTheDefaultOfEachCall(t *testing.T) {
	store := newHookedStore()
	store.complete = func(context.Context, int, func() error) error { return idemmail.ErrStoreFull }
	guard, err := idemmail.NewGuard(idemmail.Options{Namespace: doorNamespace, Store: store})
	require.NoError(t, err)

	var log bytes.Buffer
	before := slog.Default()
	defer slog.SetDefault(before)
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	_, err = guard.Do(t.Context(), "k", "", sendsWell)
	require.NoError(t, err)
	require.Contains(t, log.String(), "code=idempotency.store_failed")
}

// panickingHandler is a log handler that panics.
type panickingHandler struct{ slog.Handler }

func (panickingHandler) Enabled(context.Context, slog.Level) bool { panic("log") }

// Neither an observer nor a log handler may cost a mail, or leave a key
// pending.
func TestPanicsOfObserversAreCaught(t *testing.T) {
	throughDoors(t, func(t *testing.T, d door) {
		s := newShelf()
		var seen atomic.Int64
		send := d.open(t, idemmail.Options{
			Store:  s.store,
			Logger: slog.New(panickingHandler{}),
			Observe: func(context.Context, idemmail.Event) {
				seen.Add(1)
				panic("observer")
			},
		}, sendsWell)
		r, err := send(t.Context(), "k", "a")
		require.NoError(t, err)
		s.requireKept(t, "k", r, doorTTL)
		_, err = send(t.Context(), "k", "b")
		require.ErrorIs(t, err, idemmail.ErrKeyReused)
		require.GreaterOrEqual(t, seen.Load(), int64(2))
	})
}

// One event per decision, with what it is about.
func TestEvent(t *testing.T) {
	throughDoors(t, func(t *testing.T, d door) {
		seen, s := new(observed), newShelf()
		send := d.open(t, seen.options(idemmail.Options{Store: s.store}), func(context.Context) (*idemmail.Receipt, error) {
			time.Sleep(time.Millisecond)
			return &idemmail.Receipt{ProviderID: "id"}, errRefused
		})
		r, err := send(t.Context(), "k", "a")
		var e idemmail.Event
		n := 0
		for _, candidate := range seen.events {
			if candidate.Key == "k" {
				e = candidate
				n++
			}
		}
		require.Equal(t, 1, n)
		require.Equal(t, idemmail.EventFailed, e.Kind)
		require.Equal(t, doorNamespace, e.Namespace)
		require.Same(t, r, e.Receipt)
		require.Equal(t, err, e.Err)
		require.GreaterOrEqual(t, e.Elapsed, time.Millisecond)
		require.Less(t, e.Store, e.Elapsed)
	})
}
