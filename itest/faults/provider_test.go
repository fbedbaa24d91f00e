package faults_test

import (
	"bufio"
	"errors"
	"io"
	"log"
	"net"
	"net/textproto"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/emersion/go-smtp"
	"github.com/stretchr/testify/require"
)

// A provider is a mail server in the test's process: it outlives every sender,
// and knows which messages it has accepted.
type provider struct {
	addr string
	end  chan struct{} // closed with the server

	mu       sync.Mutex            // of what follows
	accepted map[string][]delivery // by key
	plans    map[string]plan
}

// A plan is what the provider does with the next message under a key.
type plan struct {
	stage   stage
	reached chan struct{}   // closed once the stage is reached
	until   <-chan struct{} // how long it then does nothing
}

// A stage is how far a message came at the provider.
type stage int

const (
	underWay stage = iota + 1 // the header has come, the message is not accepted
	accepted                  // it is, and the reply has not been sent
	refused                   // for good
)

func startProvider(t testing.TB) *provider {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &provider{addr: l.Addr().String(), end: make(chan struct{}), accepted: map[string][]delivery{}, plans: map[string]plan{}}
	server := smtp.NewServer(smtp.BackendFunc(func(*smtp.Conn) (smtp.Session, error) { return session{p}, nil }))
	server.Domain = "mail.example.com"
	server.ErrorLog = log.New(io.Discard, "", 0) // of senders that are killed
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(l) // until it is closed
	}()
	t.Cleanup(func() {
		close(p.end)
		_ = server.Close()
		<-served
	})
	return p
}

// next plans what becomes of the next message under the key, and answers what
// is closed once it has come so far. The provider then does nothing more with
// it until it may.
func (p *provider) next(key string, s stage, until <-chan struct{}) (reached <-chan struct{}) {
	c := make(chan struct{})
	p.mu.Lock()
	defer p.mu.Unlock()
	p.plans[key] = plan{s, c, until}
	return c
}

// A delivery is a message that the provider has accepted.
type delivery struct {
	at time.Time
	by int // the PID of the worker
}

// deliveries answers those under the key.
func (p *provider) deliveries(key string) []delivery {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.accepted[key]
}

func (p *provider) planOf(key string) plan {
	p.mu.Lock()
	defer p.mu.Unlock()
	plan := p.plans[key]
	delete(p.plans, key)
	return plan
}

func (p *provider) accept(header textproto.MIMEHeader) {
	pid, _, _ := strings.Cut(strings.Trim(header.Get("Message-ID"), "<"), ".")
	d := delivery{at: time.Now()}
	d.by, _ = strconv.Atoi(pid)
	key := header.Get("X-Idempotency-Key")
	p.mu.Lock()
	defer p.mu.Unlock()
	p.accepted[key] = append(p.accepted[key], d)
}

type session struct{ provider *provider }

func (session) Mail(string, *smtp.MailOptions) error { return nil }
func (session) Rcpt(string, *smtp.RcptOptions) error { return nil }
func (session) Reset()                               {}
func (session) Logout() error                        { return nil }

func (s session) Data(r io.Reader) error {
	b := bufio.NewReader(r)
	header, err := textproto.NewReader(b).ReadMIMEHeader()
	if err != nil {
		return err
	}
	plan := s.provider.planOf(header.Get("X-Idempotency-Key"))
	if plan.stage == underWay {
		s.wait(plan)
		return errors.New("the sender went away")
	}
	if _, err := io.Copy(io.Discard, b); err != nil {
		return err
	}
	if plan.stage == refused {
		return &smtp.SMTPError{Code: 550, EnhancedCode: smtp.EnhancedCode{5, 1, 1}, Message: "no such user"}
	}
	s.provider.accept(header)
	if plan.stage == accepted {
		s.wait(plan)
	}
	return nil
}

func (s session) wait(p plan) {
	close(p.reached)
	select {
	case <-p.until:
	case <-s.provider.end:
	}
}
