package smtptransport_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/emersion/go-sasl"
	"github.com/emersion/go-smtp"
	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/internal/testserver"
	"github.com/idemmail/idemmail/smtptransport"
)

// A tlsServer is a go-smtp server with a certificate that only roots know.
type tlsServer struct {
	addr  string
	roots *x509.CertPool
	close func()

	mechanisms []string // what it offers; it knows PLAIN, LOGIN and XOAUTH2

	mu        sync.Mutex
	taken     []string
	usedAuth  []string
	plainText bool // something came without TLS
}

func (s *tlsServer) messages() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.taken...)
}

// newTLSServer starts one that speaks TLS from the first octet, or after
// STARTTLS.
func newTLSServer(t testing.TB, startTLS bool, mechanisms ...string) *tlsServer {
	t.Helper()
	return newTLSServerFor(t, startTLS, tls.NoClientCert, mechanisms...)
}

func newTLSServerFor(t testing.TB, startTLS bool, clientAuth tls.ClientAuthType, mechanisms ...string) *tlsServer {
	t.Helper()
	certificate, roots := testserver.Certificate(t, "mx.test")
	s := &tlsServer{roots: roots, mechanisms: mechanisms}
	server := smtp.NewServer(smtp.BackendFunc(func(c *smtp.Conn) (smtp.Session, error) {
		return &tlsSession{server: s, conn: c}, nil
	}))
	server.Domain = "mx.test"
	server.TLSConfig = &tls.Config{Certificates: []tls.Certificate{certificate}, ClientAuth: clientAuth}
	server.EnableSMTPUTF8 = true
	server.ErrorLog = quiet{}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s.addr = l.Addr().String()
	if !startTLS {
		l = tls.NewListener(l, server.TLSConfig)
	}
	var wg sync.WaitGroup
	wg.Go(func() { _ = server.Serve(l) })
	s.close = sync.OnceFunc(func() {
		ctx, cancel := context.WithTimeout(background, 10*time.Second)
		defer cancel()
		_ = server.Shutdown(ctx) // waits for the connections
		wg.Wait()
	})
	t.Cleanup(s.close)
	return s
}

type quiet struct{}

func (quiet) Printf(string, ...any) {}
func (quiet) Println(...any)        {}

type tlsSession struct {
	server *tlsServer
	conn   *smtp.Conn
}

func (s *tlsSession) AuthMechanisms() []string { return s.server.mechanisms }

func (s *tlsSession) Auth(mechanism string) (sasl.Server, error) {
	s.server.mu.Lock()
	s.server.usedAuth = append(s.server.usedAuth, mechanism)
	s.server.mu.Unlock()
	switch mechanism {
	case sasl.Plain:
		return sasl.NewPlainServer(func(_, username, password string) error { return check(username, password) }), nil
	case sasl.Login:
		return &loginServer{}, nil
	case "XOAUTH2":
		return &tokenServer{}, nil
	}
	return nil, smtp.ErrAuthUnknownMechanism
}

func check(username, password string) error {
	if username != "ann" || password != "secret" {
		return smtp.ErrAuthFailed
	}
	return nil
}

type loginServer struct{ username string }

func (l *loginServer) Next(response []byte) ([]byte, bool, error) {
	if l.username == "" {
		l.username = string(response)
		return []byte("Password:"), false, nil
	}
	return nil, true, check(l.username, string(response))
}

type tokenServer struct{}

func (*tokenServer) Next(response []byte) ([]byte, bool, error) {
	if string(response) != "user=ann\x01auth=Bearer fresh\x01\x01" {
		return nil, true, smtp.ErrAuthFailed
	}
	return nil, true, nil
}

func (s *tlsSession) Mail(string, *smtp.MailOptions) error {
	if _, ok := s.conn.TLSConnectionState(); !ok {
		s.server.mu.Lock()
		s.server.plainText = true
		s.server.mu.Unlock()
	}
	return nil
}
func (*tlsSession) Rcpt(string, *smtp.RcptOptions) error { return nil }
func (*tlsSession) Reset()                               {}
func (*tlsSession) Logout() error                        { return nil }

// Data takes a message that came whole: a cut one ends in an error.
func (s *tlsSession) Data(r io.Reader) error {
	message, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	s.server.mu.Lock()
	defer s.server.mu.Unlock()
	s.server.taken = append(s.server.taken, string(message))
	return nil
}

// secure returns a transport that trusts the server.
func secure(t testing.TB, s *tlsServer, mode smtptransport.TLSMode, change ...func(*smtptransport.Options)) *smtptransport.Transport {
	t.Helper()
	return transport(t, s.addr, append([]func(*smtptransport.Options){func(o *smtptransport.Options) {
		o.TLS = mode
		o.TLSConfig = &tls.Config{RootCAs: s.roots}
	}}, change...)...)
}

