package idemmail

import (
	"net/mail"
	"net/textproto"
	"time"
)

// A Message is a mail to be sent. The zero value of every field means "none".
// A message that has been given to Send must not be changed until Send has
// returned; the same message may be sent by several goroutines at once.
type Message struct {
	From        mail.Address
	ReplyTo     []mail.Address
	To, Cc, Bcc []mail.Address
	Subject     string
	Text, HTML  string
	Header      textproto.MIMEHeader // further header fields
	Attachments []Attachment

	MessageID  string   // the Message-ID, without angle brackets; empty: made by the transport, or from Options.MessageIDDomain
	InReplyTo  string   // a Message-ID without angle brackets
	References []string // Message-IDs without angle brackets

	SendAt   time.Time // when the provider is to send it; zero: now
	Tracking Tracking
	Tags     []string
	Metadata map[string]string // for the provider's events; not part of the mail

	// IdempotencyKey names the sending of this message, once. It must be the
	// same each time that the same mail is attempted (campaign and recipient,
	// order and kind), and never a random value or the id of a job that may be
	// enqueued again. Keys are stored and logged as they are: no addresses.
	// Empty: the message is sent as it is, without any of this package's care,
	// unless Options.Key derives a key.
	IdempotencyKey string
}

// An Attachment is a file that goes with a [Message].
type Attachment struct {
	Filename    string
	ContentType string // a media type (RFC 2045); empty: left to the transport
	ContentID   string // without angle brackets, for cid: references from the HTML body
	Inline      bool   // Content-Disposition inline instead of attachment
	Content     []byte // the bytes themselves, not encoded
}

// Tracking says whether a provider is to count openings and clicks.
// Nil leaves it to the provider's own settings.
type Tracking struct{ Opens, Clicks *bool }

// A RawMessage is a mail that is already in RFC 5322 form, with the envelope
// that it is to travel in.
type RawMessage struct {
	From           string   // envelope sender (RFC 5321 reverse-path); empty: the null sender
	To             []string // envelope recipients
	Data           []byte   // header and body, RFC 5322
	IdempotencyKey string   // as in Message
}
