package smtptransport_test

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/smtptransport"
)

// The context ends in each phase. It is the phase that decides.
func TestCancel(t *testing.T) {
	reason := errors.New("the worker is shutting down")
	for _, row := range []struct {
		name   string
		change func(*smtptransport.Options)
		status idemmail.Status
		phase  smtptransport.Phase
	}{
		{"greeting", nil, idemmail.StatusFailed, smtptransport.PhaseHello},
		{"EHLO", nil, idemmail.StatusFailed, smtptransport.PhaseHello},
		{"AUTH", func(o *smtptransport.Options) { o.Username, o.Password = "ann", "secret" }, idemmail.StatusFailed, smtptransport.PhaseAuth},
		{"MAIL", nil, idemmail.StatusFailed, smtptransport.PhaseMail},
		{"RCPT", nil, idemmail.StatusFailed, smtptransport.PhaseRcpt},
		{"DATA", nil, idemmail.StatusFailed, smtptransport.PhaseData},
		{"dot", nil, idemmail.StatusUnknown, smtptransport.PhaseDot},
		{"STARTTLS", func(o *smtptransport.Options) { o.TLS = smtptransport.StartTLS }, idemmail.StatusFailed, smtptransport.PhaseTLS},
		{"QUIT", nil, idemmail.StatusSent, ""},
	} {
		change := row.change
		if change == nil {
			change = func(*smtptransport.Options) {}
		}
		t.Run(row.name+" cancelled", func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancelCause(background)
			defer cancel(nil)
			dialled := make(chan struct{})
			s := newScriptedServer(t, map[string]step{row.name: func(c *peer) bool {
				<-dialled
				cancel(reason)
				return hangs(c)
			}}, "AUTH PLAIN", "STARTTLS")
			r, err := transport(t, s.addr, change, func(o *smtptransport.Options) {
				o.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
					defer close(dialled)
					return new(net.Dialer).DialContext(ctx, network, addr)
				}
			}).Send(ctx, letter())
			wantOutcome(t, row.status, r, err)
			if row.status == idemmail.StatusSent {
				return
			}
			require.Equal(t, row.phase, phaseOf(t, err))
			require.ErrorIs(t, err, context.Canceled)
			require.ErrorIs(t, err, reason)
			require.Equal(t, idemmail.CategoryUnknown, r.Category)
			wantEndedCode(t, row.status, smtptransport.CodeCanceled, r)
		})
		t.Run(row.name+" deadline", func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(background, 300*time.Millisecond)
			defer cancel()
			s := newScriptedServer(t, map[string]step{row.name: hangs}, "AUTH PLAIN", "STARTTLS")
			r, err := transport(t, s.addr, change).Send(ctx, letter())
			wantOutcome(t, row.status, r, err)
			if row.status == idemmail.StatusSent {
				return
			}
			require.Equal(t, row.phase, phaseOf(t, err))
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.Equal(t, idemmail.CategoryTimeout, r.Category)
			wantEndedCode(t, row.status, smtptransport.CodeTimeout, r)
		})
	}
}

func wantEndedCode(t *testing.T, status idemmail.Status, code string, r *idemmail.Receipt) {
	t.Helper()
	if status == idemmail.StatusUnknown {
		code = idemmail.CodeAborted
	} else {
		require.True(t, r.Retryable)
	}
	require.Equal(t, code, r.Code)
}

func TestCancelledBefore(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(background)
	cancel()
	s := newScriptedServer(t, nil)
	tr := transport(t, s.addr)
	r, err := tr.Send(ctx, letter())
	wantOutcome(t, idemmail.StatusFailed, r, err)
	require.Equal(t, smtptransport.PhaseDial, phaseOf(t, err))
	r, err = tr.SendRaw(ctx, &idemmail.RawMessage{To: []string{"a@b"}, Data: []byte("Subject: x\r\n\r\nx\r\n")})
	wantOutcome(t, idemmail.StatusFailed, r, err)
	require.ErrorIs(t, err, context.Canceled)
	connections, _, _, _ := s.seen()
	require.Zero(t, connections)
}

