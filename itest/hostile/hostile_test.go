// Package hostile feeds every store, through the engine, what nobody should
// send: keys and namespaces full of other languages' syntax, ten megabytes of
// everything, and what is no text.
package hostile

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/mail"
	"net/textproto"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/itest/internal/backend"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// odd are texts that are allowed in keys and, where they have no colon, in
// namespaces, and that mean something to somebody.
var odd = []string{
	"%", "_", "a%", "a_", "*", "a*", "?", "[a-z]", "a\\", "\\u0000", "^a", "a$", ".", "..", "a.b", "/", "#",
	"{a}", "{", "}", "$where", "$gt", "$", "a.$.b", `{"$ne":null}`, `"`, "'", "`", `'; DROP TABLE idemmail; --`, "--", "/*", ";",
	"]] os.exit() --[[", "KEYS[1]", "ARGV[1]", "%s", "%d", "%!d", "\u2028", "\uFEFF", "\uFFFD", "\u202e", "é", "e\u0301", "É", "ß", "SS", "ss",
	"a", "A", "a ", " a", " ", "null", "true", "0", "-1", "1e9", "NaN", "<a>", "&amp;", "a\u00a0b", "日本", "🙂", "=cmd|x",
}

// No value of one namespace can be reached from another, nor that of one key
// from another: each is sent once, and each is listed and looked up as it is.
func TestNothingLeaksFromKeyToKey(t *testing.T) {
	backend.Each(t, func(t *testing.T, s *backend.Server) {
		store := backend.Open(t, s.URL)
		ctx := context.Background()
		unique := strings.ToLower(rand.Text()[:8])
		keys := append([]string{"a:b", "b:a", ":", "::"}, odd...)
		guard := func(namespace string) *idemmail.Guard {
			g, err := idemmail.NewGuard(idemmail.Options{Namespace: namespace, Store: store, Lease: time.Hour, Logger: quiet})
			require.NoError(t, err, "%q", namespace)
			return g
		}
		do := func(namespace, key string) (*idemmail.Receipt, error) {
			return guard(namespace).Do(ctx, key, "", func(context.Context) (*idemmail.Receipt, error) {
				return &idemmail.Receipt{Status: idemmail.StatusUnknown, ProviderID: namespace + "|" + key}, nil
			})
		}
		namespaces := []string{unique}
		for _, n := range odd {
			if !strings.Contains(n, ":") {
				namespaces = append(namespaces, n+unique)
			}
		}
		// Every key in one namespace, and one key in every namespace.
		for _, key := range keys {
			r, err := do(unique, key)
			require.ErrorIs(t, err, idemmail.ErrDeliveryUnknown, "%q", key)
			require.False(t, r.Replayed, "%q met another key", key)
		}
		for _, namespace := range namespaces[1:] {
			r, err := do(namespace, "a")
			require.ErrorIs(t, err, idemmail.ErrDeliveryUnknown, "%q", namespace)
			require.False(t, r.Replayed, "%q met another namespace", namespace)
		}
		for _, key := range keys {
			r, err := do(unique, key)
			require.ErrorIs(t, err, idemmail.ErrDeliveryUnknown, "%q", key)
			require.True(t, r.Replayed)
			require.Equal(t, unique+"|"+key, r.ProviderID)
			e, err := guard(unique).Lookup(ctx, key)
			require.NoError(t, err)
			require.Equal(t, unique+"|"+key, e.Record.Receipt.ProviderID)
		}
		for _, namespace := range namespaces {
			var want, listed []string
			if want = []string{"a"}; namespace == unique {
				want = keys
			}
			for e, err := range guard(namespace).Unsettled(ctx, 0) {
				require.NoError(t, err)
				listed = append(listed, e.Key)
			}
			require.ElementsMatch(t, want, listed, "%q", namespace)
		}
		for _, namespace := range namespaces[1:] {
			e, err := guard(namespace).Lookup(ctx, "a")
			require.NoError(t, err)
			require.NoError(t, guard(namespace).Forget(ctx, *e))
		}
		e, err := guard(unique).Lookup(ctx, "a")
		require.NoError(t, err)
		require.NotNil(t, e, "freed from another namespace")
	})
}

var quiet = slog.New(slog.DiscardHandler)

