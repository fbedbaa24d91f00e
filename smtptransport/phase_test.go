package smtptransport_test

import (
	"net/textproto"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/smtptransport"
)

// The server ends the dialogue in each phase, in each way.
func TestPhases(t *testing.T) {
	const (
		sent    = idemmail.StatusSent
		failed  = idemmail.StatusFailed
		unknown = idemmail.StatusUnknown
	)
	auth := func(o *smtptransport.Options) { o.Username, o.Password = "ann", "secret" }
	type row struct {
		name      string
		script    map[string]step
		change    func(*smtptransport.Options)
		status    idemmail.Status
		phase     smtptransport.Phase
		code      string
		category  idemmail.Category
		retryable bool
	}
	for _, row := range []row{
		// dial, TLS, EHLO, AUTH, MAIL, RCPT (all refused): failed
		{"greeting 554", map[string]step{"greeting": says("554 5.3.2 no service")}, nil, failed, smtptransport.PhaseHello, "smtp.554", idemmail.CategoryProvider, false},
		{"greeting 421", map[string]step{"greeting": saysAndCuts("421 4.3.2 busy\r\n")}, nil, failed, smtptransport.PhaseHello, "smtp.421", idemmail.CategoryProvider, true},
		{"greeting lost", map[string]step{"greeting": cuts}, nil, failed, smtptransport.PhaseHello, "smtp.network", idemmail.CategoryNetwork, true},
		{"greeting hangs", map[string]step{"greeting": hangs}, short, failed, smtptransport.PhaseHello, "smtp.timeout", idemmail.CategoryTimeout, true},
		{"greeting garbled", map[string]step{"greeting": saysAndCuts("SSH-2.0-OpenSSH_9.2\r\n")}, nil, failed, smtptransport.PhaseHello, "smtp.protocol", idemmail.CategoryProvider, true},
		{"EHLO 550", map[string]step{"EHLO": says("550 5.7.1 who are you")}, nil, failed, smtptransport.PhaseHello, "smtp.550", idemmail.CategoryProvider, false},
		{"EHLO 450", map[string]step{"EHLO": says("450 4.3.0 not now")}, nil, failed, smtptransport.PhaseHello, "smtp.450", idemmail.CategoryProvider, true},
		{"EHLO lost", map[string]step{"EHLO": cuts}, nil, failed, smtptransport.PhaseHello, "smtp.network", idemmail.CategoryNetwork, true},
		{"EHLO hangs", map[string]step{"EHLO": hangs}, short, failed, smtptransport.PhaseHello, "smtp.timeout", idemmail.CategoryTimeout, true},
		{"STARTTLS not offered", nil, func(o *smtptransport.Options) { o.TLS = smtptransport.StartTLS }, failed, smtptransport.PhaseTLS, "smtp.tls", idemmail.CategoryNetwork, false},
		{"TLS with a server that speaks none", nil, func(o *smtptransport.Options) { o.TLS = smtptransport.ImplicitTLS }, failed, smtptransport.PhaseTLS, "smtp.tls", idemmail.CategoryNetwork, false},
		{"AUTH 535", map[string]step{"AUTH": says("535 5.7.8 bad credentials")}, auth, failed, smtptransport.PhaseAuth, "smtp.535", idemmail.CategoryAuth, false},
		{"AUTH 454", map[string]step{"AUTH": says("454 4.7.0 try later")}, auth, failed, smtptransport.PhaseAuth, "smtp.454", idemmail.CategoryAuth, true},
		{"AUTH lost", map[string]step{"AUTH": cuts}, auth, failed, smtptransport.PhaseAuth, "smtp.network", idemmail.CategoryNetwork, true},
		{"AUTH hangs", map[string]step{"AUTH": hangs}, both(auth, short), failed, smtptransport.PhaseAuth, "smtp.timeout", idemmail.CategoryTimeout, true},
		{"AUTH challenge that PLAIN does not know", map[string]step{"AUTH": says("334 d2hhdA==")}, auth, failed, smtptransport.PhaseAuth, "smtp.auth", idemmail.CategoryAuth, false},
		{"MAIL 550", map[string]step{"MAIL": says("550 5.1.8 no such sender")}, nil, failed, smtptransport.PhaseMail, "smtp.550", idemmail.CategoryProvider, false},
		{"MAIL 451", map[string]step{"MAIL": says("451 4.3.0 not now")}, nil, failed, smtptransport.PhaseMail, "smtp.451", idemmail.CategoryProvider, true},
		{"MAIL 530", map[string]step{"MAIL": says("530 5.7.0 authenticate first")}, nil, failed, smtptransport.PhaseMail, "smtp.530", idemmail.CategoryAuth, false},
		{"MAIL 534", map[string]step{"MAIL": says("534 go to the web page")}, nil, failed, smtptransport.PhaseMail, "smtp.534", idemmail.CategoryAuth, false},
		{"MAIL 550 with the enhanced code of wrong credentials", map[string]step{"MAIL": says("550 5.7.8 who are you")}, nil, failed, smtptransport.PhaseMail, "smtp.550", idemmail.CategoryAuth, false},
		{"MAIL lost", map[string]step{"MAIL": cuts}, nil, failed, smtptransport.PhaseMail, "smtp.network", idemmail.CategoryNetwork, true},
		{"MAIL hangs", map[string]step{"MAIL": hangs}, short, failed, smtptransport.PhaseMail, "smtp.timeout", idemmail.CategoryTimeout, true},
		{"MAIL 354", map[string]step{"MAIL": says("354 eager")}, nil, failed, smtptransport.PhaseMail, "smtp.protocol", idemmail.CategoryProvider, true},
		{"RCPT 550", map[string]step{"RCPT": says("550 5.1.1 no such user")}, nil, failed, smtptransport.PhaseRcpt, "smtp.550", idemmail.CategoryProvider, false},
		{"RCPT 450", map[string]step{"RCPT": says("450 4.2.0 greylisted")}, nil, failed, smtptransport.PhaseRcpt, "smtp.450", idemmail.CategoryProvider, true},
		{"RCPT 450 with the enhanced code of a flood", map[string]step{"RCPT": says("450 4.7.28 too many")}, nil, failed, smtptransport.PhaseRcpt, "smtp.450", idemmail.CategoryRateLimit, true},
		{"RCPT 421", map[string]step{"RCPT": saysAndCuts("421 4.3.2 closing\r\n")}, nil, failed, smtptransport.PhaseRcpt, "smtp.421", idemmail.CategoryProvider, true},
		{"RCPT lost", map[string]step{"RCPT": cuts}, nil, failed, smtptransport.PhaseRcpt, "smtp.network", idemmail.CategoryNetwork, true},
		{"RCPT hangs", map[string]step{"RCPT": hangs}, short, failed, smtptransport.PhaseRcpt, "smtp.timeout", idemmail.CategoryTimeout, true},

		// reply 4yz/5yz to DATA or to the final dot: failed
		{"DATA 554", map[string]step{"DATA": says("554 5.5.1 no valid recipients")}, nil, failed, smtptransport.PhaseData, "smtp.554", idemmail.CategoryProvider, false},
		{"DATA 451", map[string]step{"DATA": says("451 4.3.0 not now")}, nil, failed, smtptransport.PhaseData, "smtp.451", idemmail.CategoryProvider, true},
		{"DATA 250", map[string]step{"DATA": says("250 what")}, nil, failed, smtptransport.PhaseData, "smtp.protocol", idemmail.CategoryProvider, true},
		{"DATA lost", map[string]step{"DATA": cuts}, nil, failed, smtptransport.PhaseData, "smtp.network", idemmail.CategoryNetwork, true},
		{"DATA hangs", map[string]step{"DATA": hangs}, short, failed, smtptransport.PhaseData, "smtp.timeout", idemmail.CategoryTimeout, true},
		{"dot 554", map[string]step{"dot": says("554 5.7.1 spam")}, nil, failed, smtptransport.PhaseDot, "smtp.554", idemmail.CategoryProvider, false},
		{"dot 451", map[string]step{"dot": says("451 4.3.0 disk full")}, nil, failed, smtptransport.PhaseDot, "smtp.451", idemmail.CategoryProvider, true},
		{"dot 421", map[string]step{"dot": saysAndCuts("421 4.3.2 closing\r\n")}, nil, failed, smtptransport.PhaseDot, "smtp.421", idemmail.CategoryProvider, true},
		{"dot 550 in two lines", map[string]step{"dot": says("550-5.7.1 spam\r\n550 5.7.1 see the page")}, nil, failed, smtptransport.PhaseDot, "smtp.550", idemmail.CategoryProvider, false},
		{"dot 500 alone", map[string]step{"dot": says("500")}, nil, failed, smtptransport.PhaseDot, "smtp.500", idemmail.CategoryProvider, false},
		{"dot 599", map[string]step{"dot": says("599 whatever")}, nil, failed, smtptransport.PhaseDot, "smtp.599", idemmail.CategoryProvider, false},

		// F, and no complete 2yz/4yz/5yz reply: unknown
		{"dot lost", map[string]step{"dot": cuts}, nil, unknown, smtptransport.PhaseDot, "smtp.network", idemmail.CategoryNetwork, false},
		{"dot hangs", map[string]step{"dot": hangs}, short, unknown, smtptransport.PhaseDot, "smtp.timeout", idemmail.CategoryTimeout, false},
		{"dot 2", map[string]step{"dot": saysAndCuts("2")}, nil, unknown, smtptransport.PhaseDot, "smtp.network", idemmail.CategoryNetwork, false},
		{"dot 250 without its line end", map[string]step{"dot": saysAndCuts("250 2.0.0 Ok: queued as 4X")}, nil, unknown, smtptransport.PhaseDot, "smtp.network", idemmail.CategoryNetwork, false},
		{"dot 550 without its line end", map[string]step{"dot": saysAndCuts("550 5.7.1 sp")}, nil, unknown, smtptransport.PhaseDot, "smtp.network", idemmail.CategoryNetwork, false},
		{"dot 250 without its last line", map[string]step{"dot": saysAndCuts("250-2.0.0 Ok\r\n")}, nil, unknown, smtptransport.PhaseDot, "smtp.network", idemmail.CategoryNetwork, false},
		{"dot 550 without its last line", map[string]step{"dot": saysAndCuts("550-5.7.1 spam\r\n")}, nil, unknown, smtptransport.PhaseDot, "smtp.network", idemmail.CategoryNetwork, false},
		{"dot garbled", map[string]step{"dot": saysAndCuts("<html>502</html>\r\n")}, nil, unknown, smtptransport.PhaseDot, "smtp.protocol", idemmail.CategoryProvider, false},
		{"dot empty line", map[string]step{"dot": saysAndCuts("\r\n")}, nil, unknown, smtptransport.PhaseDot, "smtp.protocol", idemmail.CategoryProvider, false},
		{"dot overlong", map[string]step{"dot": saysAndCuts("250 " + strings.Repeat("x", 5000) + "\r\n")}, nil, unknown, smtptransport.PhaseDot, "smtp.protocol", idemmail.CategoryProvider, false},
		{"dot with lines without end", map[string]step{"dot": chatters}, nil, unknown, smtptransport.PhaseDot, "smtp.protocol", idemmail.CategoryProvider, false},
		{"dot 150", map[string]step{"dot": saysAndCuts("150 wait\r\n")}, nil, unknown, smtptransport.PhaseDot, "smtp.protocol", idemmail.CategoryProvider, false},
		{"dot 354", map[string]step{"dot": saysAndCuts("354 more\r\n")}, nil, unknown, smtptransport.PhaseDot, "smtp.protocol", idemmail.CategoryProvider, false},
		{"dot 600", map[string]step{"dot": saysAndCuts("600 what\r\n")}, nil, unknown, smtptransport.PhaseDot, "smtp.protocol", idemmail.CategoryProvider, false},
		{"dot 099", map[string]step{"dot": saysAndCuts("099-what\r\n099 what\r\n")}, nil, unknown, smtptransport.PhaseDot, "smtp.protocol", idemmail.CategoryProvider, false},
		{"dot 2500", map[string]step{"dot": saysAndCuts("2500 what\r\n")}, nil, unknown, smtptransport.PhaseDot, "smtp.protocol", idemmail.CategoryProvider, false},

		// any 2yz to the final dot: sent; QUIT that fails or hangs: still sent
		{"dot 250", nil, nil, sent, "", "", "", false},
		{"dot 250 alone", map[string]step{"dot": says("250")}, nil, sent, "", "", "", false},
		{"dot 250 with LF", map[string]step{"dot": saysAndCuts("250 ok\n")}, nil, sent, "", "", "", false},
		{"dot 251", map[string]step{"dot": says("251 2.0.0 will forward")}, nil, sent, "", "", "", false},
		{"dot 252", map[string]step{"dot": says("252 2.0.0 will try")}, nil, sent, "", "", "", false},
		{"dot 299", map[string]step{"dot": says("299 why not")}, nil, sent, "", "", "", false},
		{"dot 250, then lost", map[string]step{"dot": saysAndCuts("250 2.0.0 ok\r\n")}, nil, sent, "", "", "", false},
		{"QUIT lost", map[string]step{"QUIT": cuts}, nil, sent, "", "", "", false},
		{"QUIT 421", map[string]step{"QUIT": says("421 4.3.2 closing")}, nil, sent, "", "", "", false},
		{"QUIT 500", map[string]step{"QUIT": says("500 5.5.1 what")}, nil, sent, "", "", "", false},
		{"QUIT garbled", map[string]step{"QUIT": saysAndCuts("bye\r\n")}, nil, sent, "", "", "", false},
		{"QUIT hangs", map[string]step{"QUIT": hangs}, nil, sent, "", "", "", false},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			s := newScriptedServer(t, row.script, "AUTH PLAIN", "SIZE")
			change := row.change
			if change == nil {
				change = func(*smtptransport.Options) {}
			}
			r, err := transport(t, s.addr, change).Send(background, letter())
			wantOutcome(t, row.status, r, err)
			_, _, messages, whole := s.seen()
			if row.status == idemmail.StatusSent {
				require.Equal(t, 1, whole)
				require.Equal(t, []string{"ann@example.org"}, r.Accepted)
				return
			}
			require.Empty(t, messages)
			require.Equal(t, row.phase, phaseOf(t, err))
			require.Equal(t, row.code, r.Code)
			require.Equal(t, row.category, r.Category)
			require.Equal(t, row.retryable, r.Retryable)
			if row.phase != smtptransport.PhaseDot {
				require.Zero(t, whole, "no half-written message may come as a whole one")
			}
		})
	}
}

