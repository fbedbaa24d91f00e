package idemmail_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
)

// A message whose key is empty goes to the wrapped transport as it is, and its
// answer comes back as it is.
func TestEmptyKey(t *testing.T) {
	type contextKey struct{}
	receipt, cause := &idemmail.Receipt{Status: "queued", Accepted: []string{"a@example.org"}}, errors.New("so it goes")
	for name, answer := range map[string]idemmail.Result{
		"nothing":              {},
		"receipt":              {Receipt: receipt},
		"error":                {Err: cause},
		"receipt and an error": {Receipt: receipt, Err: cause},
		"in flight beneath":    {Err: idemmail.ErrInFlight},
	} {
		t.Run(name, func(t *testing.T) {
			throughDoors(t, func(t *testing.T, d door) {
				events := new(eventLog)
				var sends atomic.Int64
				send := d.open(t, idemmail.Options{
					Store:           notToBeCalled{t},
					Observe:         events.observe,
					Classify:        func(error) idemmail.Delivery { t.Error("classified"); return 0 },
					MessageIDDomain: "example.org",
				}, counted(&sends, func(ctx context.Context) (*idemmail.Receipt, error) {
					require.Equal(t, 17, ctx.Value(contextKey{}))
					if d.name != "SendMany together" { // where it is that of the keyed messages too
						require.Nil(t, ctx.Done(), "the caller's own context")
					}
					return answer.Receipt, answer.Err
				}))
				ctx := context.WithValue(context.Background(), contextKey{}, 17)
				for n := range 2 {
					r, err := send(ctx, "", "a")
					require.Same(t, answer.Receipt, r)
					require.Equal(t, answer.Err, err)
					require.EqualValues(t, n+1, sends.Load())
				}
				require.Empty(t, events.kinds(""))
			})
		})
	}
}

func TestEmptyKeyHasNoFingerprint(t *testing.T) {
	m := &idemmail.Message{Subject: "as it is"}
	options := idemmail.Options{Fingerprint: func(*idemmail.Message) string { t.Error("fingerprinted"); return "" }}
	next := new(handedOn)
	_, err := openTransport(t, next.single(), options).Send(t.Context(), m)
	require.NoError(t, err)
	require.Same(t, m, next.message(), "in turn and together it is not copied either")
	for _, transport := range []idemmail.Transport{next.single(), next.together()} {
		results := openTransport(t, transport, options).SendMany(t.Context(), []*idemmail.Message{m})
		require.Equal(t, []idemmail.Result{{}}, results)
		require.Same(t, m, next.message())
	}
	raw := &idemmail.RawMessage{From: "a@example.org"}
	_, err = openTransport(t, next.raw(), options).SendRaw(t.Context(), raw)
	require.NoError(t, err)
	require.Same(t, raw, next.rawMessage())
}

func TestRequireKey(t *testing.T) {
	throughDoors(t, func(t *testing.T, d door) {
		events := new(eventLog)
		var sends atomic.Int64
		send := d.open(t, idemmail.Options{Store: notToBeCalled{t}, RequireKey: true, Observe: events.observe}, counted(&sends, answers(nil, nil)))
		r, err := send(t.Context(), "", "a")
		requireInvalidKey(t, "", r, err)
		require.Zero(t, sends.Load())
		require.Equal(t, []idemmail.EventKind{idemmail.EventFailed}, events.kinds(""))

		// Nothing is left out then, and an empty key is looked at before the
		// context.
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		r, err = send(ctx, "", "a")
		requireInvalidKey(t, "", r, err)
	})

	t.Run("also where Options.Key leaves the message out", func(t *testing.T) {
		options := idemmail.Options{
			Store: notToBeCalled{t}, RequireKey: true,
			Key:    func(*idemmail.Message) string { return "" },
			RawKey: func(*idemmail.RawMessage) string { return "" },
		}
		next := new(handedOn)
		r, err := openTransport(t, next.single(), options).Send(t.Context(), doorMessage("k", "a"))
		requireInvalidKey(t, "", r, err)
		r, err = openTransport(t, next.raw(), options).SendRaw(t.Context(), &idemmail.RawMessage{IdempotencyKey: "k"})
		requireInvalidKey(t, "", r, err)
		require.Zero(t, next.count())
	})
}

