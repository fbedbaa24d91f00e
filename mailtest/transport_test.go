package mailtest_test

import (
	"context"
	"errors"
	"go/build"
	"net/mail"
	"net/textproto"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/mailtest"
	"github.com/stretchr/testify/require"
)

var errTest = errors.New("test")

func message(key string) *idemmail.Message {
	return &idemmail.Message{Subject: "subject", IdempotencyKey: key, MessageID: key + "@mail.example"}
}

func TestZeroValueSends(t *testing.T) {
	var mails mailtest.Transport
	for number, id := range []string{"1", "2"} {
		r, err := mails.Send(t.Context(), message("a"))
		require.NoError(t, err)
		require.Equal(t, &idemmail.Receipt{Status: idemmail.StatusSent, Transport: "mailtest", MessageID: "a@mail.example", ProviderID: id}, r)
		require.Equal(t, number+1, mails.Sends())
	}
	r, err := mails.SendRaw(t.Context(), &idemmail.RawMessage{IdempotencyKey: "b"})
	require.NoError(t, err)
	require.Equal(t, &idemmail.Receipt{Status: idemmail.StatusSent, Transport: "mailtest", ProviderID: "3"}, r)
	require.Equal(t, 2, mails.SendsOf("a"))
	require.Equal(t, 1, mails.SendsOf("b"))
	require.Zero(t, mails.SendsOf("c"))
	require.Equal(t, "mailtest", mails.ID())
	require.Equal(t, "smtp", (&mailtest.Transport{Name: "smtp"}).ID())
}

func TestOutcomes(t *testing.T) {
	receipt := &idemmail.Receipt{Status: idemmail.StatusSent, Accepted: []string{"a"}, Rejected: []idemmail.Rejection{{Address: "b"}}}
	for _, row := range []struct {
		name     string
		outcome  mailtest.Outcome
		status   idemmail.Status
		err      error
		delivery idemmail.Delivery
	}{
		{"zero", mailtest.Outcome{}, idemmail.StatusSent, nil, idemmail.DeliveryUnspecified},
		{"sent", mailtest.Sent(), idemmail.StatusSent, nil, idemmail.DeliveryUnspecified},
		{"failed", mailtest.Failed(errTest), idemmail.StatusFailed, errTest, idemmail.NotDelivered},
		{"failed, nil error", mailtest.Failed(nil), idemmail.StatusFailed, mailtest.ErrRefused, idemmail.NotDelivered},
		{"failed, with an error that says otherwise", mailtest.Failed(context.DeadlineExceeded), idemmail.StatusFailed, context.DeadlineExceeded, idemmail.NotDelivered},
		{"unknown", mailtest.Unknown(errTest), idemmail.StatusUnknown, errTest, idemmail.DeliveryUnknown},
		{"unknown, nil error", mailtest.Unknown(nil), idemmail.StatusUnknown, mailtest.ErrLost, idemmail.DeliveryUnknown},
		{"answer", mailtest.Answer(receipt, errTest), idemmail.StatusSent, errTest, idemmail.DeliveryUnspecified},
	} {
		t.Run(row.name, func(t *testing.T) {
			var mails mailtest.Transport
			mails.Next(row.outcome, row.outcome)
			for range 2 {
				r, err := mails.Send(t.Context(), message("a"))
				require.Equal(t, row.status, r.Status)
				require.ErrorIs(t, err, row.err)
				if err != nil {
					require.Equal(t, row.delivery, idemmail.ClassifyError(err))
				}
				*r = idemmail.Receipt{Status: "changed"} // it is the caller's
			}
			r, err := mails.Send(t.Context(), message("a"))
			require.NoError(t, err, "after the script: sent")
			require.Equal(t, idemmail.StatusSent, r.Status)
		})
	}
	var mails mailtest.Transport
	mails.Next(mailtest.Answer(receipt, nil), mailtest.Answer(nil, nil))
	receipt.Accepted[0] = "changed"
	r, err := mails.Send(t.Context(), message("a"))
	require.NoError(t, err)
	require.Equal(t, []string{"a"}, r.Accepted)
	r, err = mails.Send(t.Context(), message("a"))
	require.NoError(t, err)
	require.Nil(t, r)
}

func TestHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mails mailtest.Transport
		mails.Next(mailtest.Hang())
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		start := time.Now()
		r, err := mails.Send(ctx, message("a"))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Nil(t, r)
		require.Equal(t, time.Hour, time.Since(start))
		require.Equal(t, 1, mails.Sends(), "it had begun")
	})
}

func TestAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mails mailtest.Transport
		first, second := make(chan struct{}), make(chan struct{})
		mails.Next(mailtest.Failed(errTest).After(first).After(second))
		var err error
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, err = mails.Send(t.Context(), message("a"))
		}()
		synctest.Wait()
		require.Equal(t, 1, mails.SendsOf("a"))
		close(second)
		synctest.Wait()
		select {
		case <-ended:
			require.Fail(t, "it waits for both")
		default:
		}
		close(first)
		<-ended
		require.ErrorIs(t, err, errTest)

		mails.Next(mailtest.Sent().After(make(chan struct{})))
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = mails.Send(ctx, message("a"))
		require.ErrorIs(t, err, context.Canceled)
	})
}

func TestPanic(t *testing.T) {
	var mails mailtest.BatchTransport
	mails.Next(mailtest.Panic(errTest))
	require.PanicsWithValue(t, errTest, func() { _, _ = mails.Send(t.Context(), message("a")) })
	require.Equal(t, 1, mails.Sends())

	mails.Next(mailtest.Sent(), mailtest.Panic("batch"))
	require.PanicsWithValue(t, "batch", func() {
		mails.SendMany(t.Context(), []*idemmail.Message{message("b"), message("c"), message("d")})
	})
	require.Equal(t, []int{1, 1, 0}, []int{mails.SendsOf("b"), mails.SendsOf("c"), mails.SendsOf("d")})
	require.Len(t, mails.Batches()[0], 3)
}

func TestScriptOrder(t *testing.T) {
	mails := mailtest.Transport{Otherwise: mailtest.Unknown(nil)}
	mails.Next(mailtest.Sent(), mailtest.Sent())
	mails.NextFor("a", mailtest.Failed(nil))
	mails.NextFor("a", mailtest.Answer(nil, errTest))
	var got []error
	for _, key := range []string{"b", "a", "a", "a", "b", "a"} {
		_, err := mails.Send(t.Context(), message(key))
		got = append(got, err)
	}
	require.NoError(t, got[0])
	require.ErrorIs(t, got[1], mailtest.ErrRefused)
	require.ErrorIs(t, got[2], errTest)
	require.NoError(t, got[3], "the key has none left: the next of all")
	require.ErrorIs(t, got[4], mailtest.ErrLost, "none left at all")
	require.ErrorIs(t, got[5], mailtest.ErrLost)
}

