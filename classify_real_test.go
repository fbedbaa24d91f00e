package idemmail_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
)

// The errors that the standard library really makes, each provoked on
// loopback, as they come, wrapped three deep, and joined.
func TestClassifyRealErrors(t *testing.T) {
	const (
		network = idemmail.CategoryNetwork
		late    = idemmail.CategoryTimeout
	)
	for _, test := range []struct {
		name     string
		provoke  func(t *testing.T) error
		is       error // what errors.Is must find, so that the row is what it says
		want     idemmail.Delivery
		category idemmail.Category
		retry    bool // checked where the message was not taken
	}{
		{"dial: refused", dialRefused, syscall.ECONNREFUSED, notDelivered, network, true},
		{"dial: timed out", dialTimedOut, nil, notDelivered, network, true},
		{"dial: deadline of the context", dialDeadline, context.DeadlineExceeded, notDelivered, network, true},
		{"dial: cancelled", dialCancelled, context.Canceled, notDelivered, network, true},
		{"dial: unknown host", dialUnknownHost, nil, notDelivered, network, true},
		{"DNS: no server answers", lookupFailed, nil, notDelivered, network, true},
		{"read: deadline", readDeadline, os.ErrDeadlineExceeded, deliveryUnknown, late, true},
		{"read: reset", readReset, syscall.ECONNRESET, deliveryUnknown, network, true},
		{"read: end of file", readEOF, io.EOF, deliveryUnknown, network, true},
		{"read: unexpected end of file", readUnexpectedEOF, io.ErrUnexpectedEOF, deliveryUnknown, network, true},
		{"read: closed connection", readClosed, net.ErrClosed, deliveryUnknown, network, true},
		{"write: broken pipe", writeBrokenPipe, syscall.EPIPE, deliveryUnknown, network, true},
		{"write: closed pipe", writeClosedPipe, io.ErrClosedPipe, deliveryUnknown, network, true},
		{"os: deadline of a pipe", pipeDeadline, os.ErrDeadlineExceeded, deliveryUnknown, late, true},
		{"context: deadline", contextDeadline, context.DeadlineExceeded, deliveryUnknown, late, true},
		{"context: cancelled", contextCancelled, context.Canceled, deliveryUnknown, idemmail.CategoryUnknown, true},

		{"x509: unknown authority", verifyUnknownAuthority, nil, notDelivered, network, false},
		{"x509: expired", verifyExpired, nil, notDelivered, network, false},
		{"x509: wrong host", verifyWrongHost, nil, notDelivered, network, false},
		{"TLS: unknown authority", tlsHandshake(&tls.Config{}, nil), nil, notDelivered, network, false},
		{"TLS: wrong host", tlsHandshake(&tls.Config{ServerName: "other.example"}, tlsTrusted), nil, notDelivered, network, false},
		{"TLS: expired certificate", tlsHandshake(&tls.Config{Time: inTenYears}, tlsTrusted), nil, notDelivered, network, false},
		{"TLS: server speaks plain text", handshakePlain, nil, notDelivered, network, false},
		{"TLS: alert in mid-session, client certificate required", alertCertificateRequired, nil, deliveryUnspecified, idemmail.CategoryUnknown, true},
		{"TLS: alert, protocol version", alertProtocolVersion, nil, deliveryUnspecified, idemmail.CategoryUnknown, true},
		{"TLS: connection lost in mid-session", tlsLost, io.EOF, deliveryUnknown, network, true},

		{"textproto: 421", readReply(250, "421 closing"), nil, notDelivered, idemmail.CategoryProvider, true},
		{"textproto: 535", readReply(235, "535 5.7.8 no"), nil, notDelivered, idemmail.CategoryAuth, false},
		{"textproto: 550 of several lines", readReply(250, "550-no\r\n550 such user"), nil, notDelivered, idemmail.CategoryProvider, false},
		{"textproto: 354 for 250", readReply(250, "354 go ahead"), nil, deliveryUnknown, idemmail.CategoryProvider, true},
		{"SMTP: recipient refused", smtpSession("550 no such user", "250 ok"), nil, notDelivered, idemmail.CategoryProvider, false},
		{"SMTP: message refused after the dot", smtpSession("250 ok", "554 spam"), nil, notDelivered, idemmail.CategoryProvider, false},
		{"SMTP: message put off after the dot", smtpSession("250 ok", "451 later"), nil, notDelivered, idemmail.CategoryProvider, true},
		{"SMTP: connection lost after the dot", smtpSession("250 ok", ""), io.EOF, deliveryUnknown, network, true},

		{"HTTP: refused", httpRefused, syscall.ECONNREFUSED, notDelivered, network, true},
		{"HTTP: connection lost before the answer", httpLost, io.EOF, deliveryUnknown, network, true},
		{"HTTP: body of the answer cut off", httpCutOff, io.ErrUnexpectedEOF, deliveryUnknown, network, true},
		{"HTTP: client's timeout", httpTimedOut, context.DeadlineExceeded, deliveryUnknown, late, true},
		{"HTTP: cancelled while waiting", httpCancelled, context.Canceled, deliveryUnknown, idemmail.CategoryUnknown, true},
		{"HTTP: certificate of an unknown authority", httpUntrusted, nil, notDelivered, network, false},
		{"HTTP: 401", httpStatus(401), nil, notDelivered, idemmail.CategoryAuth, false},
		{"HTTP: 403", httpStatus(403), nil, notDelivered, idemmail.CategoryAuth, false},
		{"HTTP: 408", httpStatus(408), nil, notDelivered, late, true},
		{"HTTP: 422", httpStatus(422), nil, notDelivered, idemmail.CategoryValidation, false},
		{"HTTP: 429", httpStatus(429), nil, notDelivered, idemmail.CategoryRateLimit, true},
		{"HTTP: 500", httpStatus(500), nil, deliveryUnknown, idemmail.CategoryProvider, true},
		{"HTTP: 502", httpStatus(502), nil, deliveryUnknown, idemmail.CategoryProvider, true},
		{"HTTP: 503", httpStatus(503), nil, deliveryUnknown, idemmail.CategoryProvider, true},
		{"HTTP: 504", httpStatus(504), nil, deliveryUnknown, idemmail.CategoryProvider, true},
		{"HTTP: 200 that the adapter can't read", httpStatus(200), nil, deliveryUnknown, idemmail.CategoryProvider, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := test.provoke(t)
			require.Error(t, err)
			t.Logf("%T: %v", err, err)
			if test.is != nil {
				require.ErrorIs(t, err, test.is)
			}
			wrapped := fmt.Errorf("job 7: %w", fmt.Errorf("mailer: %w", fmt.Errorf("attempt 2: %w", err)))
			for _, err := range []error{err, wrapped, errors.Join(err, nil), fmt.Errorf("%w, %w", wrapped, err)} {
				require.Equal(t, test.want, idemmail.ClassifyError(err), "%v", err)
				category, retry := idemmail.KindOf(err)
				require.Equal(t, test.category, category, "%v", err)
				require.Equal(t, test.retry, retry, "%v", err)
			}

			withLost := errors.Join(wrapped, io.ErrUnexpectedEOF)
			require.Equal(t, deliveryUnknown, idemmail.ClassifyError(withLost), "joined with a lost connection")
			withRefusal := errors.Join(replyError(550), wrapped)
			require.Equal(t, test.want, idemmail.ClassifyError(withRefusal), "joined with a refusal, which never wins")
			if test.want != deliveryUnknown {
				require.Equal(t, deliveryUnspecified, idemmail.ClassifyError(errors.Join(wrapped, errOnFire)), "joined with a plain error")
			}
			require.Equal(t, notDelivered, idemmail.ClassifyError(idemmail.NotSent(wrapped)), "marked")
			require.Equal(t, deliveryUnknown, idemmail.ClassifyError(idemmail.MayBeSent(wrapped)), "marked")
		})
	}
}

