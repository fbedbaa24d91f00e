package idemmail_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
)

// In the store a key is its namespace, a colon, and the key.
func TestKeyInTheStore(t *testing.T) {
	plain := new(handedOn).single()
	for name, test := range map[string]struct {
		next      idemmail.Transport
		namespace string
		want      string // namespace
		id        string // of the decorator and in receipts
	}{
		"Options.Namespace":                        {plain, "shop", "shop", "shop"},
		"Options.Namespace before the ID":          {namedTransport{plain, "smtp"}, "shop", "shop", "smtp"},
		"Options.Namespace, whatever the ID":       {namedTransport{plain, "smtp:25"}, "shop", "shop", "smtp:25"},
		"the ID":                                   {namedTransport{plain, "smtp"}, "", "smtp", "smtp"},
		"the ID through Unwrap":                    {retrying{retrying{namedTransport{plain, "smtp"}}}, "", "smtp", "smtp"},
		"the outermost ID":                         {unwrapping{namedTransport{plain, "outer"}, namedTransport{plain, "inner"}}, "", "outer", "outer"},
		"an empty ID is none":                      {unwrapping{namedTransport{plain, ""}, namedTransport{plain, "inner"}}, "", "inner", "inner"},
		"mail":                                     {plain, "", "mail", "mail"},
		"mail, beneath a retry":                    {retrying{plain}, "", "mail", "mail"},
		"an ID of 64 bytes":                        {namedTransport{plain, strings.Repeat("é", 32)}, "", strings.Repeat("é", 32), strings.Repeat("é", 32)},
		"a decorator's ID is the one it wraps":     {openTransport(t, namedTransport{plain, "smtp"}, idemmail.Options{Namespace: "inner"}), "", "smtp", "smtp"},
		"a decorator's namespace is not its ID":    {openTransport(t, plain, idemmail.Options{Namespace: "inner"}), "", "mail", "mail"},
		"a namespace with spaces and odd symbols*": {plain, " {a}*? ", " {a}*? ", " {a}*? "},
	} {
		t.Run(name, func(t *testing.T) {
			mem, _ := newMemStore(0)
			transport, err := idemmail.New(test.next, idemmail.Options{Store: mem, Namespace: test.namespace, Logger: quietLogger})
			require.NoError(t, err)
			require.Equal(t, test.id, transport.ID())
			r, err := transport.Send(t.Context(), doorMessage("order/1042", "a"))
			require.NoError(t, err)
			require.Equal(t, 1, mem.Len())
			require.NotNil(t, lookup(t, mem, test.want+":order/1042"))
			if _, nested := test.next.(*idemmail.IdempotencyTransport); !nested {
				require.Equal(t, test.id, r.Transport)
			}
		})
	}
}

func TestUnwrap(t *testing.T) {
	next := &retrying{new(handedOn).single()}
	require.Same(t, next, openTransport(t, next, idemmail.Options{}).Unwrap())
}

// unwrapping is a decorator that has a name of its own.
type unwrapping struct {
	namedTransport
	inner idemmail.Transport
}

func (u unwrapping) Unwrap() idemmail.Transport { return u.inner }

// An ID that cannot be a namespace is New's to say, with what to do.
func TestIDThatCannotBeTheNamespace(t *testing.T) {
	for _, id := range []string{"smtp:25", strings.Repeat("a", 65), "a\nb", "\xff", "a\u0085"} {
		_, err := idemmail.New(retrying{namedTransport{new(handedOn).single(), id}}, idemmail.Options{})
		require.ErrorContains(t, err, "Options.Namespace")
		require.ErrorContains(t, err, "ID")
	}
}

// C11: no two pairs of namespace and key meet.
func TestNamespacesKeepKeysApart(t *testing.T) {
	var sends atomic.Int64
	mem, _ := newMemStore(0)
	send := func(namespace, key string) {
		r, err := openSend(t, idemmail.Options{Store: mem, Namespace: namespace}, counted(&sends, answers(nil, nil)))(t.Context(), key, "a")
		requireFirst(t, r, err)
	}
	pairs := [][2]string{{"a", "b:c"}, {"a", "b"}, {"b", "c"}, {"ab", "c"}, {"a", ":b:c"}, {"A", "b"}, {"shop", "mail:k"}, {"mail", "k"}, {"a ", "b"}, {"a", " b"}}
	for i, pair := range pairs {
		send(pair[0], pair[1])
		require.EqualValues(t, i+1, sends.Load())
	}
	_, err := idemmail.New(new(handedOn).single(), idemmail.Options{Namespace: "a:b"})
	require.Error(t, err, "it would meet the keys of a")
}

// Two transports share a store, and nothing of one leaks into the other.
func TestOneStoreWithDifferentOptions(t *testing.T) {
	s := newShelf()
	var mine, others atomic.Int64
	strict := openSend(t, idemmail.Options{Store: s.store, Namespace: "strict", TTL: time.Hour, RejectDuplicates: true, AtMostOnce: true}, counted(&mine, answers(nil, nil)))
	lax := openSend(t, idemmail.Options{Store: s.store, Namespace: "lax"}, counted(&others, answers(nil, nil)))
	for range 2 {
		_, _ = strict(t.Context(), "k", "a")
		_, _ = lax(t.Context(), "k", "b")
	}
	_, err := strict(t.Context(), "k", "a")
	require.ErrorIs(t, err, idemmail.ErrDuplicate)
	r, err := lax(t.Context(), "k", "b")
	requireReplay(t, r, err)
	require.EqualValues(t, 1, mine.Load())
	require.EqualValues(t, 1, others.Load())

	s.clock.Advance(time.Hour) // the end of the one's TTL
	r, err = lax(t.Context(), "k", "b")
	requireReplay(t, r, err)
	r, err = strict(t.Context(), "k", "a")
	requireFirst(t, r, err)
}

