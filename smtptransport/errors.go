package smtptransport

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Phase is a part of the dialogue with the server.
type Phase string

// The phases, in the order in which a message goes through them.
const (
	PhaseMessage Phase = "message" // the message was looked at; nothing was dialled for it
	PhaseDial    Phase = "dial"
	PhaseTLS     Phase = "tls"   // handshake, with STARTTLS and what comes before it
	PhaseHello   Phase = "hello" // greeting and EHLO
	PhaseAuth    Phase = "auth"
	PhaseMail    Phase = "mail" // MAIL, with RSET after a refusal of the message before
	PhaseRcpt    Phase = "rcpt"
	PhaseData    Phase = "data" // DATA, up to the server's go-ahead
	PhaseBody    Phase = "body" // the message itself
	PhaseDot     Phase = "dot"  // the final dot and its reply
)

// An Error is the error beside every receipt whose status is not sent.
//
// It unwraps to its cause. Where the server refused, that is a
// *[textproto.Error]; where the context ended, it matches ctx.Err() and
// context.Cause(ctx); otherwise it is the error of package net, crypto/tls or
// io. The text may have addresses and what the server wrote.
type Error struct {
	Phase    Phase  // where it ended
	Field    string // PhaseMessage: the field of the message, such as "To[1].Address"; else empty
	Code     int    // the server's reply code; 0: it did not reply
	Enhanced string // the enhanced status code (RFC 3463) of the reply, such as "5.7.8"; empty: none
	Unknown  bool   // the message may have been taken
	Err      error  // never nil
}

// Error names the phase, or the field, and the cause.
func (e *Error) Error() string {
	s := "smtptransport: " + string(e.Phase) + ": "
	if e.Unknown {
		s = "smtptransport: outcome unknown: " + string(e.Phase) + ": "
	}
	if e.Field != "" {
		s += e.Field + ": "
	}
	return s + e.Err.Error()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// DeliveryUnknown reports whether the message may have been taken. It is what
// idemmail.ClassifyError asks.
func (e *Error) DeliveryUnknown() bool { return e.Unknown }

// invalid is the error of a field that cannot be sent as it is.
func invalid(field, format string, args ...any) *Error {
	return &Error{Phase: PhaseMessage, Field: field, Err: fmt.Errorf(format, args...)}
}

// What stands in the way besides refusals and the errors of other packages.
var (
	errNoStartTLS   = errors.New("server does not offer STARTTLS")
	errNoMechanism  = errors.New("server offers neither AUTH PLAIN nor AUTH LOGIN")
	errNoClient     = errors.New("Options.Auth returned nil")
	errUnasked      = errors.New("server wrote before it was asked")
	errReplyTooLong = errors.New("server's reply is too long")
	errNoReply      = errors.New("no reply that tells")
	errNoSMTPUTF8   = errors.New("message needs SMTPUTF8, which the server does not offer")
	errNo8BitMIME   = errors.New("message needs 8BITMIME, which the server does not offer")
	errTooLarge     = errors.New("message is larger than the server takes")
)

// codeClosing is the reply after which the server closes the connection (RFC
// 5321 3.8).
const codeClosing = 421

// A reply is a complete answer of the server. The zero reply is none.
type reply struct {
	code     int
	enhanced string // "5.7.8"
	text     string // what follows the code, lines joined by \n
}

func newReply(code int, text string) reply {
	r := reply{code: code, text: text}
	if word, _, _ := strings.Cut(text, " "); isEnhanced(word) {
		r.enhanced = word
	}
	return r
}

// String is the reply with its code, as it stands in receipts.
func (r reply) String() string {
	if r.code == 0 {
		return ""
	}
	return strings.TrimRight(strconv.Itoa(r.code)+" "+r.text, " ")
}

// refused reports whether the server took nothing (RFC 5321 4.2.1: the first
// digit decides).
func (r reply) refused() bool { return 400 <= r.code && r.code <= 599 }

// accepted reports whether the server did what it was asked.
func (r reply) accepted() bool { return 200 <= r.code && r.code <= 299 }

// transient reports whether trying again may help.
func (r reply) transient() bool { return 400 <= r.code && r.code <= 499 }

// isEnhanced reports whether s is an enhanced status code: class, subject and
// detail (RFC 3463 2).
func isEnhanced(s string) bool {
	class, rest, ok := strings.Cut(s, ".")
	if !ok || class != "2" && class != "4" && class != "5" {
		return false
	}
	subject, detail, ok := strings.Cut(rest, ".")
	return ok && isShortNumber(subject) && isShortNumber(detail)
}

func isShortNumber(s string) bool {
	if len(s) < 1 || len(s) > 3 {
		return false
	}
	for _, c := range []byte(s) {
		if c < '0' || c > '9' {
			return false
		}
	}
	return true
}

// ended adds what a done context says to the error that it led to, so that
// errors.Is finds both. It returns err where the context is not done.
func ended(ctx context.Context, err error) error {
	done := ctx.Err()
	if done == nil {
		return err
	}
	if !errors.Is(err, done) {
		err = fmt.Errorf("%w (%w)", done, err)
	}
	if cause := context.Cause(ctx); !errors.Is(err, cause) {
		err = fmt.Errorf("%w: %w", cause, err)
	}
	return err
}
