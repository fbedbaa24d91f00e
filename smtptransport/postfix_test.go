//go:build unix

package smtptransport_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/mail"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/internal/testserver"
	"github.com/idemmail/idemmail/smtptransport"
)

// A full MTA delivers to a local mailbox.
func TestPostfix(t *testing.T) {
	p := testserver.StartPostfix(t)
	over := func(addr string, mode smtptransport.TLSMode, change ...func(*smtptransport.Options)) *smtptransport.Transport {
		return transport(t, addr, append([]func(*smtptransport.Options){func(o *smtptransport.Options) {
			o.TLS, o.TLSConfig = mode, &tls.Config{RootCAs: p.Roots}
			o.KeyHeader = "X-Idempotency-Key"
		}}, change...)...)
	}
	number := 0
	next := func() *idemmail.Message {
		number++
		m := letter("ann@example.com")
		m.IdempotencyKey = fmt.Sprintf("order-%d", number)
		return m
	}
	delivered := func(m *idemmail.Message) (n int) {
		for _, message := range p.Mailbox(t, 0) {
			n += strings.Count(message, "\nX-Idempotency-Key: "+m.IdempotencyKey+"\n")
		}
		return n
	}
	arrives := func(t *testing.T, m *idemmail.Message) {
		t.Helper()
		require.Eventually(t, func() bool { return delivered(m) == 1 }, 20*time.Second, 50*time.Millisecond)
	}

	for _, row := range []struct {
		name, addr string
		mode       smtptransport.TLSMode
	}{
		{"STARTTLS", p.Addr, smtptransport.StartTLS},
		{"implicit TLS", p.TLSAddr, smtptransport.ImplicitTLS},
		{"in the clear", p.Addr, smtptransport.NoTLS},
	} {
		t.Run(row.name, func(t *testing.T) {
			m := next()
			m.Attachments = []idemmail.Attachment{{Filename: "Rechnung für März.pdf", Content: make([]byte, 100_000)}}
			r, err := over(row.addr, row.mode).Send(background, m)
			wantOutcome(t, sent, r, err)
			require.NotEmpty(t, r.ProviderID)
			require.Contains(t, r.Response, "queued as "+r.ProviderID)
			arrives(t, m)
		})
	}

	t.Run("addresses and header beyond ASCII", func(t *testing.T) {
		m := next()
		m.To = []mail.Address{{Name: "Zoë 山田", Address: "zoë@example.com"}}
		m.Subject = "Bestellung № 17 für 山田様"
		r, err := over(p.Addr, smtptransport.StartTLS).Send(background, m)
		wantOutcome(t, sent, r, err)
		arrives(t, m)
	})

	t.Run("a batch over one connection, with refusals", func(t *testing.T) {
		msgs := []*idemmail.Message{next(), next(), next(), next()}
		msgs[1].To[0].Address = "eve@elsewhere.test"                          // 554 5.7.1 relay access denied
		msgs[2].To = append(msgs[2].To, mail.Address{Address: "x@else.test"}) // one of two
		msgs[3].Text = strings.Repeat("x\n", 1_000_000)                       // beyond SIZE
		results := over(p.Addr, smtptransport.StartTLS).SendMany(background, msgs)
		require.Equal(t, []idemmail.Status{sent, failed, sent, failed}, statuses(results))
		require.Equal(t, "5.7.1", enhancedOf(t, results[1].Err))
		require.False(t, results[1].Receipt.Retryable)
		require.Equal(t, []string{"ann@example.com"}, results[2].Receipt.Accepted)
		require.Len(t, results[2].Receipt.Rejected, 1)
		require.Equal(t, 554, results[2].Receipt.Rejected[0].Code)
		arrives(t, msgs[0])
		arrives(t, msgs[2])
		require.Zero(t, delivered(msgs[1])+delivered(msgs[3]))
	})

	t.Run("raw", func(t *testing.T) {
		m := next()
		raw := &idemmail.RawMessage{From: "", To: []string{"ann@example.com"}, Data: []byte("X-Idempotency-Key: " + m.IdempotencyKey + "\nMessage-ID: <raw@example.com>\n\n.\nbody\n")}
		r, err := over(p.Addr, smtptransport.StartTLS).SendRaw(background, raw)
		wantOutcome(t, sent, r, err)
		require.Equal(t, "raw@example.com", r.MessageID)
		arrives(t, m)
	})

	// Cut in the final dot: what is reported and what is delivered.
	for _, ending := range []string{"FIN", "RST"} {
		for taken := 0; taken <= 5; taken++ {
			t.Run(fmt.Sprintf("%s after %d of 5 octets of the final dot", ending, taken), func(t *testing.T) {
				m := next()
				c := &cutter{write: writeOfTheDot, short: 5 - taken, reset: ending == "RST"}
				r, err := over(p.Addr, smtptransport.NoTLS, func(o *smtptransport.Options) { o.Dial = c.dial }).Send(background, m)
				if taken == 5 {
					wantOutcome(t, unknown, r, err)
					arrives(t, m)
					return
				}
				wantOutcome(t, failed, r, err)
				after := next() // what is delivered later shows that this is not
				_, err = over(p.Addr, smtptransport.NoTLS).Send(background, after)
				require.NoError(t, err)
				arrives(t, after)
				require.Zero(t, delivered(m))
			})
		}
	}

	t.Run("cancelled while it is waiting for the reply to the dot", func(t *testing.T) {
		m := next()
		ctx, cancel := context.WithCancel(background)
		defer cancel()
		c := &canceller{cutter: cutter{write: writeOfTheDot}, cancel: cancel}
		r, err := over(p.Addr, smtptransport.NoTLS, func(o *smtptransport.Options) { o.Dial = c.dial }).Send(ctx, m)
		require.Equal(t, 1, c.cancelled)
		wantOutcome(t, unknown, r, err)
		require.Equal(t, idemmail.CodeAborted, r.Code)
		arrives(t, m)
	})
}

// A canceller ends the context when the dot has been written.
type canceller struct {
	cutter
	cancel    func()
	cancelled int
}

func (c *canceller) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	return &cancelConn{conn, c}, err
}

type cancelConn struct {
	net.Conn
	canceller *canceller
}

func (c *cancelConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if c.canceller.writes++; c.canceller.writes == c.canceller.write {
		c.canceller.cancelled++
		c.canceller.cancel()
		c.Close() // at once, and not when the context's own goroutine comes to it
	}
	return n, err
}

func enhancedOf(t *testing.T, err error) string {
	t.Helper()
	var e *smtptransport.Error
	require.ErrorAs(t, err, &e)
	return e.Enhanced
}
