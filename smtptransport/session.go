package smtptransport

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/textproto"
	"strings"
	"time"

	"github.com/emersion/go-sasl"
	"github.com/emersion/go-smtp"

	"github.com/idemmail/idemmail"
)

// quitTimeout bounds the farewell, which changes nothing any more.
const quitTimeout = 2 * time.Second

// A session is a connection that is ready for messages.
type session struct {
	wire   *wire
	client *smtp.Client
	unbind func() bool // ends the hold of the context on the connection
	hello  string

	refused bool // the message before: RSET before the next
}

// open dials, secures the connection, greets and authenticates. The phase says
// how far it came.
//
// From the moment that there is a connection, the end of the context closes
// it, beneath TLS. That ends whatever waits for it, and never writes.
func (t *Transport) open(ctx context.Context) (*session, Phase, error) {
	conn, err := t.dial(ctx)
	if err != nil {
		return nil, PhaseDial, err
	}
	s := &session{wire: conn, hello: t.opts.Hello}
	s.unbind = context.AfterFunc(ctx, func() { conn.Close() })
	dialogue, err := t.secure(ctx, conn)
	if err != nil {
		s.abort()
		return nil, PhaseTLS, err
	}
	s.client = smtp.NewClient(dialogue)
	s.client.CommandTimeout = t.opts.Timeout
	s.client.SubmissionTimeout = t.opts.FinalTimeout
	if err := s.client.Hello(t.opts.Hello); err != nil {
		s.abort()
		return nil, PhaseHello, err
	}
	if err := t.authenticate(s.client); err != nil {
		s.abort()
		return nil, PhaseAuth, err
	}
	return s, PhaseAuth, nil
}

func (t *Transport) dial(ctx context.Context) (*wire, error) {
	ctx, cancel := context.WithTimeout(ctx, t.opts.Timeout)
	defer cancel()
	conn, err := t.opts.Dial(ctx, "tcp", t.opts.Addr)
	if err != nil {
		return nil, err
	}
	return &wire{Conn: conn, timeout: t.opts.Timeout}, nil
}

// secure does what Options.TLS asks for.
func (t *Transport) secure(ctx context.Context, w *wire) (*replies, error) {
	switch t.opts.TLS {
	case ImplicitTLS:
		return t.handshake(ctx, w, nil)
	case NoTLS:
		return newReplies(w), nil
	default:
		if err := t.startTLS(w); err != nil {
			return nil, err
		}
		return t.handshake(ctx, w, []byte("220 STARTTLS\r\n"))
	}
}

// handshake begins TLS. After STARTTLS the server greets no more, but go-smtp
// waits for that: it gets greeting instead.
func (t *Transport) handshake(ctx context.Context, w *wire, greeting []byte) (*replies, error) {
	if err := w.SetDeadline(time.Now().Add(t.opts.Timeout)); err != nil {
		return nil, err
	}
	conn := tls.Client(w, t.opts.TLSConfig)
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, err
	}
	r := newReplies(conn)
	r.rest = greeting
	return r, nil
}

// startTLS speaks up to the server's word that TLS may begin (RFC 3207 4).
// go-smtp's own way gives the wrong name and bounds nothing.
func (t *Transport) startTLS(w *wire) error {
	r := newReplies(w)
	text := textproto.NewConn(r)
	ask := func(code int, command string) (string, error) {
		if err := w.SetDeadline(time.Now().Add(t.opts.Timeout)); err != nil {
			return "", err
		}
		if command != "" {
			if err := text.PrintfLine("%s", command); err != nil {
				return "", err
			}
		}
		_, message, err := text.ReadResponse(code)
		return message, err
	}
	if _, err := ask(220, ""); err != nil {
		return err
	}
	extensions, err := ask(250, "EHLO "+t.opts.Hello)
	if err != nil {
		return err
	}
	if !offers(extensions, "STARTTLS") {
		return errNoStartTLS
	}
	if _, err := ask(220, "STARTTLS"); err != nil {
		return err
	}
	if r.unread() || text.R.Buffered() > 0 {
		return errUnasked // it would count as if TLS had protected it
	}
	return nil
}

// offers reports whether an extension is among the lines of an answer to EHLO.
func offers(extensions, keyword string) bool {
	for i, line := range strings.Split(extensions, "\n") {
		word, _, _ := strings.Cut(line, " ")
		if i > 0 && strings.EqualFold(word, keyword) { // the first line is the server's name
			return true
		}
	}
	return false
}

