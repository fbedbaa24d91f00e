// Package inbox is a mail server on loopback that takes mail and counts it, so
// that the examples can show what really arrived.
package inbox

import (
	"fmt"
	"io"
	"net"
	"net/mail"
	"strings"
	"sync"

	"github.com/emersion/go-smtp"
)

// Recipients that are not like others.
const (
	Refused = "nobody@example.org" // the server refuses this one
	Lost    = "lost@example.org"   // it takes the mail, and the connection breaks before it can say so
)

// An Inbox is a server that is running.
type Inbox struct {
	Addr string // host:port

	server *smtp.Server
	served chan struct{}

	mu    sync.Mutex
	mails map[string]int // by subject
	total int
}

// Start starts one. It runs until Close.
func Start() (*Inbox, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	b := &Inbox{
		Addr:   listener.Addr().String(),
		served: make(chan struct{}),
		mails:  make(map[string]int),
	}
	b.server = smtp.NewServer(smtp.BackendFunc(func(c *smtp.Conn) (smtp.Session, error) {
		return &session{inbox: b, conn: c}, nil
	}))
	b.server.Domain = "mail.example.org"
	go func() {
		defer close(b.served)
		_ = b.server.Serve(listener) // until it is closed
	}()
	return b, nil
}

// Close stops the server.
func (b *Inbox) Close() {
	_ = b.server.Close()
	<-b.served
}

// Received returns how many mails with the subject have arrived.
func (b *Inbox) Received(subject string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mails[subject]
}

// take counts a mail and returns the server's own id of it.
func (b *Inbox) take(subject string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mails[subject]++
	b.total++
	return fmt.Sprintf("Q%d", b.total)
}

// A session is one connection.
type session struct {
	inbox *Inbox
	conn  *smtp.Conn
	lost  bool
}

func (s *session) Mail(string, *smtp.MailOptions) error { return nil }
func (s *session) Reset()                               { s.lost = false }
func (s *session) Logout() error                        { return nil }

func (s *session) Rcpt(to string, _ *smtp.RcptOptions) error {
	switch to {
	case Refused:
		return &smtp.SMTPError{Code: 550, EnhancedCode: smtp.EnhancedCode{5, 1, 1}, Message: "No such user"}
	case Lost:
		s.lost = true
	}
	return nil
}

// Data takes a mail once all of it has come: a read that fails means that the
// sender went away in the middle of it.
func (s *session) Data(r io.Reader) error {
	content, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	m, err := mail.ReadMessage(strings.NewReader(string(content)))
	if err != nil {
		return err
	}
	id := s.inbox.take(m.Header.Get("Subject"))
	if s.lost {
		return s.conn.Close()
	}
	// Not an error: this is how go-smtp is told what to answer.
	return &smtp.SMTPError{Code: 250, EnhancedCode: smtp.EnhancedCode{2, 0, 0}, Message: "OK: queued as " + id}
}
