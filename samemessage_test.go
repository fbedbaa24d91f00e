package idemmail_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/textproto"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
)

// C13: a message that is built anew on each attempt, as libraries do it, is
// the same message.
func TestRebuiltMessageIsReplayed(t *testing.T) {
	build := func(attempt int) *idemmail.Message {
		m := doorMessage("k", "a")
		m.MessageID = fmt.Sprintf("%d@example.org", attempt)
		m.SendAt = time.Unix(4102444800, int64(attempt)).In(time.FixedZone("", attempt*3600))
		m.Metadata, m.Header = map[string]string{}, textproto.MIMEHeader{"Date": {fmt.Sprint(attempt)}}
		for i := range 20 {
			m.Metadata[fmt.Sprint("key", i)] = fmt.Sprint(i)
			m.Header[fmt.Sprint("X-", i)] = []string{fmt.Sprint(i)}
		}
		if attempt%2 == 0 {
			m.Header["x-0"] = m.Header["X-0"]
			delete(m.Header, "X-0")
			m.Tags, m.Attachments = []string{}, []idemmail.Attachment{}
		}
		return m
	}
	next := new(handedOn)
	transport := openTransport(t, next.single(), idemmail.Options{})
	r, err := transport.Send(t.Context(), build(0))
	requireFirst(t, r, err)
	for attempt := 1; attempt < 12; attempt++ {
		r, err := transport.Send(t.Context(), build(attempt))
		requireReplay(t, r, err)
		require.Equal(t, "0@example.org", r.MessageID, "that of the message which went")
	}
	require.Equal(t, 1, next.count())

	m := build(1)
	m.Text = "line\r\n"
	_, err = transport.Send(t.Context(), m)
	require.ErrorIs(t, err, idemmail.ErrKeyReused)
}

func TestFingerprintOption(t *testing.T) {
	open := func(t *testing.T, s *shelf, fingerprint func(*idemmail.Message) string) func(*idemmail.Message) error {
		transport := openTransport(t, new(handedOn).single(), idemmail.Options{Store: s.store, Fingerprint: fingerprint})
		return func(m *idemmail.Message) error {
			_, err := transport.Send(t.Context(), m)
			return err
		}
	}
	mail := func(subject, text string) *idemmail.Message {
		return &idemmail.Message{IdempotencyKey: "k", Subject: subject, Text: text}
	}
	bySubject := func(m *idemmail.Message) string { return m.Subject }

	t.Run("a reset mail with a fresh token is the same", func(t *testing.T) {
		send := open(t, newShelf(), bySubject)
		require.NoError(t, send(mail("Reset", "token 1")))
		require.NoError(t, send(mail("Reset", "token 2")))
		require.ErrorIs(t, send(mail("Welcome", "token 2")), idemmail.ErrKeyReused)
	})

	t.Run("is kept as c: and compared whole", func(t *testing.T) {
		for _, value := range []string{"", "a", "1:a", "c:", "größe\n"} {
			s := newShelf()
			send := open(t, s, bySubject)
			require.NoError(t, send(mail(value, "")))
			require.Equal(t, "c:"+value, s.entry(t, "k").Record.Fingerprint)
			for _, other := range []string{"b", "2:a", value + " "} {
				require.ErrorIs(t, send(mail(other, "")), idemmail.ErrKeyReused, "%q and %q", value, other)
			}
		}
	})

	t.Run("one that is not text is not taken for another", func(t *testing.T) {
		s := newShelf()
		send := open(t, s, bySubject)
		require.NoError(t, send(mail("\xff", "")))
		require.Equal(t, fmt.Sprintf("c:%x", sha256.Sum256([]byte("\xff"))), s.entry(t, "k").Record.Fingerprint)
		require.NoError(t, send(mail("\xff", "")))
		for _, other := range []string{"\xfe", "\ufffd", ""} {
			require.ErrorIs(t, send(mail(other, "")), idemmail.ErrKeyReused, "%q", other)
		}
	})

	// C45
	t.Run("may cover the bytes of attachments", func(t *testing.T) {
		invoice := func(content string) *idemmail.Message {
			m := mail("Invoice", "")
			m.Attachments = []idemmail.Attachment{{Filename: "invoice.pdf", Content: []byte(content)}}
			return m
		}
		send := open(t, newShelf(), nil)
		require.NoError(t, send(invoice("version 1")))
		require.NoError(t, send(invoice("version 2")), "a file of the same name and type")

		send = open(t, newShelf(), func(m *idemmail.Message) string {
			return fmt.Sprintf("%s %x", idemmail.Fingerprint(m), sha256.Sum256(m.Attachments[0].Content))
		})
		require.NoError(t, send(invoice("version 1")))
		require.NoError(t, send(invoice("version 1")))
		require.ErrorIs(t, send(invoice("version 2")), idemmail.ErrKeyReused)
	})

	t.Run("does not concern raw messages", func(t *testing.T) {
		s := newShelf()
		transport := openTransport(t, new(handedOn).raw(), idemmail.Options{Store: s.store, Fingerprint: bySubject})
		m := &idemmail.RawMessage{From: "a@example.org", IdempotencyKey: "k"}
		_, err := transport.SendRaw(t.Context(), m)
		require.NoError(t, err)
		require.Equal(t, idemmail.FingerprintRaw(m), s.entry(t, "k").Record.Fingerprint)
	})
}

