package main

import (
	"io"
	"net"
	"net/mail"
	"strings"
	"sync"

	"github.com/emersion/go-smtp"
)

// keyHeader is where the server finds the key of a mail.
const keyHeader = "X-Idempotency-Key"

// A server is a mail server that takes every mail and counts them.
type server struct {
	addr string
	stop func()

	mu    sync.Mutex
	count map[string]int // by key
}

func startServer() (*server, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &server{addr: listener.Addr().String(), count: make(map[string]int)}
	smtpServer := smtp.NewServer(smtp.BackendFunc(func(*smtp.Conn) (smtp.Session, error) { return session{s}, nil }))
	smtpServer.Domain = "mail.example.com"
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = smtpServer.Serve(listener) // until it is closed
	}()
	s.stop = func() {
		_ = smtpServer.Close()
		<-served
	}
	return s, nil
}

// received is how often the mail of a key has come in.
func (s *server) received(key string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.count[key]
}

func (s *server) total() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.count {
		n += c
	}
	return n
}

type session struct{ server *server }

func (session) Mail(string, *smtp.MailOptions) error { return nil }
func (session) Rcpt(string, *smtp.RcptOptions) error { return nil }
func (session) Reset()                               {}
func (session) Logout() error                        { return nil }

// Data counts a mail, once all of it has come: a read that fails means that
// the sender went away in the middle of it.
func (s session) Data(r io.Reader) error {
	content, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	m, err := mail.ReadMessage(strings.NewReader(string(content)))
	if err != nil {
		return err
	}
	s.server.mu.Lock()
	defer s.server.mu.Unlock()
	s.server.count[m.Header.Get(keyHeader)]++
	return nil
}
