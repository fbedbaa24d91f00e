package idemmail

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/textproto"
	"reflect"
	"syscall"
)

// Delivery is what an error says about a message.
type Delivery int

const (
	DeliveryUnspecified Delivery = iota // it does not say
	NotDelivered                        // the message was not taken
	DeliveryUnknown                     // the message may have been taken
)

// ClassifyError reads from an error whether the message was taken. It is what
// Options.Classify is by default. A nil error is DeliveryUnspecified.
//
// Of the links of a chain (what Unwrap() error leads through) the first of
// these rules that any link meets decides, and among links that meet the same
// rule the outermost:
//
//  1. A link with a method DeliveryUnknown() bool: as it says. [NotSent] and
//     [MayBeSent] make such links. A [SendError] says unknown unless its status
//     is failed. [ErrDeliveryUnknown] itself is unknown.
//  2. A server's answer. A [textproto.Error] of 400 to 599 is not delivered,
//     any other code unknown. A method HTTPStatusCode() int that answers 400
//     to 499 is not delivered, any other code unknown: a proxy answers 502,
//     503 and 504 for requests that it did forward. A code of 0 or less is no
//     answer and says nothing.
//  3. A connection that was never made: [net.DNSError]; [net.OpError] of op
//     "dial", also where it timed out or was cancelled; ECONNREFUSED;
//     [tls.CertificateVerificationError], the errors of crypto/x509 and
//     [tls.RecordHeaderError]: not delivered. TLS alerts are not among them,
//     since they come in mid-session too.
//  4. A connection that was lost, or not waited for: a method Timeout() bool
//     that answers true (as every [net.Error] has it), [io.EOF],
//     [io.ErrUnexpectedEOF], [io.ErrClosedPipe], [net.ErrClosed], a reset,
//     broken pipe or another errno of a lost connection, [context.Canceled],
//     [context.DeadlineExceeded]: unknown. So is a nil pointer in the chain:
//     it is most often a success that was returned as an error by mistake.
//  5. Anything else: unspecified.
//
// Where a chain parts (Unwrap() []error, as errors.Join and fmt.Errorf with
// several %w make it), each branch is a chain of its own, with the links
// before the parting in front. Unknown beats unspecified, and unspecified
// beats not delivered. Only the first 10,000 links of an error are looked at;
// one with more of them, or one that unwraps to itself, is unknown.
func ClassifyError(err error) Delivery { return readError(err).delivery }

// NotSent marks an error as one after which the message was certainly not
// taken, so that sending it again cannot double it. The text stays the same
// and errors.Is and errors.As see through the mark. Of several marks the
// outermost counts. NotSent(nil) is nil.
func NotSent(err error) error { return mark(err, false) }

// MayBeSent marks an error as one after which the message may have been taken.
// Otherwise it is as [NotSent].
func MayBeSent(err error) error { return mark(err, true) }

func mark(err error, unknown bool) error {
	if err == nil {
		return nil
	}
	return &markedError{err, unknown}
}

// A markedError is an error with a word on the delivery.
type markedError struct {
	err     error
	unknown bool
}

func (e *markedError) Error() string         { return e.err.Error() }
func (e *markedError) Unwrap() error         { return e.err }
func (e *markedError) DeliveryUnknown() bool { return e.unknown }

// maxLinks bounds the walk through an error that has no end.
const maxLinks = 10_000

// rule is a rule of ClassifyError. The lowest that a chain meets decides.
type rule int

const (
	ruleMark rule = iota
	ruleAnswer
	ruleCertificate // rule 3, but another kind: trying again will not help
	ruleConnect
	ruleLost
	ruleNone
)

// A reading is what the links of one chain have said so far. Delivery and kind
// are decided apart: a mark says nothing about the kind.
type reading struct {
	delivery   Delivery
	deliveryBy rule
	kind       kind
	kindBy     rule
}