// A rolling deploy, of a later version or of another Options.Fingerprint,
// refuses nothing: what one process has sent, or is sending, another takes for
// the same message.
func TestFingerprintOfAnotherVersionRefusesNothing(t *testing.T) {
	for _, fingerprint := range []string{"2:0123", "10:", "x", ""} {
		t.Run(fmt.Sprintf("%q", fingerprint), func(t *testing.T) {
			throughDoors(t, func(t *testing.T, d door) {
				open := func(r idemmail.Record) knock {
					r.Fingerprint = fingerprint
					return d.open(t, idemmail.Options{Store: held{newShelf().mem, func(string) *idemmail.Record { return &r }}}, notToBeSent(t))
				}
				r, err := open(idemmail.Record{State: idemmail.StateDone, Receipt: receiptOf(statusSent)})(t.Context(), "k", "a")
				requireReplay(t, r, err)
				r, err = open(idemmail.Record{State: idemmail.StatePending})(t.Context(), "k", "a")
				requireInFlight(t, r, err)
			})
		})
	}
}

// Nor does it in a batch: all messages under the key are judged against the
// record, each with a receipt of its own.
func TestFingerprintOfAnotherVersionRefusesNothingInABatch(t *testing.T) {
	bothWays(t, func(t *testing.T, b *batcher, open func(idemmail.Options) *idemmail.IdempotencyTransport, s *shelf) {
		kept := idemmail.Record{State: idemmail.StateDone, Fingerprint: "2:0123", Receipt: receiptOf(statusSent)}
		require.NoError(t, s.mem.Complete(t.Context(), doorNamespace+":k", "", kept, time.Hour))
		results := open(idemmail.Options{}).SendMany(t.Context(), batchOf("k:a", "k:b", "k:a"))
		require.Empty(t, b.went)
		for i, r := range results {
			requireReplay(t, r.Receipt, r.Err)
			for _, other := range results[:i] {
				require.NotSame(t, other.Receipt, r.Receipt)
			}
		}
	})
}

// One key for a message and for a raw one is one key for two messages.
func TestRawMessageUnderTheKeyOfAnother(t *testing.T) {
	s := newShelf()
	_, err := openTransport(t, new(handedOn).single(), idemmail.Options{Store: s.store}).Send(t.Context(), doorMessage("k", "a"))
	require.NoError(t, err)
	raw := openTransport(t, rawTransport{send: func(context.Context, *idemmail.RawMessage) (*idemmail.Receipt, error) {
		t.Error("sent")
		return nil, nil
	}}, idemmail.Options{Store: s.store})
	_, err = raw.SendRaw(t.Context(), &idemmail.RawMessage{IdempotencyKey: "k"})
	require.ErrorIs(t, err, idemmail.ErrKeyReused)
}
