package smtptransport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/textproto"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/emersion/go-smtp"

	"github.com/idemmail/idemmail"
)

// The codes of receipts, where the server's reply does not give one
// ("smtp.550"). An unknown outcome of a send whose context ended has
// idemmail.CodeAborted.
const (
	CodeInvalid  = "smtp.invalid"  // the message cannot be sent as it is
	CodeCanceled = "smtp.canceled" // the context was cancelled
	CodeTimeout  = "smtp.timeout"  // the context's deadline, or Timeout or FinalTimeout, has passed
	CodeNetwork  = "smtp.network"  // no connection, or a lost one
	CodeTLS      = "smtp.tls"      // no TLS that can be trusted
	CodeAuth     = "smtp.auth"     // no mechanism, or it failed on this side
	CodeProtocol = "smtp.protocol" // the server said what it must not say
)

// An outcome is how the dialogue about one message ended.
type outcome struct {
	phase Phase
	field string // PhaseMessage
	// final: the kernel took the last octet of the final dot, so that the
	// server may have it.
	final    bool
	err      error // nil: the server took the message
	reply    reply // the last one, if it was whole
	accepted []string
	rejected []idemmail.Rejection
}

// status decides. Before the last octet of the dot is with the kernel, the
// server cannot take the message; after it, only a whole reply of the right
// kind tells (RFC 5321 4.2.1, 4.2.5).
func (o outcome) status() idemmail.Status {
	switch {
	case o.err == nil:
		return idemmail.StatusSent
	case o.final && !o.reply.refused():
		return idemmail.StatusUnknown
	default:
		return idemmail.StatusFailed
	}
}

// A kind is what a receipt says about an error.
type kind struct {
	code      string
	category  idemmail.Category
	retryable bool
}

// failedAt is the outcome of a dialogue that ended in a phase.
func failedAt(phase Phase, err error) outcome { return outcome{}.at(phase, err) }

// at notes what a phase ended in. A refusal becomes the error that package
// net/textproto has for it.
func (o outcome) at(phase Phase, err error) outcome {
	o.phase, o.err = phase, err
	if refusal, ok := as[*smtp.SMTPError](err); ok {
		text := refusal.Message
		if c := refusal.EnhancedCode; c != smtp.EnhancedCodeNotSet {
			text = fmt.Sprintf("%d.%d.%d %s", c[0], c[1], c[2], text)
		}
		o.reply = newReply(refusal.Code, text)
		o.err = &textproto.Error{Code: refusal.Code, Msg: text}
	} else if refusal, ok := as[*textproto.Error](err); ok {
		o.reply = newReply(refusal.Code, refusal.Msg)
	}
	return o
}

// usable reports whether the connection can carry the next message.
func (o outcome) usable() bool {
	return o.err == nil || o.reply.refused() && o.reply.code != codeClosing ||
		isAny(o.err, errNoSMTPUTF8, errNo8BitMIME, errTooLarge)
}

// stale reports whether the connection was gone before the message began.
func (o outcome) stale() bool {
	return o.phase == PhaseMail &&
		(o.reply.code == codeClosing || errors.Is(o.err, errUnasked) || isLost(o.err) && !isTimeout(o.err))
}

// kind reads the reply, if there is one, else the error.
func (o outcome) kind(ctx context.Context) kind {
	_, isGarbled := as[textproto.ProtocolError](o.err)
	switch {
	case o.phase == PhaseMessage:
		return kind{CodeInvalid, idemmail.CategoryValidation, false}
	case o.reply.refused():
		return o.reply.kind(o.phase)
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return kind{CodeTimeout, idemmail.CategoryTimeout, true}
	case ctx.Err() != nil:
		return kind{CodeCanceled, idemmail.CategoryUnknown, true}
	case isTimeout(o.err):
		return kind{CodeTimeout, idemmail.CategoryTimeout, true}
	case isAny(o.err, errNoSMTPUTF8, errNo8BitMIME, errTooLarge):
		return kind{CodeInvalid, idemmail.CategoryValidation, false}
	case o.reply.code != 0, isGarbled, isAny(o.err, smtp.ErrTooLongLine, errReplyTooLong, errUnasked):
		return kind{CodeProtocol, idemmail.CategoryProvider, true}
	// With TLS 1.3 the server's word on the client's certificate comes after
	// the handshake. Later alerts are of a connection that broke.
	case isAlert(o.err) && (o.phase == PhaseTLS || o.phase == PhaseHello), o.phase == PhaseTLS && !isLost(o.err):
		return kind{CodeTLS, idemmail.CategoryNetwork, false}
	case o.phase == PhaseAuth && !isLost(o.err):
		return kind{CodeAuth, idemmail.CategoryAuth, false}
	default:
		return kind{CodeNetwork, idemmail.CategoryNetwork, true}
	}
}

