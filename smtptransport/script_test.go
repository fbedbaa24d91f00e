package smtptransport_test

import (
	"bufio"
	"context"
	"errors"
	"net"
	"net/mail"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/smtptransport"
)

// A scriptedServer speaks SMTP as it should, except where the script says
// otherwise. A step of the script is named by the command that it answers, or
// "greeting", "body" (before the message is read) or "dot".
type scriptedServer struct {
	addr       string
	extensions []string
	script     map[string]step

	wait func() // for all connections to end; no more are taken

	mu          sync.Mutex
	connections int
	commands    []string
	messages    []string // taken with 2yz
	whole       int      // messages that came with their final dot, whatever became of them
}

// A step answers a command. False ends the connection.
type step func(c *peer) bool

// A peer is the server's view of one connection.
type peer struct {
	net.Conn
	in      *bufio.Reader
	server  *scriptedServer
	number  int    // of the connection, from 1
	command string // the present one

	answered string // the last code
}

func (c *peer) reply(s string) bool {
	c.answered = s[:min(3, len(s))]
	_, err := c.Write([]byte(s + "\r\n"))
	return err == nil
}

// says answers with s and goes on.
func says(s string) step { return func(c *peer) bool { return c.reply(s) } }

// saysAndCuts answers with s, as it is, and closes the connection.
func saysAndCuts(s string) step {
	return func(c *peer) bool {
		c.Write([]byte(s))
		return false
	}
}

// cuts closes the connection.
func cuts(*peer) bool { return false }

// hangs does nothing until the client goes away.
func hangs(c *peer) bool {
	for {
		if _, err := c.in.ReadByte(); err != nil {
			return false
		}
	}
}

func newScriptedServer(t testing.TB, script map[string]step, extensions ...string) *scriptedServer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	if script == nil {
		script = map[string]step{}
	}
	s := &scriptedServer{addr: l.Addr().String(), script: script, extensions: extensions}
	var connections sync.WaitGroup
	connections.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			s.connections++
			c := &peer{Conn: conn, in: bufio.NewReader(conn), server: s, number: s.connections}
			s.mu.Unlock()
			connections.Go(func() {
				defer conn.Close()
				c.serve()
			})
		}
	})
	s.wait = func() {
		l.Close()
		connections.Wait()
	}
	t.Cleanup(s.wait)
	return s
}

func (c *peer) serve() {
	if !c.step("greeting", says("220 scripted ESMTP")) {
		return
	}
	for {
		line, err := c.in.ReadString('\n')
		if err != nil {
			return
		}
		c.command = strings.TrimRight(line, "\r\n")
		c.server.note(c.command)
		verb, _, _ := strings.Cut(c.command, " ")
		var ok bool
		switch verb = strings.ToUpper(verb); verb {
		case "EHLO":
			ok = c.step(verb, func(c *peer) bool { return c.reply(c.server.greeting()) })
		case "DATA":
			ok = c.step(verb, says("354 go ahead")) && (c.answered != "354" || c.data())
		case "QUIT":
			c.step(verb, says("221 2.0.0 bye"))
			return
		default:
			ok = c.step(verb, says("250 2.0.0 ok"))
		}
		if !ok {
			return
		}
	}
}

func (c *peer) step(name string, usual step) bool {
	c.server.mu.Lock()
	s, scripted := c.server.script[name]
	c.server.mu.Unlock()
	if scripted {
		return s(c)
	}
	return usual(c)
}

// data reads a message and answers its dot.
func (c *peer) data() bool {
	if !c.step("body", func(*peer) bool { return true }) {
		return false
	}
	var message strings.Builder
	for {
		line, err := c.in.ReadString('\n')
		if err != nil {
			return false // RFC 5321 4.1.1.10: cancelled
		}
		if line == ".\r\n" {
			break
		}
		message.WriteString(strings.TrimPrefix(line, "."))
	}
	c.server.mu.Lock()
	c.server.whole++
	c.server.mu.Unlock()
	took := false
	ok := c.step("dot", func(c *peer) bool { took = true; return c.reply("250 2.0.0 Ok: queued as 4XyZ12") })
	if took {
		c.server.take(message.String())
	}
	return ok
}

