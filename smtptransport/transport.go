// Package smtptransport sends mail over SMTP and tells the truth about what
// became of it.
//
// Whether a mail goes twice is decided by one question: after this error, may
// the message have gone? The server takes a message with the last octet of
// CRLF.CRLF, and says so in the reply to it. So, where F stands for "the
// kernel took that octet":
//
//   - not F, whatever happened: failed;
//   - F and a whole reply of 4yz or 5yz: failed; of 2yz: sent;
//   - F and no such reply (the connection was lost, the time has passed, the
//     context ended, the reply makes no sense): unknown.
//
// RFC 5321 3.8 would have a client send again after a lost connection. This
// package does not, and says that the outcome is unknown: that is what an
// idemmail.IdempotencyTransport around it keeps from going twice.
//
// What a message asks for that is not part of a mail (Tracking, Tags and
// Metadata, which are for a provider's API) is left out. A SendAt that is yet
// to come is refused, since SMTP sends now.
package smtptransport

import (
	"context"
	"time"

	"github.com/idemmail/idemmail"
)

// A Transport sends messages to one SMTP server. It is safe for concurrent
// use. It keeps no connection: each call makes one, uses it for all of its
// messages, and closes it.
//
// Every receipt is the caller's, and none is nil. It has the Message-ID, the
// server's last reply in Response, the recipients that the server refused in
// Rejected, each with its code, and for a sent message the others in Accepted
// and the queue id, where the reply tells it, in ProviderID. A message is sent
// when it was taken for some of its recipients; one that was refused for now
// (a code of 4yz) can be tried again in a message, and under a key, of its own.
//
// A receipt that is not sent comes with an *[Error]. Its Code is "smtp." and the
// server's reply code, or one of the Code constants; its Category follows the
// reply code and the enhanced status code.
type Transport struct {
	opts Options
	now  func() time.Time
}

var (
	_ idemmail.BatchTransport = (*Transport)(nil)
	_ idemmail.RawTransport   = (*Transport)(nil)
	_ idemmail.Identifier     = (*Transport)(nil)
)

// New returns a transport. It dials nothing. An error names the field of opts
// that is wrong.
func New(opts Options) (*Transport, error) {
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Transport{opts: opts, now: time.Now}, nil
}

// ID returns Options.ID.
func (t *Transport) ID() string { return t.opts.ID }

// Send sends one message.
//
// A message that cannot be sent as it is, is refused before anything is
// dialled, with an error that names the field: line ends and NUL in what goes
// into the header, names in Header that other fields stand for, an address
// with more than an address in it, no recipient, and so on. A recipient that
// is named twice gets the message once. Bcc is in the envelope only.
//
// Attachments go as base64, octet for octet, but for those of type message/*,
// which RFC 2046 5.2.1 lets nobody encode: they must be plain ASCII. Without a
// ContentType, the extension of the file name decides. Inline ones stand beside
// the HTML.
//
// Where MessageID is empty, a random one in the domain of From is used. A Date
// may be given in Header; else it is the present time. All else of the mail
// depends on the message alone.
func (t *Transport) Send(ctx context.Context, m *idemmail.Message) (*idemmail.Receipt, error) {
	r := t.SendMany(ctx, []*idemmail.Message{m})[0]
	return r.Receipt, r.Err
}

// SendMany sends messages one after another over one connection. Where the
// connection is lost, the next message gets a new one; so does a message that
// finds the connection closed before anything of it was said, as servers do
// that take a fixed number of messages. The messages that the end of the
// context leaves are failed.
func (t *Transport) SendMany(ctx context.Context, msgs []*idemmail.Message) []idemmail.Result {
	c := courier{transport: t}
	defer c.quit()
	results := make([]idemmail.Result, len(msgs))
	for i, m := range msgs {
		l, err := t.compose(m)
		results[i] = c.deliver(ctx, l, err)
	}
	return results
}

// SendRaw sends a message that is written down already. Lines that end in LF
// alone get the CR that SMTP demands, all else stays as it is. A CR without
// LF, a NUL and a line of more than 998 octets are refused. The header is not
// looked at, except for the Message-ID: it is the envelope that counts.
func (t *Transport) SendRaw(ctx context.Context, m *idemmail.RawMessage) (*idemmail.Receipt, error) {
	c := courier{transport: t}
	defer c.quit()
	l, err := composeRaw(m)
	r := c.deliver(ctx, l, err)
	return r.Receipt, r.Err
}

// A courier delivers messages over one connection, as long as it lasts.
type courier struct {
	transport *Transport
	session   *session // nil: none
}

// deliver delivers one letter, or answers that it could not be composed.
func (c *courier) deliver(ctx context.Context, l *letter, invalid *Error) idemmail.Result {
	if invalid != nil {
		return c.transport.answer(ctx, outcome{phase: PhaseMessage, field: invalid.Field, err: invalid.Err}, "")
	}
	return c.transport.answer(ctx, c.attempt(ctx, l), l.messageID)
}

// attempt opens a session, where there is none, and has the dialogue. It is
// done again only where a session that others have used was gone before the
// dialogue began, and then in a new one.
func (c *courier) attempt(ctx context.Context, l *letter) outcome {
	for {
		if err := ctx.Err(); err != nil {
			return failedAt(PhaseDial, err)
		}
		fresh := c.session == nil
		if fresh {
			s, phase, err := c.transport.open(ctx)
			if err != nil {
				return failedAt(phase, err)
			}
			c.session = s
		}
		o := c.session.deliver(ctx, l)
		c.session.refused = o.reply.refused()
		if !o.usable() {
			c.session.abort()
			c.session = nil
		}
		if fresh || !o.stale() {
			return o
		}
	}
}

// quit ends the session, if there is one.
func (c *courier) quit() {
	if c.session != nil {
		c.session.quit()
	}
}
