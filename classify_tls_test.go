package idemmail_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"io"
	"math/big"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func inTenYears() time.Time { return time.Now().AddDate(10, 0, 0) }

// tlsTrusted makes a client trust the certificate of its server.
func tlsTrusted(config *tls.Config, cert *x509.Certificate) {
	config.RootCAs = x509.NewCertPool()
	config.RootCAs.AddCert(cert)
}

// selfSigned makes a certificate for mail.example.
func selfSigned(t *testing.T) (tls.Certificate, *x509.Certificate) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "mail.example"},
		DNSNames:              []string{"mail.example"},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(time.Hour),
		IsCA:                  true,
		BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, cert
}

func verifyCertificate(t *testing.T, trust bool, opts x509.VerifyOptions) error {
	_, cert := selfSigned(t)
	opts.Roots = x509.NewCertPool()
	if trust {
		opts.Roots.AddCert(cert)
	}
	_, err := cert.Verify(opts)
	return err
}

func verifyUnknownAuthority(t *testing.T) error {
	return verifyCertificate(t, false, x509.VerifyOptions{})
}
func verifyExpired(t *testing.T) error {
	return verifyCertificate(t, true, x509.VerifyOptions{CurrentTime: inTenYears()})
}
func verifyWrongHost(t *testing.T) error {
	return verifyCertificate(t, true, x509.VerifyOptions{DNSName: "other.example"})
}

// tlsConn is a client of a TLS server that reads until the end, or calls serve.
func tlsConn(t *testing.T, server, client *tls.Config, trust func(*tls.Config, *x509.Certificate), serve func(*tls.Conn)) *tls.Conn {
	pair, cert := selfSigned(t)
	server.Certificates = []tls.Certificate{pair}
	if client.ServerName == "" {
		client.ServerName = "mail.example"
	}
	if trust != nil {
		trust(client, cert)
	} else {
		client.RootCAs = x509.NewCertPool()
	}
	addr := listenTCP(t, func(c net.Conn) {
		s := tls.Server(c, server)
		if s.Handshake() == nil {
			serve(s)
		}
		untilClosed(c)
	})
	conn := tls.Client(dialTCP(t, addr), client)
	t.Cleanup(func() { conn.Close() })
	return conn
}

func tlsHandshake(client *tls.Config, trust func(*tls.Config, *x509.Certificate)) func(*testing.T) error {
	return func(t *testing.T) error {
		conn := tlsConn(t, &tls.Config{}, client.Clone(), trust, func(*tls.Conn) {})
		defer conn.Close()
		return conn.Handshake()
	}
}

func handshakePlain(t *testing.T) error {
	addr := listenTCP(t, func(c net.Conn) { io.WriteString(c, "220 mail.example ESMTP\r\n"); untilClosed(c) })
	conn := tls.Client(dialTCP(t, addr), &tls.Config{ServerName: "mail.example"})
	defer conn.Close()
	return conn.Handshake()
}

// In TLS 1.3 the client's handshake is over before the server has seen the
// certificate: the alert answers what the client has written.
func alertCertificateRequired(t *testing.T) error {
	conn := tlsConn(t, &tls.Config{ClientAuth: tls.RequireAnyClientCert, MinVersion: tls.VersionTLS13}, &tls.Config{}, tlsTrusted, func(*tls.Conn) {})
	defer conn.Close()
	require.NoError(t, conn.Handshake())
	_, err := conn.Read(make([]byte, 1))
	return err
}

func alertProtocolVersion(t *testing.T) error {
	conn := tlsConn(t, &tls.Config{MaxVersion: tls.VersionTLS12}, &tls.Config{MinVersion: tls.VersionTLS13}, tlsTrusted, func(*tls.Conn) {})
	defer conn.Close()
	return conn.Handshake()
}

// tlsLost ends the connection without the alert that ends a session.
func tlsLost(t *testing.T) error {
	conn := tlsConn(t, &tls.Config{}, &tls.Config{}, tlsTrusted, func(s *tls.Conn) { s.NetConn().(*net.TCPConn).CloseWrite() })
	defer conn.Close()
	_, err := io.ReadFull(conn, make([]byte, 1))
	return err
}