func TestInvalidKey(t *testing.T) {
	for name, key := range map[string]string{
		"too long":                    strings.Repeat("k", 513),
		"too long in bytes":           strings.Repeat("é", 257),
		"not UTF-8":                   "order/\xff",
		"a part of a rune":            "order/\xe2\x82",
		"a surrogate":                 "order/\xed\xa0\x80",
		"NUL":                         "order\x001",
		"a line feed":                 "order/1\n",
		"a tab":                       "\torder/1",
		"delete":                      "order/\x7f",
		"a control character of C1":   "order/\u0085",
		"only a control character":    "\r",
		"NUL at the end":              "order/1\x00",
		"too long and not UTF-8":      strings.Repeat("\xff", 600),
		"a line feed in a valid rune": "order/\u00e9\n",
	} {
		t.Run(name, func(t *testing.T) {
			throughDoors(t, func(t *testing.T, d door) {
				events := new(eventLog)
				send := d.open(t, idemmail.Options{Store: notToBeCalled{t}, Observe: events.observe}, notToBeSent(t))
				r, err := send(t.Context(), key, "a")
				requireInvalidKey(t, key, r, err)
				require.Equal(t, []idemmail.EventKind{idemmail.EventFailed}, events.kinds(key))

				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				r, err = send(ctx, key, "a")
				requireInvalidKey(t, key, r, err)
			})
		})
	}
}

func requireInvalidKey(t testing.TB, key string, r *idemmail.Receipt, err error) {
	t.Helper()
	requireSendError(t, key, r, err)
	require.Equal(t, statusFailed, r.Status)
	require.Equal(t, idemmail.CodeInvalidKey, r.Code)
	require.Equal(t, idemmail.CategoryValidation, r.Category)
	require.False(t, r.Retryable)
	require.ErrorIs(t, err, idemmail.ErrInvalidKey)
	require.NotEmpty(t, r.Detail)
}