// What is kept is what was given, and shares nothing with it.
func TestMessagesAreCopies(t *testing.T) {
	given := func() *idemmail.Message {
		yes := true
		return &idemmail.Message{
			From:    mail.Address{Address: "from@mail.example"},
			ReplyTo: []mail.Address{{Address: "reply@mail.example"}},
			To:      []mail.Address{{Address: "to@mail.example"}}, Cc: []mail.Address{{Address: "cc@mail.example"}}, Bcc: []mail.Address{{Address: "bcc@mail.example"}},
			Subject: "subject", Text: "text", HTML: "html",
			Header:      textproto.MIMEHeader{"X-A": {"1", "2"}},
			Attachments: []idemmail.Attachment{{Filename: "a.txt", Content: []byte("content")}},
			MessageID:   "id", InReplyTo: "before", References: []string{"before"},
			SendAt:   time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
			Tracking: idemmail.Tracking{Opens: &yes}, Tags: []string{"tag"}, Metadata: map[string]string{"k": "v"},
			IdempotencyKey: "key",
		}
	}
	spoil := func(m *idemmail.Message) {
		m.ReplyTo[0].Address, m.To[0].Address, m.Cc[0].Address, m.Bcc[0].Address = "x", "x", "x", "x"
		m.Header["X-A"][0] = "x"
		m.Header["X-B"] = []string{"x"}
		m.Attachments[0].Content[0] = 'x'
		m.Attachments[0].Filename = "x"
		m.References[0], m.Tags[0], m.Metadata["k"] = "x", "x", "x"
		*m.Tracking.Opens = false
		m.Subject = "x"
	}

	var mails mailtest.BatchTransport
	m := given()
	_, err := mails.Send(t.Context(), m)
	require.NoError(t, err)
	require.Equal(t, given(), m, "the message that was given is left as it is")
	spoil(m)
	require.Equal(t, given(), mails.Messages()[0])
	spoil(mails.Messages()[0])
	require.Equal(t, given(), mails.Messages()[0], "each answer is a copy")

	batch := []*idemmail.Message{given(), given()}
	mails.SendMany(t.Context(), batch)
	spoil(batch[0])
	batch[1] = nil
	require.Equal(t, [][]*idemmail.Message{{given(), given()}}, mails.Batches())
	spoil(mails.Batches()[0][0])
	require.Equal(t, [][]*idemmail.Message{{given(), given()}}, mails.Batches())
	require.Len(t, mails.Messages(), 3)

	raw := &idemmail.RawMessage{From: "from", To: []string{"to"}, Data: []byte("data"), IdempotencyKey: "raw"}
	_, err = mails.SendRaw(t.Context(), raw)
	require.NoError(t, err)
	raw.To[0], raw.Data[0] = "x", 'x'
	mails.RawMessages()[0].Data[1] = 'x'
	require.Equal(t, []*idemmail.RawMessage{{From: "from", To: []string{"to"}, Data: []byte("data"), IdempotencyKey: "raw"}}, mails.RawMessages())

	_, err = mails.Send(t.Context(), &idemmail.Message{})
	require.NoError(t, err)
	require.Equal(t, &idemmail.Message{}, mails.Messages()[3], "nil stays nil")
	_, err = mails.Send(t.Context(), nil)
	require.NoError(t, err)
	_, err = mails.SendRaw(t.Context(), nil)
	require.NoError(t, err)
	require.Nil(t, mails.Messages()[4])
	require.Nil(t, mails.RawMessages()[1])
}

func TestConcurrentUse(t *testing.T) {
	var mails mailtest.BatchTransport
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				mails.Next(mailtest.Sent())
				mails.NextFor("a", mailtest.Failed(nil))
				_, _ = mails.Send(t.Context(), message("a"))
				_, _ = mails.SendRaw(t.Context(), &idemmail.RawMessage{IdempotencyKey: "b"})
				mails.SendMany(t.Context(), []*idemmail.Message{message("c")})
				_, _, _, _, _ = mails.Sends(), mails.SendsOf("a"), mails.Messages(), mails.RawMessages(), mails.Batches()
			}
		})
	}
	wg.Wait()
	require.Equal(t, 8*50*3, mails.Sends())
	require.Equal(t, 8*50, mails.SendsOf("a"))
	require.Equal(t, 8*50, mails.SendsOf("b"))
	require.Len(t, mails.Messages(), 8*50*2)
	require.Len(t, mails.Batches(), 8*50)
}

func TestStandardLibraryOnly(t *testing.T) {
	p, err := build.ImportDir(".", 0)
	require.NoError(t, err)
	for _, path := range p.Imports {
		if path != "github.com/idemmail/idemmail" {
			require.NotContains(t, path, ".")
		}
	}
}