// What is no key or namespace is refused before the store hears of it.
func TestBadKeysAndNamespaces(t *testing.T) {
	for _, bad := range []string{"\x00", "a\x00b", "\r\n", "a\nb", "\t", "\x7f", "\u0085", "\xff", "a\xc3", "\xed\xa0\x80", strings.Repeat("k", 513), strings.Repeat("k", 10<<20)} {
		g, err := idemmail.NewGuard(idemmail.Options{Namespace: "hostile", Logger: quiet})
		require.NoError(t, err)
		_, err = g.Do(t.Context(), bad, "", func(context.Context) (*idemmail.Receipt, error) { panic("sent") })
		require.ErrorIs(t, err, idemmail.ErrInvalidKey)
		_, err = g.Lookup(t.Context(), bad)
		require.ErrorIs(t, err, idemmail.ErrInvalidKey)
		_, err = idemmail.NewGuard(idemmail.Options{Namespace: bad})
		require.Error(t, err)
	}
}

// allowance is how much more than its input a call may allocate, in all: what
// is live at any time is less.
const allowance = 64 << 20

// Ten megabytes of everything cost no more memory than themselves and 64 MiB,
// and the receipt comes back, and is replayed, cut to what is kept.
func TestTenMegabytes(t *testing.T) {
	const size = 10 << 20
	backend.Each(t, func(t *testing.T, s *backend.Server) {
		huge := strings.Repeat("h\xff\x00'\"$", size/6)
		var log bytes.Buffer
		next := idemmail.TransportFunc(func(context.Context, *idemmail.Message) (*idemmail.Receipt, error) {
			return &idemmail.Receipt{Status: idemmail.StatusUnknown, Response: huge, Detail: huge,
				Accepted: []string{"a\xff\x00"}, Rejected: []idemmail.Rejection{{Reason: huge}}}, errors.New(huge)
		})
		transport, err := idemmail.New(next, idemmail.Options{Namespace: "hostile", Store: backend.Open(t, s.URL), Logger: slog.New(slog.NewTextHandler(&log, nil))})
		require.NoError(t, err)
		m := &idemmail.Message{
			From: mail.Address{Name: huge, Address: huge}, Subject: huge, Text: huge, HTML: huge,
			Header: textproto.MIMEHeader{"X-Huge": {huge}}, Metadata: map[string]string{huge: huge}, Tags: []string{huge},
			Attachments: []idemmail.Attachment{{Filename: huge, Content: []byte("c")}}, IdempotencyKey: rand.Text(),
		}
		for i := range 2 {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			r, err := transport.Send(t.Context(), m)
			runtime.ReadMemStats(&after)
			require.ErrorIs(t, err, idemmail.ErrDeliveryUnknown)
			require.Equal(t, i > 0, r.Replayed)
			require.LessOrEqual(t, len(r.Response)+len(r.Detail)+len(r.Rejected[0].Reason), 3<<10)
			require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(allowance), "beyond the input")
		}
		require.Less(t, log.Len(), 64<<10)
		require.NotContains(t, log.String(), "hhh")
	})
}

// What a store says of a failure has nothing of the receipt in it: store errors
// are logged.
func TestStoreErrorsShowNoReceipt(t *testing.T) {
	backend.Each(t, func(t *testing.T, s *backend.Server) {
		store := backend.Open(t, s.URL)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for i, text := range []string{"secret", "secret\x00", "secret\xff"} {
			key := fmt.Sprintf("hostile:%s-%d", rand.Text(), i)
			r := &idemmail.Receipt{Status: idemmail.StatusSent, Response: text, Accepted: []string{text}, Rejected: []idemmail.Rejection{{Address: text, Reason: text}}}
			rec := idemmail.Record{State: idemmail.StateDone, Fingerprint: "1:f", Receipt: r}
			for _, err := range []error{
				store.Complete(t.Context(), key, "token", rec, time.Minute),
				store.Complete(t.Context(), key, "other", rec, time.Minute),
				store.Complete(ctx, key, "token", rec, time.Minute),
				store.Complete(t.Context(), key, "token", rec, 0),
				store.Resolve(t.Context(), idemmail.Entry{Key: key, Token: "x", Record: rec}, r, time.Minute),
				store.Release(t.Context(), key, "token"),
			} {
				if err != nil {
					require.NotContains(t, err.Error(), "secret")
				}
			}
		}
	})
}