// A refusal is found as the error that package net/textproto has for it, with
// its code and enhanced code, and stands in the receipt.
func TestRefusalIsTyped(t *testing.T) {
	t.Parallel()
	s := newScriptedServer(t, map[string]step{"dot": says("554-5.7.1 spam\r\n554 5.7.1 see the page")})
	r, err := transport(t, s.addr).Send(background, letter())
	wantOutcome(t, idemmail.StatusFailed, r, err)
	var e *smtptransport.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, 554, e.Code)
	require.Equal(t, "5.7.1", e.Enhanced)
	var reply *textproto.Error
	require.ErrorAs(t, err, &reply)
	require.Equal(t, 554, reply.Code)
	require.Equal(t, "554 5.7.1 spam\nsee the page", r.Response)
}

func TestDialRefused(t *testing.T) {
	t.Parallel()
	s := newScriptedServer(t, nil)
	tr := transport(t, s.addr, func(o *smtptransport.Options) { o.Addr = "127.0.0.1:1" })
	r, err := tr.Send(background, letter())
	wantOutcome(t, idemmail.StatusFailed, r, err)
	require.Equal(t, smtptransport.PhaseDial, phaseOf(t, err))
	require.Equal(t, idemmail.CategoryNetwork, r.Category)
	require.True(t, r.Retryable)
	require.NotEmpty(t, r.MessageID, "the Message-ID that was used is told")
}