// listenTCP serves each connection with serve and ends with the test.
func listenTCP(t *testing.T, serve func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			serve(c)
			c.Close()
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-done
	})
	return l.Addr().String()
}

func dialTCP(t *testing.T, addr string) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c.(*net.TCPConn)
}

// deadPort is an address that nothing listens on.
func deadPort(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	return l.Addr().String()
}

func untilClosed(c net.Conn) { io.Copy(io.Discard, c) }

func dialRefused(t *testing.T) error {
	_, err := net.Dial("tcp", deadPort(t))
	return err
}

func dialTimedOut(t *testing.T) error {
	_, err := net.DialTimeout("tcp", listenTCP(t, untilClosed), time.Nanosecond)
	var n net.Error
	require.ErrorAs(t, err, &n)
	require.True(t, n.Timeout())
	return err
}

func dialDeadline(t *testing.T) error {
	ctx, cancel := context.WithDeadline(context.Background(), time.Now().Add(-time.Second))
	defer cancel()
	_, err := new(net.Dialer).DialContext(ctx, "tcp", listenTCP(t, untilClosed))
	return err
}

func dialCancelled(t *testing.T) error {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := new(net.Dialer).DialContext(ctx, "tcp", listenTCP(t, untilClosed))
	return err
}

// deadResolver asks a name server that is not there.
func deadResolver(t *testing.T) *net.Resolver {
	dead := deadPort(t)
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", dead)
	}}
}