func TestTLS(t *testing.T) {
	for name, mode := range map[string]smtptransport.TLSMode{"STARTTLS": smtptransport.StartTLS, "implicit": smtptransport.ImplicitTLS} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newTLSServer(t, mode == smtptransport.StartTLS)
			r, err := secure(t, s, mode).Send(background, letter())
			wantOutcome(t, idemmail.StatusSent, r, err)
			require.Len(t, s.messages(), 1)
			require.False(t, s.plainText)
		})
		t.Run(name+", a batch over one connection", func(t *testing.T) {
			t.Parallel()
			s := newTLSServer(t, mode == smtptransport.StartTLS)
			for _, result := range secure(t, s, mode).SendMany(background, []*idemmail.Message{letter(), letter(), letter()}) {
				wantOutcome(t, idemmail.StatusSent, result.Receipt, result.Err)
			}
			require.Len(t, s.messages(), 3)
		})
		t.Run(name+", unknown authority", func(t *testing.T) {
			t.Parallel()
			s := newTLSServer(t, mode == smtptransport.StartTLS)
			r, err := transport(t, s.addr, func(o *smtptransport.Options) { o.TLS = mode }).Send(background, letter())
			wantOutcome(t, idemmail.StatusFailed, r, err)
			require.Equal(t, smtptransport.PhaseTLS, phaseOf(t, err))
			require.Equal(t, idemmail.CategoryNetwork, r.Category)
			require.False(t, r.Retryable)
			require.Equal(t, smtptransport.CodeTLS, r.Code)
			var untrusted *tls.CertificateVerificationError
			require.ErrorAs(t, err, &untrusted)
		})
		t.Run(name+", another name", func(t *testing.T) {
			t.Parallel()
			s := newTLSServer(t, mode == smtptransport.StartTLS)
			r, err := secure(t, s, mode, func(o *smtptransport.Options) { o.TLSConfig.ServerName = "mx.example.com" }).Send(background, letter())
			wantOutcome(t, idemmail.StatusFailed, r, err)
			require.Equal(t, smtptransport.CodeTLS, r.Code)
			require.False(t, r.Retryable)
		})
	}
}

// What came in the clear after the server's word that TLS may begin would pass
// for protected.
func TestStartTLSInjection(t *testing.T) {
	t.Parallel()
	s := newScriptedServer(t, map[string]step{"STARTTLS": saysAndCuts("220 go\r\n250 injected\r\n")}, "STARTTLS")
	r, err := transport(t, s.addr, func(o *smtptransport.Options) { o.TLS = smtptransport.StartTLS }).Send(background, letter())
	wantOutcome(t, idemmail.StatusFailed, r, err)
	require.Equal(t, smtptransport.PhaseTLS, phaseOf(t, err))
	require.Equal(t, smtptransport.CodeProtocol, r.Code)
}

func TestStartTLSEnds(t *testing.T) {
	for _, row := range []struct {
		name      string
		script    map[string]step
		code      string
		category  idemmail.Category
		retryable bool
	}{
		{"greeting 554", map[string]step{"greeting": says("554 no")}, "smtp.554", idemmail.CategoryProvider, false},
		{"EHLO 421", map[string]step{"EHLO": says("421 busy")}, "smtp.421", idemmail.CategoryProvider, true},
		{"STARTTLS 454", map[string]step{"STARTTLS": says("454 4.7.0 TLS not available")}, "smtp.454", idemmail.CategoryProvider, true},
		{"STARTTLS lost", map[string]step{"STARTTLS": cuts}, "smtp.network", idemmail.CategoryNetwork, true},
		{"STARTTLS hangs", map[string]step{"STARTTLS": hangs}, "smtp.timeout", idemmail.CategoryTimeout, true},
		{"handshake lost", map[string]step{"STARTTLS": saysAndCuts("220 go\r\n")}, "smtp.network", idemmail.CategoryNetwork, true},
		{"handshake hangs", map[string]step{"STARTTLS": func(c *peer) bool { return c.reply("220 go") && hangs(c) }}, "smtp.timeout", idemmail.CategoryTimeout, true},
		{"handshake garbled", map[string]step{"STARTTLS": func(c *peer) bool {
			c.reply("220 go")
			c.in.ReadByte() // of the handshake: what comes now is not ahead of it
			return c.reply("250 what is this?") && hangs(c)
		}}, "smtp.tls", idemmail.CategoryNetwork, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			s := newScriptedServer(t, row.script, "STARTTLS")
			r, err := transport(t, s.addr, func(o *smtptransport.Options) {
				o.TLS = smtptransport.StartTLS
				o.Timeout = 300 * time.Millisecond
			}).Send(background, letter())
			wantOutcome(t, idemmail.StatusFailed, r, err)
			require.Equal(t, smtptransport.PhaseTLS, phaseOf(t, err))
			require.Equal(t, row.code, r.Code)
			require.Equal(t, row.category, r.Category)
			require.Equal(t, row.retryable, r.Retryable)
		})
	}
}