func TestUnknownHost(t *testing.T) {
	t.Parallel()
	tr := transport(t, "nowhere.invalid:25")
	r, err := tr.Send(background, letter())
	wantOutcome(t, idemmail.StatusFailed, r, err)
	require.Equal(t, smtptransport.PhaseDial, phaseOf(t, err))
	require.True(t, r.Retryable)
}

// The queue id and the reply of servers that are around.
func TestReceiptOfSent(t *testing.T) {
	for reply, id := range map[string]string{
		"250 2.0.0 Ok: queued as 4XyZ12":                           "4XyZ12",
		"250 OK id=1rXyZ1-000abc-2D":                               "1rXyZ1-000abc-2D",
		"250 2.0.0 31bNf2xY012345 Message accepted for delivery":   "31bNf2xY012345",
		"250 2.0.0 Message accepted for delivery":                  "",
		"250 2.6.0 <a@b> [InternalId=7] Queued mail for delivery":  "",
		"250 Ok: queued as <abc@host>":                             "abc@host",
		"250-2.0.0 all is well\r\n250 2.0.0 Ok: queued as 4XyZ13.": "4XyZ13",
		"250": "",
	} {
		t.Run(reply, func(t *testing.T) {
			t.Parallel()
			s := newScriptedServer(t, map[string]step{"dot": says(reply)})
			m := letter()
			m.MessageID = "order-17@example.com"
			r, err := transport(t, s.addr).Send(background, m)
			wantOutcome(t, idemmail.StatusSent, r, err)
			require.Equal(t, id, r.ProviderID)
			require.True(t, strings.HasPrefix(r.Response, "250"), r.Response)
			require.Equal(t, "order-17@example.com", r.MessageID)
		})
	}
}