func TestCancelledDial(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(background)
	r, err := transport(t, "mx.test:25", func(o *smtptransport.Options) {
		o.Dial = func(ctx context.Context, _, _ string) (net.Conn, error) {
			cancel()
			<-ctx.Done()
			return nil, ctx.Err()
		}
	}).Send(ctx, letter())
	wantOutcome(t, idemmail.StatusFailed, r, err)
	require.Equal(t, smtptransport.PhaseDial, phaseOf(t, err))
	require.Equal(t, smtptransport.CodeCanceled, r.Code)
}

// A dial that takes too long is a timeout, though its context's deadline is
// not the caller's.
func TestSlowDial(t *testing.T) {
	t.Parallel()
	r, err := transport(t, "mx.test:25", short, func(o *smtptransport.Options) {
		o.Dial = func(ctx context.Context, _, _ string) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
	}).Send(background, letter())
	wantOutcome(t, idemmail.StatusFailed, r, err)
	require.Equal(t, smtptransport.CodeTimeout, r.Code)
	require.True(t, r.Retryable)
}

// The context ends in the handshake, under the eyes of a server that is silent.
func TestCancelledHandshake(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(background)
	s := newScriptedServer(t, map[string]step{"greeting": func(c *peer) bool {
		c.in.ReadByte()
		cancel()
		return hangs(c)
	}})
	r, err := transport(t, s.addr, func(o *smtptransport.Options) { o.TLS = smtptransport.ImplicitTLS }).Send(ctx, letter())
	wantOutcome(t, idemmail.StatusFailed, r, err)
	require.Equal(t, smtptransport.PhaseTLS, phaseOf(t, err))
	require.ErrorIs(t, err, context.Canceled)
}

// FinalTimeout bounds the reply to the dot, Timeout does not.
func TestFinalTimeout(t *testing.T) {
	t.Parallel()
	s := newScriptedServer(t, map[string]step{"dot": func(c *peer) bool {
		time.Sleep(300 * time.Millisecond)
		return c.reply("250 2.0.0 Ok: queued as SLOW1")
	}})
	r, err := transport(t, s.addr, func(o *smtptransport.Options) { o.Timeout = 100 * time.Millisecond }).Send(background, letter())
	wantOutcome(t, idemmail.StatusSent, r, err)
	require.Equal(t, "SLOW1", r.ProviderID)
}

// A server that writes its reply to the dot octet by octet is not waited for
// without end.
func TestTricklingReply(t *testing.T) {
	t.Parallel()
	s := newScriptedServer(t, map[string]step{"dot": func(c *peer) bool {
		c.Write([]byte("250 "))
		for {
			if _, err := c.Write([]byte("x")); err != nil {
				return false
			}
			time.Sleep(10 * time.Millisecond)
		}
	}})
	r, err := transport(t, s.addr, func(o *smtptransport.Options) { o.FinalTimeout = 200 * time.Millisecond }).Send(background, letter())
	wantOutcome(t, idemmail.StatusUnknown, r, err)
	require.Equal(t, smtptransport.CodeTimeout, r.Code)
}

// A farewell that nobody answers keeps a message that was sent from being told
// for a moment only, however long the timeouts are.
func TestQuitIsBounded(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]map[string]step{
		"no answer":        {"QUIT": hangs},
		"no end of answer": {"QUIT": chatters},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScriptedServer(t, script)
			tr := transport(t, s.addr, func(o *smtptransport.Options) { o.Timeout, o.FinalTimeout = time.Hour, time.Hour })
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				r, err := tr.Send(background, letter())
				wantOutcome(t, idemmail.StatusSent, r, err)
			}()
			select {
			case <-ended:
			case <-time.After(20 * time.Second):
				t.Error("still taking leave after 20 seconds")
			}
		})
	}
}