func (t *Transport) authenticate(c *smtp.Client) error {
	if !t.opts.needsAuth() {
		return nil
	}
	var mechanism sasl.Client
	switch {
	case t.opts.Auth != nil:
		if mechanism = t.opts.Auth(); mechanism == nil {
			return errNoClient
		}
	case c.SupportsAuth(sasl.Plain):
		mechanism = sasl.NewPlainClient("", t.opts.Username, t.opts.Password)
	case c.SupportsAuth(sasl.Login):
		mechanism = sasl.NewLoginClient(t.opts.Username, t.opts.Password)
	default:
		return errNoMechanism
	}
	return c.Auth(mechanism)
}

// deliver has the dialogue about one message, from MAIL to the reply to the
// final dot.
func (s *session) deliver(ctx context.Context, l *letter) outcome {
	if err := s.mail(l); err != nil {
		return failedAt(PhaseMail, err)
	}
	o := s.recipients(l.recipients)
	if o.err != nil {
		return o
	}
	data, err := s.client.Data()
	if err != nil {
		return o.at(PhaseData, err)
	}
	// From here on nothing but closing the connection takes the message back:
	// go-smtp would end a half-written one with a dot.
	if _, err := data.Write(l.data); err != nil {
		return o.at(PhaseBody, err)
	}
	if err := ctx.Err(); err != nil {
		return o.at(PhaseBody, err)
	}
	s.wire.watch()
	response, err := data.CloseWithResponse()
	o = o.at(PhaseDot, err)
	o.final = s.wire.whole
	switch {
	case err == nil:
		o.reply = newReply(250, response.StatusText)
	case o.final && o.reply.accepted():
		o.err = nil // go-smtp takes nothing but 250 for success
	case o.status() == idemmail.StatusUnknown:
		o.err = fmt.Errorf("%w: %w", errNoReply, o.err)
	}
	return o
}

// mail begins a transaction.
func (s *session) mail(l *letter) error {
	if s.refused {
		if err := s.client.Reset(); err != nil {
			return err
		}
		// go-smtp greets anew after RSET. Asked for its extensions first, it
		// would take an error in that for an extension that is not offered.
		if err := s.client.Hello(s.hello); err != nil {
			return err
		}
	}
	if limit, _ := s.client.MaxMessageSize(); limit > 0 && len(l.data) > limit {
		return errTooLarge
	}
	if offered, _ := s.client.Extension("SMTPUTF8"); l.utf8 && !offered {
		return errNoSMTPUTF8
	}
	if offered, _ := s.client.Extension("8BITMIME"); l.eightBit && !offered {
		return errNo8BitMIME
	}
	return s.client.Mail(l.from, &smtp.MailOptions{Size: int64(len(l.data)), UTF8: l.utf8})
}

// recipients names them one by one. Those that are refused do not keep the
// others from getting the message; 421 does, as it ends the session.
func (s *session) recipients(recipients []mailbox) outcome {
	var o outcome
	var last outcome // the refusal that stands for all: one that may be tried again, if there is one
	for _, m := range recipients {
		err := s.client.Rcpt(m.wire, nil)
		if err == nil {
			o.accepted = append(o.accepted, m.given)
			continue
		}
		refusal := failedAt(PhaseRcpt, err)
		if !refusal.usable() {
			refusal.rejected = o.rejected
			return refusal
		}
		o.rejected = append(o.rejected, idemmail.Rejection{
			Address: m.given,
			Reason:  refusal.reply.String(),
			Code:    refusal.reply.code,
		})
		if last.err == nil || !last.reply.transient() {
			last = refusal
		}
	}
	if len(o.accepted) == 0 {
		o.phase, o.err, o.reply = last.phase, last.err, last.reply
	}
	return o
}

// quit takes leave. Whatever comes of that, the connection is closed, and soon.
func (s *session) quit() {
	timer := time.AfterFunc(quitTimeout, func() { s.wire.Close() })
	defer timer.Stop()
	_ = s.client.Quit() // what was taken is taken
	s.abort()
}

// abort closes the connection without a word.
func (s *session) abort() {
	s.unbind()
	s.wire.Close()
}
