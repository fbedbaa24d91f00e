package smtptransport_test

import (
	"context"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/smtptransport"
)

// guard wraps a transport as users do.
func guard(t testing.TB, next idemmail.Transport) *idemmail.IdempotencyTransport {
	t.Helper()
	guarded, err := idemmail.New(next, idemmail.Options{
		MessageIDDomain: "example.com",
		Logger:          slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)
	return guarded
}

// What the decorator makes of the outcome: a failed message can be sent again,
// an unknown one cannot, a sent one is answered with its receipt.
func TestGuarded(t *testing.T) {
	ok := says("250 2.0.0 ok")
	for _, row := range []struct {
		name   string
		script map[string]step
		first  idemmail.Status
		second idemmail.Status
	}{
		{"sent", nil, sent, sent},
		{"greeting lost", on(1, "greeting", says("220 hello"), cuts), failed, sent},
		{"RCPT refused", on(1, "RCPT", ok, says("550 5.1.1 no")), failed, sent},
		{"DATA lost", on(1, "DATA", says("354 go"), cuts), failed, sent},
		{"dot refused", on(1, "dot", ok, says("451 4.3.0 later")), failed, sent},
		{"dot lost", on(1, "dot", ok, cuts), unknown, unknown},
		{"dot garbled", on(1, "dot", ok, says("what?")), unknown, unknown},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			s := newScriptedServer(t, row.script)
			mailer := guard(t, transport(t, s.addr))
			r, err := mailer.Send(background, letter())
			require.Equal(t, row.first, r.Status, "%v", err)
			require.Equal(t, row.first == unknown, isUnknown(err))
			first := r.MessageID
			r, err = mailer.Send(background, letter())
			require.Equal(t, row.second, r.Status, "%v", err)
			require.Equal(t, first, r.MessageID, "the stable Message-ID")
			require.Equal(t, row.first != failed, r.Replayed)
			_, _, _, whole := s.seen()
			if row.name != "dot refused" {
				require.Equal(t, 1, whole, "never twice")
			}
		})
	}
}

func isUnknown(err error) bool {
	return err != nil && idemmail.ClassifyError(err) == idemmail.DeliveryUnknown
}

// A send that its caller gave up while it waited for the reply to the dot is
// the decorator's ErrAborted; one given up before is simply failed.
func TestGuardedCancel(t *testing.T) {
	for _, row := range []struct {
		step    string
		status  idemmail.Status
		code    string
		aborted bool
	}{
		{"MAIL", failed, smtptransport.CodeCanceled, false},
		{"DATA", failed, smtptransport.CodeCanceled, false},
		{"dot", unknown, idemmail.CodeAborted, true},
	} {
		t.Run(row.step, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(background)
			defer cancel()
			s := newScriptedServer(t, map[string]step{row.step: func(c *peer) bool {
				cancel()
				return hangs(c)
			}})
			mailer := guard(t, transport(t, s.addr))
			r, err := mailer.Send(ctx, letter())
			require.Equal(t, row.status, r.Status)
			require.Equal(t, row.code, r.Code)
			require.ErrorIs(t, err, context.Canceled)
			if row.aborted {
				require.ErrorIs(t, err, idemmail.ErrAborted)
				require.ErrorIs(t, err, idemmail.ErrDeliveryUnknown)
			} else {
				require.NotErrorIs(t, err, idemmail.ErrDeliveryUnknown)
			}
		})
	}
}

func TestGuardedBatchAndRaw(t *testing.T) {
	t.Parallel()
	s := newScriptedServer(t, nil)
	mailer := guard(t, transport(t, s.addr))
	msgs := letters(3)
	for i, key := range []string{"a", "b", "a"} {
		msgs[i].IdempotencyKey = key
	}
	msgs[2].Subject = msgs[0].Subject
	results := mailer.SendMany(background, msgs)
	require.Equal(t, []idemmail.Status{sent, sent, sent}, statuses(results))
	require.True(t, results[2].Receipt.Replayed)
	connections, _, messages, _ := s.seen()
	require.Equal(t, 1, connections)
	require.Len(t, messages, 2)

	raw := &idemmail.RawMessage{From: "a@b", To: []string{"c@d"}, Data: []byte("Subject: x\r\n\r\nx\r\n"), IdempotencyKey: "raw"}
	for range 2 {
		r, err := mailer.SendRaw(background, raw)
		require.NoError(t, err)
		require.Equal(t, sent, r.Status)
	}
	_, _, messages, _ = s.seen()
	require.Len(t, messages, 3)
}
