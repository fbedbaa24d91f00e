package sestransport_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sesv2"
	"github.com/aws/smithy-go"
	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/sestransport"
)

// Nothing of these reaches SES.
func TestNoRequestWasBegun(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	late, cancelLate := context.WithDeadline(t.Context(), time.Unix(0, 0))
	defer cancelLate()

	dialer := func(dial func(ctx context.Context) error) func(*sesv2.Options) {
		return func(o *sesv2.Options) {
			o.HTTPClient = &http.Client{Transport: &http.Transport{
				DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return nil, dial(ctx) },
			}}
		}
	}
	provider := func(f func(ctx context.Context) error) func(*sesv2.Options) {
		return func(o *sesv2.Options) {
			o.Credentials = aws.CredentialsProviderFunc(func(ctx context.Context) (aws.Credentials, error) {
				return aws.Credentials{}, f(ctx)
			})
		}
	}
	dialing := ending{t.Context(), make(chan struct{}), context.DeadlineExceeded}
	looking := ending{t.Context(), make(chan struct{}), context.Canceled}
	s := newServer(t, sent)
	for name, tt := range map[string]struct {
		ctx       context.Context
		with      func(*sesv2.Options)
		category  idemmail.Category
		retryable bool
	}{
		"cancelled before": {ended, func(*sesv2.Options) {}, idemmail.CategoryUnknown, true},
		"too late before":  {late, func(*sesv2.Options) {}, idemmail.CategoryTimeout, true},
		"refused":          {t.Context(), func(o *sesv2.Options) { o.BaseEndpoint = aws.String(refusing(t)) }, idemmail.CategoryNetwork, true},
		"no such host":     {t.Context(), dialer(func(context.Context) error { return &net.DNSError{Err: "no such host", IsNotFound: true} }), idemmail.CategoryNetwork, true},
		"dial fails oddly": {t.Context(), dialer(func(context.Context) error { return errors.New("no route") }), idemmail.CategoryNetwork, true},
		"dial is lost":     {t.Context(), dialer(func(context.Context) error { return io.EOF }), idemmail.CategoryNetwork, true},
		"ends while dialling": {dialing, dialer(func(context.Context) error {
			close(dialing.done)
			<-t.Context().Done() // net/http goes on dialling, for others
			return t.Context().Err()
		}), idemmail.CategoryTimeout, true},
		"no credentials": {t.Context(), provider(func(context.Context) error { return errors.New("no profile") }), idemmail.CategoryUnknown, true},
		"credentials end in a 500": {t.Context(), provider(func(context.Context) error {
			return &smithy.OperationError{ServiceID: "STS", OperationName: "AssumeRole", Err: answered(500)}
		}), idemmail.CategoryUnknown, true},
		"ends while looking for credentials": {looking, provider(func(ctx context.Context) error {
			close(looking.done)
			<-ctx.Done()
			return ctx.Err()
		}), idemmail.CategoryUnknown, true},
		"no endpoint": {t.Context(), func(o *sesv2.Options) { o.BaseEndpoint, o.Region = nil, "not a region" }, idemmail.CategoryUnknown, true},
		"not TLS": {t.Context(), func(o *sesv2.Options) {
			o.BaseEndpoint = aws.String(strings.Replace(s.URL, "http:", "https:", 1))
		}, idemmail.CategoryNetwork, true},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := newTransport(t, newClient(t, s.URL, tt.with), sestransport.Options{}).Send(tt.ctx, message())
			requireFailed(t, r, err)
			require.Equal(t, tt.category, r.Category, "%v", err)
			require.Equal(t, tt.retryable, r.Retryable)
			require.NotEmpty(t, r.Code)
		})
	}
	require.Zero(t, s.count())
}

func TestCertificateOfAStranger(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(sent))
	s.Config.ErrorLog = quiet()
	s.StartTLS()
	defer s.Close()
	r, err := newTransport(t, newClient(t, s.URL), sestransport.Options{}).Send(t.Context(), message())
	requireFailed(t, r, err)
	require.Equal(t, idemmail.CategoryNetwork, r.Category)
	require.False(t, r.Retryable)
}

// refusing returns the URL of a port that nothing listens on.
func refusing(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	return "http://" + l.Addr().String()
}

// big is more than the kernel takes of what nobody reads.
func big() *idemmail.Message {
	m := message()
	m.Attachments = []idemmail.Attachment{{Filename: "big.bin", Content: make([]byte, 6<<20)}}
	return m
}

// stuck listens, reads the beginning of a request, and then does as it is told.
func stuck(t *testing.T, then func(conn *net.TCPConn)) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer func() { _ = conn.Close() }()
		tcp := conn.(*net.TCPConn)
		_ = tcp.SetReadBuffer(4 << 10)
		_, _ = io.ReadFull(tcp, make([]byte, 1<<10))
		then(tcp)
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	return "http://" + l.Addr().String()
}

// SES has the hash of the body in the signature: half a body is no request.
func TestConnectionBreaksWhileTheRequestIsWritten(t *testing.T) {
	t.Run("reset", func(t *testing.T) {
		url := stuck(t, func(conn *net.TCPConn) { _ = conn.SetLinger(0) })
		r, err := newTransport(t, newClient(t, url), sestransport.Options{}).Send(t.Context(), big())
		requireFailed(t, r, err)
		require.Equal(t, idemmail.CategoryNetwork, r.Category)
		require.True(t, r.Retryable)
	})
	t.Run("context ends", func(t *testing.T) {
		ctx := ending{t.Context(), make(chan struct{}), context.DeadlineExceeded}
		url := stuck(t, func(conn *net.TCPConn) {
			close(ctx.done)
			<-t.Context().Done() // until the test has ended; reads nothing
		})
		r, err := newTransport(t, newClient(t, url), sestransport.Options{}).Send(ctx, big())
		requireFailed(t, r, err)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, idemmail.CategoryTimeout, r.Category)
	})
}