func readError(err error) reading {
	links := maxLinks
	return reading{deliveryBy: ruleNone, kind: kindUnknown, kindBy: ruleNone}.follow(err, &links)
}

// follow reads the chain that begins with err, after the links that r is of.
func (r reading) follow(err error, links *int) reading {
	for err != nil {
		if *links--; *links < 0 || isNilPointer(err) {
			r.note(ruleLost, DeliveryUnknown, kindUnknown)
			return r
		}
		r.look(err)
		switch e := err.(type) {
		case interface{ Unwrap() error }:
			err = e.Unwrap()
		case interface{ Unwrap() []error }:
			return r.part(e.Unwrap(), links)
		default:
			return r
		}
	}
	return r
}

// part reads each branch and returns the reading that decides: the first of
// the strongest delivery whose kind is known, else the first of them.
func (r reading) part(branches []error, links *int) reading {
	decides, found := r, false
	for _, err := range branches {
		if err == nil {
			continue
		}
		b := r.follow(err, links)
		switch was, is := strength(decides.delivery), strength(b.delivery); {
		case !found, is > was, is == was && decides.kindBy == ruleNone && b.kindBy != ruleNone:
			decides, found = b, true
		}
	}
	return decides
}

func strength(d Delivery) int {
	switch d {
	case NotDelivered:
		return 0
	case DeliveryUnknown:
		return 2
	default:
		return 1
	}
}

// look reads one link.
func (r *reading) look(err error) {
	if e, ok := err.(*SendError); ok {
		r.lookAtSendError(e)
		return
	}
	r.lookForMark(err)
	r.lookForAnswer(err)
	switch {
	case isCertificateError(err):
		r.note(ruleCertificate, NotDelivered, kind{CategoryNetwork, false})
	case isConnectError(err):
		r.note(ruleConnect, NotDelivered, kind{CategoryNetwork, true})
	case isTimeout(err):
		r.note(ruleLost, DeliveryUnknown, kind{CategoryTimeout, true})
	case isLost(err):
		r.note(ruleLost, DeliveryUnknown, kind{CategoryNetwork, true})
	case is(err, context.Canceled):
		r.note(ruleLost, DeliveryUnknown, kindUnknown)
	}
}

func (r *reading) lookAtSendError(e *SendError) {
	if e.Receipt == nil { // not made by this package, which always has one
		r.noteDelivery(ruleMark, DeliveryUnknown)
		return
	}
	r.noteDelivery(ruleMark, markOf(e.DeliveryUnknown()))
	if e.Receipt.Category != "" {
		r.noteKind(ruleMark, kind{e.Receipt.Category, e.Receipt.Retryable})
	}
}

func (r *reading) lookForMark(err error) {
	if e, ok := as[interface{ DeliveryUnknown() bool }](err); ok {
		r.noteDelivery(ruleMark, markOf(e.DeliveryUnknown()))
	} else if is(err, ErrDeliveryUnknown) {
		r.noteDelivery(ruleMark, DeliveryUnknown)
	}
}

func markOf(unknown bool) Delivery {
	if unknown {
		return DeliveryUnknown
	}
	return NotDelivered
}

func (r *reading) lookForAnswer(err error) {
	if e, ok := as[*textproto.Error](err); ok && e != nil {
		d := DeliveryUnknown
		if 400 <= e.Code && e.Code <= 599 {
			d = NotDelivered
		}
		r.note(ruleAnswer, d, replyKind(e.Code))
	}
	if e, ok := as[interface{ HTTPStatusCode() int }](err); ok {
		code := e.HTTPStatusCode()
		switch {
		case code <= 0:
		case 400 <= code && code <= 499:
			r.note(ruleAnswer, NotDelivered, httpKind(code))
		default:
			r.note(ruleAnswer, DeliveryUnknown, httpKind(code))
		}
	}
}

func (r *reading) note(by rule, d Delivery, k kind) {
	r.noteDelivery(by, d)
	r.noteKind(by, k)
}