// Some recipients refused, the rest taken: sent.
func TestSomeRecipientsRefused(t *testing.T) {
	t.Parallel()
	s := newScriptedServer(t, map[string]step{"RCPT": func(c *peer) bool {
		switch {
		case strings.Contains(c.command, "bob"):
			return c.reply("550 5.1.1 no such user")
		case strings.Contains(c.command, "cid"):
			return c.reply("452 4.2.2 mailbox full")
		default:
			return c.reply("251 2.1.5 will forward")
		}
	}})
	r, err := transport(t, s.addr).Send(background, letter("ann@example.org", "bob@example.org", "cid@example.org", "dan@example.org"))
	wantOutcome(t, idemmail.StatusSent, r, err)
	require.Equal(t, []string{"ann@example.org", "dan@example.org"}, r.Accepted)
	require.Equal(t, []idemmail.Rejection{
		{Address: "bob@example.org", Reason: "550 5.1.1 no such user", Code: 550},
		{Address: "cid@example.org", Reason: "452 4.2.2 mailbox full", Code: 452},
	}, r.Rejected)
	require.Equal(t, "4XyZ12", r.ProviderID)
}

// All recipients refused, one of them for now: the message may be tried again.
func TestAllRecipientsRefused(t *testing.T) {
	t.Parallel()
	s := newScriptedServer(t, map[string]step{"RCPT": func(c *peer) bool {
		if strings.Contains(c.command, "bob") {
			return c.reply("450 4.2.0 greylisted")
		}
		return c.reply("550 5.1.1 no such user")
	}})
	r, err := transport(t, s.addr).Send(background, letter("ann@example.org", "bob@example.org", "cid@example.org"))
	wantOutcome(t, idemmail.StatusFailed, r, err)
	require.True(t, r.Retryable)
	require.Equal(t, "smtp.450", r.Code)
	require.Len(t, r.Rejected, 3)
	require.Equal(t, 550, r.Rejected[2].Code)
}