// C11: every other key is kept as it is, and apart from all others.
func TestValidKeyIsNeverChanged(t *testing.T) {
	keys := []string{
		"order/1042", "ORDER/1042", " order/1042", "order/1042 ", "order:1042", ":", "::", "shop:order", "{order}", "{}", "*", "?", "[a]", "%", "_", "'", `"`, `\`, "$", ".", "0",
		"\u00e9", "e\u0301", "\u200b", "\u2028", "\ufeff", "日本", "🙂", "null", strings.Repeat("k", 512), strings.Repeat("é", 256),
	}
	throughDoorsAndStores(t, func(t *testing.T, d door, s *shelf) {
		var sends atomic.Int64
		send := d.open(t, idemmail.Options{Store: s.store}, counted(&sends, answers(nil, nil)))
		for _, key := range keys {
			r, err := send(t.Context(), key, "a")
			requireFirst(t, r, err)
			s.requireKept(t, key, r, doorTTL)
		}
		require.EqualValues(t, len(keys), sends.Load())
		for _, key := range keys {
			r, err := send(t.Context(), key, "a")
			requireReplay(t, r, err)
		}
	})
}

func TestNilMessage(t *testing.T) {
	next := new(handedOn)
	for _, requireKey := range []bool{false, true} {
		for name, send := range map[string]func(context.Context, idemmail.Options) (*idemmail.Receipt, error){
			"Send": func(ctx context.Context, o idemmail.Options) (*idemmail.Receipt, error) {
				return openTransport(t, next.single(), o).Send(ctx, nil)
			},
			"SendMany in turn": func(ctx context.Context, o idemmail.Options) (*idemmail.Receipt, error) {
				r := openTransport(t, next.single(), o).SendMany(ctx, []*idemmail.Message{nil})
				return r[0].Receipt, r[0].Err
			},
			"SendMany together": func(ctx context.Context, o idemmail.Options) (*idemmail.Receipt, error) {
				r := openTransport(t, next.together(), o).SendMany(ctx, []*idemmail.Message{nil})
				return r[0].Receipt, r[0].Err
			},
			"SendRaw": func(ctx context.Context, o idemmail.Options) (*idemmail.Receipt, error) {
				return openTransport(t, next.raw(), o).SendRaw(ctx, nil)
			},
			"SendRaw, which the transport does not have": func(ctx context.Context, o idemmail.Options) (*idemmail.Receipt, error) {
				return openTransport(t, next.single(), o).SendRaw(ctx, nil)
			},
		} {
			t.Run(name, func(t *testing.T) {
				events := new(eventLog)
				options := idemmail.Options{
					Store: notToBeCalled{t}, RequireKey: requireKey, Observe: events.observe,
					Key:    func(*idemmail.Message) string { t.Error("asked for the key of nothing"); return "k" },
					RawKey: func(*idemmail.RawMessage) string { t.Error("asked for the key of nothing"); return "k" },
				}
				ctx, cancel := context.WithCancel(t.Context())
				cancel() // it is looked at after the message
				r, err := send(ctx, options)
				requireSendError(t, "", r, err)
				require.Equal(t, statusFailed, r.Status)
				require.Empty(t, r.Code)
				require.Equal(t, idemmail.CategoryValidation, r.Category)
				require.False(t, r.Retryable)
				require.Contains(t, r.Detail, "nil")
				require.Empty(t, events.events)
			})
		}
	}
	require.Zero(t, next.count())
}

// Checks come in their order: each sends before the next is looked at.
func TestOrderOfChecks(t *testing.T) {
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	t.Run("no SendRaw, then key", func(t *testing.T) {
		events := new(eventLog)
		transport := openTransport(t, new(handedOn).single(), idemmail.Options{
			Store: notToBeCalled{t}, RequireKey: true, Observe: events.observe,
			RawKey: func(*idemmail.RawMessage) string { t.Error("asked for the key"); return "\n" },
		})
		for _, key := range []string{"", "k", "\n"} {
			r, err := transport.SendRaw(cancelled, &idemmail.RawMessage{IdempotencyKey: key})
			require.Nil(t, r)
			require.ErrorIs(t, err, errors.ErrUnsupported)
			var e *idemmail.SendError
			require.False(t, errors.As(err, &e), "a plain error")
		}
		require.Empty(t, events.events)

		// A decorator beneath has SendRaw, but nothing to pass it on to.
		outer := openTransport(t, transport, idemmail.Options{Store: notToBeCalled{t}, Namespace: "outer"})
		r, err := outer.SendRaw(t.Context(), &idemmail.RawMessage{IdempotencyKey: "k"})
		require.Nil(t, r)
		require.ErrorIs(t, err, errors.ErrUnsupported)
	})
	t.Run("context, then fingerprint", func(t *testing.T) {
		transport := openTransport(t, new(handedOn).single(), idemmail.Options{
			Fingerprint: func(*idemmail.Message) string { t.Error("fingerprinted"); return "" },
		})
		_, err := transport.Send(cancelled, doorMessage("k", "a"))
		require.ErrorIs(t, err, idemmail.ErrNotBegun)
		_, err = transport.Send(t.Context(), doorMessage("\n", "a"))
		require.ErrorIs(t, err, idemmail.ErrInvalidKey)
	})
	t.Run("fingerprint, then reserve", func(t *testing.T) {
		transport := openTransport(t, new(handedOn).single(), idemmail.Options{
			Store:       notToBeCalled{t},
			Fingerprint: func(*idemmail.Message) string { panic("no fingerprint") },
		})
		require.PanicsWithValue(t, "no fingerprint", func() { _, _ = transport.Send(t.Context(), doorMessage("k", "a")) })
	})
}