// kind reads a refusal (RFC 5321 4.2, RFC 4954 6, RFC 3463 3, and the registry
// of enhanced status codes that RFC 5248 began).
func (r reply) kind(phase Phase) kind {
	k := kind{"smtp." + strconv.Itoa(r.code), idemmail.CategoryProvider, r.transient()}
	_, detail, _ := strings.Cut(r.enhanced, ".")
	switch {
	case phase == PhaseAuth, r.code == 530, r.code == 534, r.code == 535, r.code == 538,
		detail == "7.8",  // credentials invalid
		detail == "7.9",  // mechanism too weak
		detail == "7.11": // needs encryption
		k.category = idemmail.CategoryAuth
	case detail == "7.28": // mail flood detected
		k.category = idemmail.CategoryRateLimit
	}
	return k
}

// answer turns an outcome into what Send returns.
func (t *Transport) answer(ctx context.Context, o outcome, messageID string) idemmail.Result {
	r := &idemmail.Receipt{
		Status:    o.status(),
		Transport: t.opts.ID,
		MessageID: messageID,
		Response:  o.reply.String(),
		Rejected:  o.rejected,
		At:        t.now().UTC().Truncate(time.Millisecond),
	}
	if r.Status == idemmail.StatusSent {
		r.Accepted = o.accepted
		r.ProviderID = queueID(o.reply.text)
		return idemmail.Result{Receipt: r}
	}
	err := o.error(ctx)
	k := o.kind(ctx)
	r.Code, r.Category, r.Retryable, r.Detail = k.code, k.category, k.retryable, err.Error()
	if err.Unknown {
		r.Retryable = false
		if ctx.Err() != nil {
			r.Code = idemmail.CodeAborted
		}
	}
	return idemmail.Result{Receipt: r, Err: err}
}

// error returns the error beside a receipt that is not sent.
func (o outcome) error(ctx context.Context) *Error {
	e := &Error{
		Phase:    o.phase,
		Field:    o.field,
		Code:     o.reply.code,
		Enhanced: o.reply.enhanced,
		Unknown:  o.status() == idemmail.StatusUnknown,
		Err:      o.err,
	}
	if !o.reply.refused() && o.phase != PhaseMessage {
		e.Err = ended(ctx, o.err)
	}
	return e
}

// queueID finds the server's own id of the message in the reply to the final
// dot. Each server has its own way; an empty id means that none was found.
func queueID(text string) string {
	if _, after, ok := strings.Cut(text, "queued as "); ok { // postfix, and many that follow it
		return firstWord(after)
	}
	for word := range strings.FieldsSeq(text) { // exim: "OK id=1abcde-..."
		if id, ok := strings.CutPrefix(word, "id="); ok {
			return firstWord(id)
		}
	}
	if before, _, ok := strings.Cut(text, " Message accepted"); ok { // sendmail, OpenSMTPD
		words := strings.Fields(before)
		if n := len(words); n > 0 && !isEnhanced(words[n-1]) {
			return words[n-1]
		}
	}
	return ""
}

func firstWord(s string) string {
	words := strings.Fields(s)
	if len(words) == 0 {
		return ""
	}
	return strings.Trim(words[0], "<>().,;")
}

func as[T error](err error) (T, bool) {
	var t T
	ok := errors.As(err, &t)
	return t, ok
}

func isAny(err error, targets ...error) bool {
	for _, target := range targets {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}

func isTimeout(err error) bool {
	e, ok := as[net.Error](err)
	return ok && e.Timeout()
}

// isAlert reports whether a TLS alert ended the connection. Package crypto/tls
// has no exported type for it outside of QUIC: it is the cause of an OpError of
// either of these.
func isAlert(err error) bool {
	e, ok := as[*net.OpError](err)
	return ok && (e.Op == "remote error" || e.Op == "local error")
}

// isLost reports whether the connection broke, rather than that something was
// said on it.
func isLost(err error) bool {
	_, ok := as[*net.OpError](err)
	return ok || isAny(err, io.EOF, io.ErrUnexpectedEOF, io.ErrClosedPipe, net.ErrClosed,
		syscall.ECONNRESET, syscall.EPIPE)
}
