package idemmail_test

import (
	"context"
	"errors"
	"net/textproto"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
)

// A golden value: the same on every attempt in every process, so it may never
// change.
const stableID = "sfcwrjgoulfhotnnzbzsmiafs6ochkninedl452ypu5d3ynbmfaq@mail.example.org"

var stableOptions = idemmail.Options{Namespace: "shop", MessageIDDomain: "mail.example.org"}

func TestStableMessageID(t *testing.T) {
	const key = "order/1042/confirmation"
	next := new(handedOn)
	for name, send := range map[string]func(*testing.T, idemmail.Options, *idemmail.Message) (*idemmail.Receipt, error){
		"Send": func(t *testing.T, o idemmail.Options, m *idemmail.Message) (*idemmail.Receipt, error) {
			return openTransport(t, next.single(), o).Send(t.Context(), m)
		},
		"SendMany in turn": func(t *testing.T, o idemmail.Options, m *idemmail.Message) (*idemmail.Receipt, error) {
			r := openTransport(t, next.single(), o).SendMany(t.Context(), []*idemmail.Message{m})
			return r[0].Receipt, r[0].Err
		},
		"SendMany together": func(t *testing.T, o idemmail.Options, m *idemmail.Message) (*idemmail.Receipt, error) {
			r := openTransport(t, next.together(), o).SendMany(t.Context(), []*idemmail.Message{m})
			return r[0].Receipt, r[0].Err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Run("a keyed message without one", func(t *testing.T) {
				for _, header := range []textproto.MIMEHeader{nil, {"X-Order": {"1042"}}, {"Message-Id": {}}, {"Message-Id": {"", " <> "}}} {
					m := &idemmail.Message{Header: header, IdempotencyKey: key}
					r, err := send(t, stableOptions, m)
					require.NoError(t, err)
					require.Equal(t, stableID, next.message().MessageID)
					require.Equal(t, stableID, r.MessageID)
					require.NotSame(t, m, next.message())
					require.Empty(t, m.MessageID, "the caller's message was changed")
				}
			})

			t.Run("under a derived key", func(t *testing.T) {
				options := stableOptions
				options.Key = func(*idemmail.Message) string { return key }
				_, err := send(t, options, new(idemmail.Message))
				require.NoError(t, err)
				require.Equal(t, stableID, next.message().MessageID)
				require.Equal(t, key, next.message().IdempotencyKey)
			})

			t.Run("sent without a reservation", func(t *testing.T) {
				options := stableOptions
				options.FailOpen, options.Store = true, downStore{}
				_, err := send(t, options, doorMessage(key, "a"))
				require.NoError(t, err)
				require.Equal(t, stableID, next.message().MessageID)
			})

			for name, m := range map[string]*idemmail.Message{
				"its own":                       {MessageID: "own@example.org", IdempotencyKey: key},
				"its own, in the header":        {Header: textproto.MIMEHeader{"Message-Id": {"<own@example.org>"}}, IdempotencyKey: key},
				"its own, in an odd header":     {Header: textproto.MIMEHeader{"MESSAGE-ID": {"<own@example.org>"}}, IdempotencyKey: key},
				"its own, of the header's last": {Header: textproto.MIMEHeader{"message-id": {"", "own@example.org"}}, IdempotencyKey: key},
			} {
				t.Run(name, func(t *testing.T) {
					r, err := send(t, stableOptions, m)
					require.NoError(t, err)
					require.Same(t, m, next.message())
					require.Equal(t, "own@example.org", r.MessageID)
				})
			}

			t.Run("a message without a key", func(t *testing.T) {
				m := new(idemmail.Message)
				_, err := send(t, stableOptions, m)
				require.NoError(t, err)
				require.Same(t, m, next.message())
			})

			t.Run("without MessageIDDomain", func(t *testing.T) {
				m := doorMessage(key, "a")
				r, err := send(t, idemmail.Options{}, m)
				require.NoError(t, err)
				require.Empty(t, next.message().MessageID)
				require.Empty(t, r.MessageID)
			})
		})
	}

	// One key, one Message-ID: not even of a message that is built anew.
	t.Run("differs by key and namespace", func(t *testing.T) {
		seen := map[string]bool{stableID: true}
		for _, pair := range [][2]string{{"shop", "order/1043/confirmation"}, {"shops", key}, {"shop", "order/1042"}} {
			options := stableOptions
			options.Namespace = pair[0]
			_, err := openTransport(t, next.single(), options).Send(t.Context(), doorMessage(pair[1], "a"))
			require.NoError(t, err)
			id := next.message().MessageID
			require.Regexp(t, `^[a-z2-7]{52}@mail\.example\.org$`, id)
			require.False(t, seen[id])
			seen[id] = true
		}
	})

	t.Run("the transport's word on it counts", func(t *testing.T) {
		transport := openTransport(t, idemmail.TransportFunc(func(context.Context, *idemmail.Message) (*idemmail.Receipt, error) {
			return &idemmail.Receipt{Status: statusSent, MessageID: "replaced@amazonses.com"}, nil
		}), stableOptions)
		r, err := transport.Send(t.Context(), doorMessage(key, "a"))
		require.NoError(t, err)
		require.Equal(t, "replaced@amazonses.com", r.MessageID)
	})

	t.Run("a failed attempt and the next have the same", func(t *testing.T) {
		var ids []string
		transport := openTransport(t, idemmail.TransportFunc(func(_ context.Context, m *idemmail.Message) (*idemmail.Receipt, error) {
			ids = append(ids, m.MessageID)
			return nil, errNotTaken
		}), stableOptions)
		for range 2 {
			_, err := transport.Send(t.Context(), doorMessage(key, "a"))
			require.ErrorIs(t, err, errNotTaken)
		}
		require.Equal(t, []string{stableID, stableID}, ids)
	})

	t.Run("raw messages are not touched", func(t *testing.T) {
		m := &idemmail.RawMessage{Data: []byte("Subject: x\r\n\r\n"), IdempotencyKey: key}
		r, err := openTransport(t, next.raw(), stableOptions).SendRaw(t.Context(), m)
		require.NoError(t, err)
		require.Equal(t, m, next.rawMessage())
		require.Empty(t, r.MessageID)
	})
}

// downStore is a store that cannot be reached.
type downStore struct{ idemmail.Store }

func (downStore) Reserve(context.Context, string, string, time.Duration) (string, *idemmail.Record, error) {
	return "", nil, errors.New("connection refused")
}