// The message handed on carries the key under which it goes.
func TestEffectiveKey(t *testing.T) {
	derived := idemmail.Options{
		Key:    func(m *idemmail.Message) string { return "derived/" + m.Subject },
		RawKey: func(m *idemmail.RawMessage) string { return "derived/" + m.From },
	}
	for _, test := range []struct {
		name    string
		options idemmail.Options
		own     string
		want    string
	}{
		{"its own", idemmail.Options{}, "k", "k"},
		{"derived", derived, "", "derived/a"},
		{"derived, in place of its own", derived, "k", "derived/a"},
		{"derived, and the same", derived, "derived/a", "derived/a"},
	} {
		t.Run(test.name, func(t *testing.T) {
			next := new(handedOn)
			for name, transport := range map[string]idemmail.Transport{"in turn": next.single(), "together": next.together()} {
				t.Run(name, func(t *testing.T) {
					m := &idemmail.Message{Subject: "a", Text: "body", IdempotencyKey: test.own}
					mem, _ := newMemStore(0)
					options := test.options
					options.Store = mem
					guarded := openTransport(t, transport, options)
					want := *m
					want.IdempotencyKey = test.want
					_, err := guarded.Send(t.Context(), m)
					require.NoError(t, err)
					require.Equal(t, &want, next.message())
					require.Equal(t, test.own, m.IdempotencyKey, "the caller's message was changed")
					require.NotNil(t, lookup(t, mem, doorNamespace+":"+test.want))

					m.Subject, want.Subject = "a", "a"
					require.NoError(t, mem.Forget(t.Context(), *lookup(t, mem, doorNamespace+":"+test.want)))
					results := guarded.SendMany(t.Context(), []*idemmail.Message{m})
					require.NoError(t, results[0].Err)
					require.Equal(t, &want, next.message())
					require.Equal(t, test.own, m.IdempotencyKey, "the caller's message was changed")
				})
			}
			t.Run("raw", func(t *testing.T) {
				m := &idemmail.RawMessage{From: "a", Data: []byte("raw"), IdempotencyKey: test.own}
				want := *m
				want.IdempotencyKey = test.want
				_, err := openTransport(t, next.raw(), test.options).SendRaw(t.Context(), m)
				require.NoError(t, err)
				require.Equal(t, &want, next.rawMessage())
				require.Equal(t, test.own, m.IdempotencyKey, "the caller's message was changed")
			})
		})
	}
}

// Options.Key leaves a message out by an empty key.
func TestDerivedKeyLeavesOut(t *testing.T) {
	next := new(handedOn)
	options := idemmail.Options{
		Store:  notToBeCalled{t},
		Key:    func(*idemmail.Message) string { return "" },
		RawKey: func(*idemmail.RawMessage) string { return "" },
	}
	m := doorMessage("k", "a")
	for range 2 {
		_, err := openTransport(t, next.single(), options).Send(t.Context(), m)
		require.NoError(t, err)
		require.Same(t, m, next.message())
		openTransport(t, next.together(), options).SendMany(t.Context(), []*idemmail.Message{m})
		require.Same(t, m, next.message())
		raw := &idemmail.RawMessage{IdempotencyKey: "k"}
		_, err = openTransport(t, next.raw(), options).SendRaw(t.Context(), raw)
		require.NoError(t, err)
		require.Same(t, raw, next.rawMessage())
	}
	require.Equal(t, 6, next.count())
}

// Options.Key does not concern raw messages, nor RawKey others.
func TestDerivedKeysAreApart(t *testing.T) {
	next := new(handedOn)
	options := idemmail.Options{Key: func(*idemmail.Message) string { return "key" }}
	_, err := openTransport(t, next.raw(), options).SendRaw(t.Context(), &idemmail.RawMessage{IdempotencyKey: "own"})
	require.NoError(t, err)
	require.Equal(t, "own", next.rawMessage().IdempotencyKey)

	options = idemmail.Options{RawKey: func(*idemmail.RawMessage) string { return "raw key" }}
	_, err = openTransport(t, next.single(), options).Send(t.Context(), doorMessage("own", "a"))
	require.NoError(t, err)
	require.Equal(t, "own", next.message().IdempotencyKey)
}

// The transport's own word on the key is the SendError's, too.
func TestDerivedKeyInTheError(t *testing.T) {
	transport := openTransport(t, idemmail.TransportFunc(func(context.Context, *idemmail.Message) (*idemmail.Receipt, error) {
		return nil, errNotTaken
	}), idemmail.Options{Key: func(*idemmail.Message) string { return "derived" }})
	r, err := transport.Send(t.Context(), doorMessage("own", "a"))
	requireSendError(t, "derived", r, err)
}

func TestProviderKey(t *testing.T) {
	require.Equal(t, "914568a4cea2ca774dadc873262005979c23a9a86906be77587d3a3de1a16141", idemmail.ProviderKey("shop", "order/1042/confirmation"))
	require.Equal(t, "c3a2f64de67cca05f3603ca08ee09a92cc9610ecb74a7cd16eda68fb97eece4c", idemmail.ProviderKey("shop", "größe/1"))
	seen := make(map[string]bool)
	for _, pair := range [][2]string{{"a", "b:c"}, {"a", "b"}, {"ab", "c"}, {"a", "bc"}, {"", "abc"}, {"shop", ""}, {"shop", strings.Repeat("k", 512)}} {
		key := idemmail.ProviderKey(pair[0], pair[1])
		require.Regexp(t, "^[0-9a-f]{64}$", key)
		require.False(t, seen[key], pair)
		seen[key] = true
	}
}