func dialUnknownHost(t *testing.T) error {
	dialer := net.Dialer{Resolver: deadResolver(t)}
	_, err := dialer.Dial("tcp", "mail.invalid.:25")
	var dns *net.DNSError
	require.ErrorAs(t, err, &dns)
	return err
}

func lookupFailed(t *testing.T) error {
	_, err := deadResolver(t).LookupMX(context.Background(), "mail.invalid.")
	return err
}

func readDeadline(t *testing.T) error {
	c := dialTCP(t, listenTCP(t, untilClosed))
	require.NoError(t, c.SetReadDeadline(time.Now().Add(-time.Second)))
	_, err := c.Read(make([]byte, 1))
	return err
}

// dialReset is a connection that the server resets once it has read a byte,
// for one that comes too early resets the dial.
func dialReset(t *testing.T) (c *net.TCPConn, reset error) {
	c = dialTCP(t, listenTCP(t, func(c net.Conn) {
		c.Read(make([]byte, 1))
		c.(*net.TCPConn).SetLinger(0)
	}))
	_, err := c.Write([]byte("."))
	require.NoError(t, err)
	_, reset = c.Read(make([]byte, 1))
	return c, reset
}

func readReset(t *testing.T) error {
	_, err := dialReset(t)
	return err
}

func readEOF(t *testing.T) error {
	_, err := dialTCP(t, listenTCP(t, func(net.Conn) {})).Read(make([]byte, 1))
	return err
}

func readUnexpectedEOF(t *testing.T) error {
	c := dialTCP(t, listenTCP(t, func(c net.Conn) { io.WriteString(c, "25") }))
	_, err := io.ReadFull(c, make([]byte, 3))
	return err
}

func readClosed(t *testing.T) error {
	c := dialTCP(t, listenTCP(t, untilClosed))
	require.NoError(t, c.Close())
	_, err := c.Read(make([]byte, 1))
	return err
}

func writeBrokenPipe(t *testing.T) error {
	c, reset := dialReset(t)
	require.ErrorIs(t, reset, syscall.ECONNRESET)
	_, err := c.Write([]byte("QUIT\r\n"))
	return err
}

func writeClosedPipe(t *testing.T) error {
	ours, theirs := net.Pipe()
	require.NoError(t, theirs.Close())
	defer ours.Close()
	_, err := ours.Write([]byte("QUIT\r\n"))
	return err
}

func pipeDeadline(t *testing.T) error {
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	defer w.Close()
	require.NoError(t, r.SetReadDeadline(time.Now().Add(-time.Second)))
	_, err = r.Read(make([]byte, 1))
	return err
}

func contextDeadline(*testing.T) error {
	ctx, cancel := context.WithDeadline(context.Background(), time.Now().Add(-time.Second))
	defer cancel()
	return ctx.Err()
}

func contextCancelled(*testing.T) error {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx.Err()
}