func TestAuth(t *testing.T) {
	ann := func(o *smtptransport.Options) { o.Username, o.Password = "ann", "secret" }
	for _, row := range []struct {
		name       string
		mechanisms []string
		change     func(*smtptransport.Options)
		used       []string
		status     idemmail.Status
		code       string
	}{
		{"PLAIN", []string{"LOGIN", "PLAIN"}, ann, []string{"PLAIN"}, idemmail.StatusSent, ""},
		{"LOGIN where there is no PLAIN", []string{"LOGIN"}, ann, []string{"LOGIN"}, idemmail.StatusSent, ""},
		{"neither", []string{"XOAUTH2"}, ann, nil, idemmail.StatusFailed, smtptransport.CodeAuth},
		{"wrong password", []string{"PLAIN"}, func(o *smtptransport.Options) { o.Username, o.Password = "ann", "guess" }, []string{"PLAIN"}, idemmail.StatusFailed, "smtp.535"},
		{"wrong password with LOGIN", []string{"LOGIN"}, func(o *smtptransport.Options) { o.Username, o.Password = "ann", "guess" }, []string{"LOGIN"}, idemmail.StatusFailed, "smtp.535"},
		{"a mechanism of one's own", []string{"PLAIN", "XOAUTH2"}, func(o *smtptransport.Options) {
			o.Auth = func() sasl.Client { return token("fresh") }
		}, []string{"XOAUTH2"}, idemmail.StatusSent, ""},
		{"a stale token", []string{"XOAUTH2"}, func(o *smtptransport.Options) {
			o.Auth = func() sasl.Client { return token("stale") }
		}, []string{"XOAUTH2"}, idemmail.StatusFailed, "smtp.535"},
		{"no client", []string{"XOAUTH2"}, func(o *smtptransport.Options) {
			o.Auth = func() sasl.Client { return nil }
		}, nil, idemmail.StatusFailed, smtptransport.CodeAuth},
		{"a client that fails", []string{"XOAUTH2"}, func(o *smtptransport.Options) {
			o.Auth = func() sasl.Client { return token("") }
		}, nil, idemmail.StatusFailed, smtptransport.CodeAuth},
		{"none asked for", []string{"PLAIN"}, func(*smtptransport.Options) {}, nil, idemmail.StatusSent, ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			s := newTLSServer(t, true, row.mechanisms...)
			r, err := secure(t, s, smtptransport.StartTLS, row.change).Send(background, letter())
			wantOutcome(t, row.status, r, err)
			require.Equal(t, row.used, s.usedAuth)
			require.False(t, s.plainText)
			if row.status == idemmail.StatusFailed {
				require.Equal(t, smtptransport.PhaseAuth, phaseOf(t, err))
				require.Equal(t, idemmail.CategoryAuth, r.Category)
				require.False(t, r.Retryable)
				require.Equal(t, row.code, r.Code)
				require.NotContains(t, err.Error(), "guess")
			}
		})
	}
}

// token is XOAUTH2: two methods.
type token string

func (c token) Start() (string, []byte, error) {
	if c == "" {
		return "", nil, errors.New("no token to be had")
	}
	return "XOAUTH2", []byte("user=ann\x01auth=Bearer " + string(c) + "\x01\x01"), nil
}

func (token) Next([]byte) ([]byte, error) { return nil, sasl.ErrUnexpectedServerChallenge }

// A server that wants a certificate of the client says so after the handshake
// of TLS 1.3.
func TestClientCertificateWanted(t *testing.T) {
	t.Parallel()
	s := newTLSServerFor(t, false, tls.RequireAnyClientCert)
	r, err := secure(t, s, smtptransport.ImplicitTLS).Send(background, letter())
	wantOutcome(t, idemmail.StatusFailed, r, err)
	require.Equal(t, smtptransport.CodeTLS, r.Code)
	require.False(t, r.Retryable)
}

// No credential crosses a connection without TLS where TLS was asked for.
func TestCredentialsNeverInTheClear(t *testing.T) {
	t.Parallel()
	s := newScriptedServer(t, nil, "AUTH PLAIN LOGIN")
	r, err := transport(t, s.addr, func(o *smtptransport.Options) {
		o.TLS = smtptransport.StartTLS
		o.Username, o.Password = "ann", "secret"
	}).Send(background, letter())
	wantOutcome(t, idemmail.StatusFailed, r, err)
	_, commands, _, _ := s.seen()
	require.NotContains(t, strings.Join(commands, "\n"), "AUTH")
}