// 421 at one recipient is about the session: the message goes to nobody, and
// all of it can be tried again.
func TestClosingAtARecipient(t *testing.T) {
	t.Parallel()
	s := newScriptedServer(t, map[string]step{"RCPT": func(c *peer) bool {
		switch {
		case strings.Contains(c.command, "ann"):
			return c.reply("550 5.1.1 no such user")
		case strings.Contains(c.command, "cid"):
			return c.reply("421 4.3.2 closing")
		default:
			return c.reply("250 ok")
		}
	}})
	r, err := transport(t, s.addr).Send(background, letter("ann@example.org", "bob@example.org", "cid@example.org", "dan@example.org"))
	wantOutcome(t, idemmail.StatusFailed, r, err)
	require.True(t, r.Retryable)
	require.Equal(t, "smtp.421", r.Code)
	require.Equal(t, []idemmail.Rejection{{Address: "ann@example.org", Reason: "550 5.1.1 no such user", Code: 550}}, r.Rejected)
	_, commands, _, _ := s.seen()
	require.NotContains(t, commands, "DATA")
}

// The dot refused after some recipients were: failed, and nobody is said to
// have it.
func TestSomeRecipientsRefusedThenAll(t *testing.T) {
	t.Parallel()
	s := newScriptedServer(t, map[string]step{
		"RCPT": func(c *peer) bool {
			if strings.Contains(c.command, "bob") {
				return c.reply("550 5.1.1 no such user")
			}
			return c.reply("250 ok")
		},
		"dot": says("452 4.3.1 disk full"),
	})
	r, err := transport(t, s.addr).Send(background, letter("ann@example.org", "bob@example.org"))
	wantOutcome(t, idemmail.StatusFailed, r, err)
	require.True(t, r.Retryable)
	require.Equal(t, "smtp.452", r.Code)
	require.Len(t, r.Rejected, 1)
}

