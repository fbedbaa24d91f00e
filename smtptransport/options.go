package smtptransport

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/emersion/go-sasl"
)

// TLSMode says how the connection is protected.
type TLSMode int

const (
	// StartTLS begins in the clear and demands the STARTTLS extension (RFC
	// 3207), most often on port 587 or 25. It is mandatory: a server that does
	// not offer it gets no message.
	StartTLS TLSMode = iota

	// ImplicitTLS speaks TLS from the first octet (RFC 8314), most often on
	// port 465.
	ImplicitTLS

	// NoTLS sends everything in the clear, even where the server offers
	// STARTTLS. It is for servers on the same host or a trusted network.
	NoTLS
)

// What the zero values of [Options] stand for.
const (
	defaultHello        = "localhost"
	defaultID           = "smtp"
	defaultTimeout      = 30 * time.Second
	defaultFinalTimeout = 10 * time.Minute
)

// Options says where a [Transport] sends to, and how. Only Addr is required.
type Options struct {
	// Addr is the server, as host:port.
	Addr string

	// TLS says how the connection is protected. Zero: StartTLS, mandatory.
	TLS TLSMode

	// TLSConfig is used for StartTLS and ImplicitTLS. It is cloned; an empty
	// ServerName becomes the host of Addr. Nil: a zero config.
	TLSConfig *tls.Config

	// Username and Password are given by AUTH PLAIN or, where the server does
	// not offer that, LOGIN. Empty: no AUTH. A server that offers neither gets
	// no message. New refuses them with NoTLS, unless Addr is a loopback
	// address, so that they never cross a network in the clear.
	Username, Password string

	// Auth makes the client's side of any other mechanism, such as XOAUTH2 or
	// OAUTHBEARER with a fresh token. It is called once for each connection
	// and stands instead of Username and Password. As they are, it is refused
	// with NoTLS to another host. It must be safe for concurrent use.
	Auth func() sasl.Client

	// Hello is the name that EHLO gives: a domain, or an address literal such
	// as [192.0.2.1]. Empty: "localhost", which servers that take mail from
	// strangers may refuse.
	Hello string

	// Timeout bounds dialling, the TLS handshake, each command with its reply,
	// and each piece of the message as it is written. Zero: 30 seconds.
	Timeout time.Duration

	// FinalTimeout bounds the wait for the reply to the final dot, and nothing
	// else. A reply that does not come in time leaves the outcome unknown, so
	// it is long: RFC 5321 4.5.3.2.6 asks for ten minutes. Zero: 10 minutes.
	FinalTimeout time.Duration

	// Dial makes the network connection, beneath TLS. It must return soon
	// after its context ends. Nil: a net.Dialer.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)

	// KeyHeader names the header field that carries a message's idempotency
	// key, so that it can be found in the mail that arrived. Such a field can
	// then not be set by Message.Header. Raw messages are sent as they are.
	// Empty: the key is not part of the mail.
	KeyHeader string

	// ID is what the transport calls itself in receipts, and the default
	// namespace of its keys. Empty: "smtp".
	ID string
}

// wrong is the error of a field of Options.
func wrong(field, format string, args ...any) error {
	return fmt.Errorf("smtptransport: Options.%s: %w", field, fmt.Errorf(format, args...))
}

// withDefaults checks the options and fills in what zero values stand for.
// The error names the field and the rule.
func (o Options) withDefaults() (Options, error) {
	host, port, err := net.SplitHostPort(o.Addr)
	switch {
	case err != nil:
		return o, wrong("Addr", "must be host:port: %w", err)
	case host == "" || port == "":
		return o, wrong("Addr", "must be host:port, %q lacks one of them", o.Addr)
	case o.TLS < StartTLS || o.TLS > NoTLS:
		return o, wrong("TLS", "unknown mode %d", o.TLS)
	case o.Timeout < 0:
		return o, wrong("Timeout", "must not be negative")
	case o.FinalTimeout < 0:
		return o, wrong("FinalTimeout", "must not be negative")
	}
	if err := o.checkCredentials(host); err != nil {
		return o, err
	}
	if o.Hello == "" {
		o.Hello = defaultHello
	}
	if !isASCII(o.Hello) || len(o.Hello) > maxAddressOctets {
		return o, wrong("Hello", "must be at most %d octets of ASCII", maxAddressOctets)
	}
	if err := checkDomain(o.Hello); err != nil {
		return o, wrong("Hello", "%w", err)
	}
	if o.KeyHeader != "" {
		if err := checkHeaderName(o.KeyHeader); err != nil {
			return o, wrong("KeyHeader", "%w", err)
		}
		if strings.EqualFold(o.KeyHeader, "Date") {
			return o, wrong("KeyHeader", "must not be a field that every message has")
		}
	}
	if o.ID == "" {
		o.ID = defaultID
	}
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	if o.FinalTimeout == 0 {
		o.FinalTimeout = defaultFinalTimeout
	}
	if o.Dial == nil {
		o.Dial = new(net.Dialer).DialContext
	}
	if o.TLS != NoTLS {
		config := o.TLSConfig.Clone() // of nil: nil
		if config == nil {
			config = &tls.Config{}
		}
		if config.ServerName == "" {
			config.ServerName = host
		}
		o.TLSConfig = config
	}
	return o, nil
}

func (o Options) checkCredentials(host string) error {
	switch {
	case o.Auth != nil && (o.Username != "" || o.Password != ""):
		return wrong("Auth", "stands instead of Username and Password, not beside them")
	case o.Username == "" && o.Password != "":
		return wrong("Username", "is empty, but there is a Password")
	case strings.ContainsRune(o.Username, 0):
		return wrong("Username", "has a NUL")
	case strings.ContainsRune(o.Password, 0):
		return wrong("Password", "has a NUL")
	case o.TLS == NoTLS && o.needsAuth() && !isLoopback(host):
		return wrong("TLS", "NoTLS would send credentials in the clear to another host")
	}
	return nil
}

func (o Options) needsAuth() bool { return o.Auth != nil || o.Username != "" }

func isLoopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}