func (r *reading) noteDelivery(by rule, d Delivery) {
	if by < r.deliveryBy {
		r.delivery, r.deliveryBy = d, by
	}
}

func (r *reading) noteKind(by rule, k kind) {
	if by < r.kindBy {
		r.kind, r.kindBy = k, by
	}
}

func isCertificateError(err error) bool {
	return isA[*tls.CertificateVerificationError](err) ||
		isA[tls.RecordHeaderError](err) ||
		isA[x509.CertificateInvalidError](err) ||
		isA[x509.ConstraintViolationError](err) ||
		isA[x509.HostnameError](err) ||
		isA[x509.InsecureAlgorithmError](err) ||
		isA[x509.SystemRootsError](err) ||
		isA[x509.UnhandledCriticalExtension](err) ||
		isA[x509.UnknownAuthorityError](err) ||
		is(err, x509.ErrUnsupportedAlgorithm) ||
		is(err, x509.IncorrectPasswordError)
}

func isConnectError(err error) bool {
	if isA[*net.DNSError](err) {
		return true
	}
	if e, ok := as[*net.OpError](err); ok && e != nil && e.Op == "dial" {
		return true
	}
	e, ok := as[syscall.Errno](err)
	return ok && (e == syscall.ECONNREFUSED || e == wsaConnRefused)
}

func isTimeout(err error) bool {
	if e, ok := as[interface{ Timeout() bool }](err); ok && e.Timeout() {
		return true
	}
	e, ok := as[syscall.Errno](err)
	return ok && e == wsaTimedOut || is(err, context.DeadlineExceeded)
}

func isLost(err error) bool {
	if e, ok := as[syscall.Errno](err); ok {
		switch e {
		case syscall.ECONNRESET, syscall.ECONNABORTED, syscall.EPIPE,
			syscall.ENETRESET, syscall.ENOTCONN, syscall.ESHUTDOWN,
			// A connection that has been made can end in these as well; one
			// that has not ends in the OpError of its dial.
			syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.ENETDOWN,
			wsaNetDown, wsaNetUnreach, wsaNetReset, wsaConnAborted, wsaConnReset,
			wsaNotConn, wsaShutdown, wsaHostUnreach:
			return true
		}
	}
	return is(err, io.EOF) || is(err, io.ErrUnexpectedEOF) || is(err, io.ErrClosedPipe) || is(err, net.ErrClosed)
}

// What Windows answers instead of the errno of the same name, which package
// syscall makes up there. Nothing else has numbers as high.
const (
	wsaNetDown     syscall.Errno = 10050
	wsaNetUnreach  syscall.Errno = 10051
	wsaNetReset    syscall.Errno = 10052
	wsaConnAborted syscall.Errno = 10053
	wsaConnReset   syscall.Errno = 10054
	wsaNotConn     syscall.Errno = 10057
	wsaShutdown    syscall.Errno = 10058
	wsaTimedOut    syscall.Errno = 10060
	wsaConnRefused syscall.Errno = 10061
	wsaHostUnreach syscall.Errno = 10065
)

// as is errors.As for one link.
func as[T any](err error) (T, bool) {
	if t, ok := err.(T); ok {
		return t, true
	}
	if e, ok := err.(interface{ As(any) bool }); ok {
		var t T
		ok := e.As(&t)
		return t, ok
	}
	var none T
	return none, false
}

func isA[T any](err error) bool {
	_, ok := as[T](err)
	return ok
}

// is is errors.Is for one link. The targets are all comparable.
func is(err, target error) bool {
	if err == target {
		return true
	}
	e, ok := err.(interface{ Is(error) bool })
	return ok && e.Is(target)
}

// isNilPointer keeps methods from being called on nothing.
func isNilPointer(err error) bool {
	v := reflect.ValueOf(err)
	return v.Kind() == reflect.Pointer && v.IsNil()
}