// A reply that nobody asked for, before the dot: it would pass for the answer
// to it.
func TestReplyAheadOfTheDot(t *testing.T) {
	t.Parallel()
	s := newScriptedServer(t, map[string]step{"RCPT": func(c *peer) bool {
		return c.reply("250 2.1.5 ok\r\n250 2.1.5 and another")
	}})
	r, err := transport(t, s.addr).Send(background, letter())
	wantOutcome(t, idemmail.StatusFailed, r, err)
	require.Equal(t, "smtp.protocol", r.Code)
	_, _, _, whole := s.seen()
	require.Zero(t, whole)
}

// The same with the go-ahead to DATA: "250" is there before the dot, and the
// answer to the dot is another.
func TestReplyAheadWithTheGoAhead(t *testing.T) {
	t.Parallel()
	s := newScriptedServer(t, map[string]step{
		"DATA": func(c *peer) bool {
			c.answered = "354"
			_, err := c.Write([]byte("354 go ahead\r\n250 2.0.0 ok\r\n"))
			return err == nil
		},
		"dot": says("554 5.7.1 spam"),
	})
	r, err := transport(t, s.addr).Send(background, letter())
	wantOutcome(t, idemmail.StatusFailed, r, err)
	require.Equal(t, smtptransport.PhaseDot, phaseOf(t, err)) // a small message is written with its dot
	_, _, _, whole := s.seen()
	require.Zero(t, whole)
}

// A code alone is a reply in every phase (RFC 5321 4.2).
func TestCodesAlone(t *testing.T) {
	t.Parallel()
	s := newScriptedServer(t, map[string]step{
		"greeting": says("220"), "EHLO": says("250"), "MAIL": says("250"), "RCPT": says("250"),
	})
	r, err := transport(t, s.addr).Send(background, letter())
	wantOutcome(t, idemmail.StatusSent, r, err)
}

func both(a, b func(*smtptransport.Options)) func(*smtptransport.Options) {
	return func(o *smtptransport.Options) { a(o); b(o) }
}

// chatters never comes to the end of its reply.
func chatters(c *peer) bool {
	for c.reply("250-and then") {
	}
	return false
}