func (s *scriptedServer) take(message string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.messages = append(s.messages, message)
}

func (s *scriptedServer) note(command string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.commands = append(s.commands, command)
}

func (s *scriptedServer) greeting() string {
	lines := append([]string{"scripted"}, s.extensions...)
	for i := range lines {
		if i == len(lines)-1 {
			lines[i] = "250 " + lines[i]
		} else {
			lines[i] = "250-" + lines[i]
		}
	}
	return strings.Join(lines, "\r\n")
}

// seen returns what the server has seen so far.
func (s *scriptedServer) seen() (connections int, commands, messages []string, whole int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.connections, append([]string(nil), s.commands...), append([]string(nil), s.messages...), s.whole
}

// transport returns a transport in the clear to addr.
func transport(t testing.TB, addr string, change ...func(*smtptransport.Options)) *smtptransport.Transport {
	t.Helper()
	opts := smtptransport.Options{
		Addr:         addr,
		TLS:          smtptransport.NoTLS,
		Timeout:      20 * time.Second,
		FinalTimeout: 20 * time.Second,
	}
	for _, f := range change {
		f(&opts)
	}
	tr, err := smtptransport.New(opts)
	require.NoError(t, err)
	return tr
}

// short makes the timeouts pass soon.
func short(o *smtptransport.Options) {
	o.Timeout, o.FinalTimeout = 150*time.Millisecond, 150*time.Millisecond
}

func letter(to ...string) *idemmail.Message {
	m := &idemmail.Message{
		From:           mail.Address{Name: "Shop", Address: "shop@example.com"},
		Subject:        "Order 17",
		Text:           "Thank you.\n.\nA dot stood alone on the line before this.\n",
		IdempotencyKey: "order-17",
	}
	for _, a := range to {
		m.To = append(m.To, mail.Address{Address: a})
	}
	if len(to) == 0 {
		m.To = []mail.Address{{Address: "ann@example.org"}}
	}
	return m
}

// wantOutcome checks that the receipt and the error say the same, and it.
func wantOutcome(t testing.TB, status idemmail.Status, r *idemmail.Receipt, err error) {
	t.Helper()
	require.NotNil(t, r)
	require.Equal(t, status, r.Status, "%v", err)
	require.Equal(t, "smtp", r.Transport)
	require.WithinDuration(t, time.Now(), r.At, time.Minute)
	require.Equal(t, r.At.Truncate(time.Millisecond), r.At)
	require.Equal(t, time.UTC, r.At.Location())
	if status == idemmail.StatusSent {
		require.NoError(t, err)
		require.NotEmpty(t, r.Accepted)
		require.Empty(t, r.Code)
		require.Empty(t, r.Category)
		require.False(t, r.Retryable)
		return
	}
	var e *smtptransport.Error
	require.ErrorAs(t, err, &e)
	require.Empty(t, r.Accepted)
	require.NotEmpty(t, r.Code)
	require.NotEmpty(t, r.Category)
	require.Equal(t, err.Error(), r.Detail)
	require.Equal(t, status == idemmail.StatusUnknown, e.Unknown)
	if status == idemmail.StatusUnknown {
		require.Equal(t, idemmail.DeliveryUnknown, idemmail.ClassifyError(err))
		require.False(t, r.Retryable, "unknown is never to be repeated")
	} else {
		require.Equal(t, idemmail.NotDelivered, idemmail.ClassifyError(err))
	}
	// Beneath decorators that wrap and join, it says the same.
	require.Equal(t, idemmail.ClassifyError(err), idemmail.ClassifyError(errors.Join(err)))
}

func phaseOf(t testing.TB, err error) smtptransport.Phase {
	t.Helper()
	var e *smtptransport.Error
	require.ErrorAs(t, err, &e)
	return e.Phase
}

var background = context.Background()
