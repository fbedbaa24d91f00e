package idemmail_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/textproto"
	"net/url"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
)

const (
	unspecified  = idemmail.DeliveryUnspecified
	notDelivered = idemmail.NotDelivered
	unknown      = idemmail.DeliveryUnknown
)

// errPlain says nothing of the delivery.
var errPlain = errors.New("mailbox on fire")

// httpError is what an HTTP adapter might return.
type httpError struct {
	code int
	err  error
}

func (e *httpError) Error() string       { return fmt.Sprint("status ", e.code) }
func (e *httpError) HTTPStatusCode() int { return e.code }
func (e *httpError) Unwrap() error       { return e.err }

// teller is an adapter's error with a word on the delivery.
type teller struct {
	unknown bool
	err     error
}

func (e teller) Error() string         { return "told" }
func (e teller) DeliveryUnknown() bool { return e.unknown }
func (e teller) Unwrap() error         { return e.err }

// timeout is a net.Error.
type timeout struct{ over bool }

func (timeout) Error() string   { return "waited" }
func (e timeout) Timeout() bool { return e.over }
func (timeout) Temporary() bool { return true }

// opaque has the methods Is and As of another error, but does not unwrap to it.
type opaque struct{ err error }

func (opaque) Error() string          { return "opaque" }
func (e opaque) Is(target error) bool { return errors.Is(e.err, target) }
func (e opaque) As(target any) bool   { return errors.As(e.err, target) }
func sendError(s idemmail.Status) error {
	return &idemmail.SendError{Receipt: &idemmail.Receipt{Status: s}}
}
func reply(code int) error               { return &textproto.Error{Code: code, Msg: "so it goes"} }
func opError(op string, err error) error { return &net.OpError{Op: op, Net: "tcp", Err: err} }

// Each row is one line of the contract's list. None is in the rules' order by
// chance: an outer link of a later rule loses to an inner one of an earlier.
func TestClassifyErrorRules(t *testing.T) {
	for _, test := range []struct {
		name string
		err  error
		want idemmail.Delivery
	}{
		{"nil error", nil, unspecified},

		{"1 DeliveryUnknown true", teller{unknown: true}, unknown},
		{"1 DeliveryUnknown false", teller{unknown: false}, notDelivered},
		{"1 NotSent", idemmail.NotSent(errPlain), notDelivered},
		{"1 MayBeSent", idemmail.MayBeSent(errPlain), unknown},
		{"1 NotSent of a lost connection", idemmail.NotSent(io.EOF), notDelivered},
		{"1 MayBeSent of a refusal", idemmail.MayBeSent(reply(550)), unknown},
		{"1 NotSent of a joined error", idemmail.NotSent(errors.Join(errPlain, io.EOF)), notDelivered},
		{"1 the outermost of two marks: NotSent", idemmail.NotSent(idemmail.MayBeSent(errPlain)), notDelivered},
		{"1 the outermost of two marks: MayBeSent", idemmail.MayBeSent(idemmail.NotSent(errPlain)), unknown},
		{"1 before 2, from inside", &httpError{502, idemmail.NotSent(errPlain)}, notDelivered},
		{"1 before 3, from inside", opError("dial", idemmail.MayBeSent(errPlain)), unknown},
		{"1 before 4, from inside", &url.Error{Op: "Post", Err: idemmail.NotSent(timeout{true})}, notDelivered},
		{"1 SendError sent", sendError(idemmail.StatusSent), unknown},
		{"1 SendError failed", sendError(idemmail.StatusFailed), notDelivered},
		{"1 SendError unknown", sendError(idemmail.StatusUnknown), unknown},
		{"1 SendError of a status of another version", sendError("queued"), unknown},
		{"1 SendError failed, of a lost connection", &idemmail.SendError{Receipt: &idemmail.Receipt{Status: idemmail.StatusFailed}, Err: io.EOF}, notDelivered},
		{"1 SendError without a receipt", &idemmail.SendError{Err: reply(550)}, unknown},
		{"1 ErrDeliveryUnknown", idemmail.ErrDeliveryUnknown, unknown},

		{"2 reply 399", reply(399), unknown},
		{"2 reply 400", reply(400), notDelivered},
		{"2 reply 421", reply(421), notDelivered},
		{"2 reply 550", reply(550), notDelivered},
		{"2 reply 599", reply(599), notDelivered},
		{"2 reply 600", reply(600), unknown},
		{"2 reply 250", reply(250), unknown},
		{"2 reply 354", reply(354), unknown},
		{"2 reply 0", reply(0), unknown},
		{"2 HTTP 100", &httpError{code: 100}, unknown},
		{"2 HTTP 200", &httpError{code: 200}, unknown},
		{"2 HTTP 302", &httpError{code: 302}, unknown},
		{"2 HTTP 399", &httpError{code: 399}, unknown},
		{"2 HTTP 400", &httpError{code: 400}, notDelivered},
		{"2 HTTP 408", &httpError{code: 408}, notDelivered},
		{"2 HTTP 429", &httpError{code: 429}, notDelivered},
		{"2 HTTP 499", &httpError{code: 499}, notDelivered},
		{"2 HTTP 500", &httpError{code: 500}, unknown},
		{"2 HTTP 502", &httpError{code: 502}, unknown},
		{"2 HTTP 503", &httpError{code: 503}, unknown},
		{"2 HTTP 504", &httpError{code: 504}, unknown},
		{"2 HTTP 600", &httpError{code: 600}, unknown},
		{"2 HTTP 0 is no answer", &httpError{code: 0}, unspecified},
		{"2 HTTP 0 leaves the word to its cause", &httpError{0, opError("dial", errPlain)}, notDelivered},
		{"2 the outermost of two answers", &httpError{502, reply(550)}, unknown},
		{"2 before 3, from inside", opError("dial", &httpError{code: 502}), unknown},
		{"2 before 4, from inside", &url.Error{Op: "Post", Err: &httpError{422, timeout{true}}}, notDelivered},
		{"2 before 4, from outside", &httpError{400, io.ErrUnexpectedEOF}, notDelivered},

		{"3 net.DNSError", &net.DNSError{Err: "no such host"}, notDelivered},
		{"3 net.DNSError that timed out", &net.DNSError{Err: "timeout", IsTimeout: true}, notDelivered},
		{"3 net.OpError of op dial", opError("dial", errPlain), notDelivered},
		{"3 net.OpError of op dial that timed out", opError("dial", timeout{true}), notDelivered},
		{"3 net.OpError of op dial, cancelled", opError("dial", context.Canceled), notDelivered},
		{"3 net.OpError of op dial, reset", opError("dial", os.NewSyscallError("connect", syscall.ECONNRESET)), notDelivered},
		{"3 ECONNREFUSED", syscall.ECONNREFUSED, notDelivered},
		{"3 ECONNREFUSED of op read", opError("read", os.NewSyscallError("read", syscall.ECONNREFUSED)), notDelivered},
		{"3 tls.CertificateVerificationError", &tls.CertificateVerificationError{Err: errPlain}, notDelivered},
		{"3 tls.RecordHeaderError", tls.RecordHeaderError{Msg: "first record"}, notDelivered},
		{"3 x509.CertificateInvalidError", x509.CertificateInvalidError{}, notDelivered},
		{"3 x509.ConstraintViolationError", x509.ConstraintViolationError{}, notDelivered},
		{"3 x509.HostnameError", x509.HostnameError{Certificate: &x509.Certificate{}}, notDelivered},
		{"3 x509.InsecureAlgorithmError", x509.InsecureAlgorithmError(x509.MD5WithRSA), notDelivered},
		{"3 x509.SystemRootsError", x509.SystemRootsError{}, notDelivered},
		{"3 x509.UnhandledCriticalExtension", x509.UnhandledCriticalExtension{}, notDelivered},
		{"3 x509.UnknownAuthorityError", x509.UnknownAuthorityError{}, notDelivered},
		{"3 x509.ErrUnsupportedAlgorithm", x509.ErrUnsupportedAlgorithm, notDelivered},
		{"3 x509.IncorrectPasswordError", x509.IncorrectPasswordError, notDelivered},
		{"3 before 4, from inside", &url.Error{Op: "Post", Err: opError("dial", timeout{true})}, notDelivered},
		{"3 TLS alerts are not here", opError("remote error", tls.AlertError(80)), unspecified},

		{"4 net.Error that timed out", timeout{true}, unknown},
		{"4 net.Error that did not time out", timeout{false}, unspecified},
		{"4 net.OpError of op read that timed out", opError("read", timeout{true}), unknown},
		{"4 os.ErrDeadlineExceeded", os.ErrDeadlineExceeded, unknown},
		{"4 ETIMEDOUT", syscall.ETIMEDOUT, unknown},
		{"4 io.EOF", io.EOF, unknown},
		{"4 io.ErrUnexpectedEOF", io.ErrUnexpectedEOF, unknown},
		{"4 io.ErrClosedPipe", io.ErrClosedPipe, unknown},
		{"4 net.ErrClosed", net.ErrClosed, unknown},
		{"4 connection reset", syscall.ECONNRESET, unknown},
		{"4 connection aborted", syscall.ECONNABORTED, unknown},
		{"4 broken pipe", syscall.EPIPE, unknown},
		{"4 no route to host in mid-session", opError("read", os.NewSyscallError("read", syscall.EHOSTUNREACH)), unknown},
		{"4 Windows: connection reset", opError("read", os.NewSyscallError("wsarecv", syscall.Errno(10054))), unknown},
		{"4 Windows: connection timed out", opError("read", os.NewSyscallError("wsarecv", syscall.Errno(10060))), unknown},
		{"3 Windows: connection refused", syscall.Errno(10061), notDelivered},
		{"4 context.Canceled", context.Canceled, unknown},
		{"4 context.DeadlineExceeded", context.DeadlineExceeded, unknown},
		{"4 a nil pointer of net.OpError", (*net.OpError)(nil), unknown},
		{"4 a nil pointer of textproto.Error", (*textproto.Error)(nil), unknown},
		{"4 a nil pointer of SendError", (*idemmail.SendError)(nil), unknown},
		{"4 a nil pointer of an adapter's error", (*httpError)(nil), unknown},
		{"4 a nil pointer inside", fmt.Errorf("send: %w", (*httpError)(nil)), unknown},
		{"2 before a nil pointer", &httpError{400, (*net.OpError)(nil)}, notDelivered},

		{"5 a plain error", errPlain, unspecified},
		{"5 an errno of another kind", syscall.ENOENT, unspecified},
		{"5 net.OpError of another op", opError("listen", errPlain), unspecified},
		{"5 an error whose Unwrap answers nil", &httpError{}, unspecified},
		{"5 ErrKeyReused alone", idemmail.ErrKeyReused, unspecified},

		{"Is of a link: io.EOF", opaque{io.EOF}, unknown},
		{"Is of a link: context.Canceled", opaque{context.Canceled}, unknown},
		{"Is of a link: context.DeadlineExceeded", opaque{context.DeadlineExceeded}, unknown},
		{"Is of a link: ErrDeliveryUnknown", opaque{idemmail.ErrDeliveryUnknown}, unknown},
		{"As of a link: textproto.Error", opaque{reply(550)}, notDelivered},
		{"As of a link: HTTPStatusCode", opaque{&httpError{code: 502}}, unknown},
		{"As of a link: DeliveryUnknown", opaque{idemmail.NotSent(io.EOF)}, notDelivered},
		{"As of a link: errno", opaque{syscall.ECONNREFUSED}, notDelivered},
	} {
		t.Run(test.name, func(t *testing.T) {
			require.Equal(t, test.want, idemmail.ClassifyError(test.err))
			if test.err == nil {
				return
			}
			wrapped := fmt.Errorf("job 7: %w", fmt.Errorf("mailer: %w", fmt.Errorf("attempt 2: %w", test.err)))
			require.Equal(t, test.want, idemmail.ClassifyError(wrapped), "wrapped three deep")
			require.Equal(t, test.want, idemmail.ClassifyError(errors.Join(nil, wrapped)), "joined alone")
		})
	}
}

// Each branch of a joined error is classified alone; unknown beats unspecified
// beats not delivered, in whatever order they stand.
func TestClassifyErrorJoined(t *testing.T) {
	is := map[idemmail.Delivery]error{
		unspecified:  errPlain,
		notDelivered: reply(550),
		unknown:      io.EOF,
	}
	for _, test := range []struct {
		name        string
		a, b, wants idemmail.Delivery
	}{
		{"unknown beats unspecified", unknown, unspecified, unknown},
		{"unknown beats not delivered", unknown, notDelivered, unknown},
		{"unspecified beats not delivered", unspecified, notDelivered, unspecified},
		{"not delivered twice", notDelivered, notDelivered, notDelivered},
		{"unspecified twice", unspecified, unspecified, unspecified},
		{"unknown twice", unknown, unknown, unknown},
	} {
		t.Run(test.name, func(t *testing.T) {
			a, b := is[test.a], is[test.b]
			for _, err := range []error{
				errors.Join(a, b),
				errors.Join(b, a),
				errors.Join(a, nil, b, a),
				fmt.Errorf("%w, then %w", a, b),
				fmt.Errorf("%w, then %w", b, a),
				errors.Join(a, fmt.Errorf("close: %w", fmt.Errorf("%w: %w", a, b))),
				fmt.Errorf("send: %w", errors.Join(fmt.Errorf("first: %w", a), fmt.Errorf("second: %w", b))),
			} {
				require.Equal(t, test.wants, idemmail.ClassifyError(err), "%v", err)
			}
		})
	}
}

// A branch is a chain of its own with the links before the parting in front.
func TestClassifyErrorLinksBeforeAParting(t *testing.T) {
	for _, test := range []struct {
		name string
		err  error
		want idemmail.Delivery
	}{
		{"an answer speaks for branches without one", &httpError{400, errors.Join(io.EOF, errPlain)}, notDelivered},
		{"an answer does not silence a mark in a branch", &httpError{400, errors.Join(errPlain, idemmail.MayBeSent(errPlain))}, unknown},
		{"a timeout does not silence answers", &url.Error{Op: "Post", Err: errors.Join(reply(451), reply(550))}, notDelivered},
		{"a mark holds for all", idemmail.NotSent(errors.Join(idemmail.MayBeSent(errPlain), io.EOF)), notDelivered},
		{"marks that differ by branch", errors.Join(idemmail.NotSent(io.EOF), idemmail.MayBeSent(reply(550))), unknown},
		{"each branch with its own mark", errors.Join(idemmail.NotSent(io.EOF), idemmail.NotSent(errPlain)), notDelivered},
	} {
		t.Run(test.name, func(t *testing.T) {
			require.Equal(t, test.want, idemmail.ClassifyError(test.err))
		})
	}
}

// endless unwraps to itself; branching does so twice.
type endless struct{}

func (e *endless) Error() string { return "again" }
func (e *endless) Unwrap() error { return e }

type branching struct{}

func (e *branching) Error() string   { return "again and again" }
func (e *branching) Unwrap() []error { return []error{e, nil, e} }

type barren struct{}

func (*barren) Error() string   { return "no branches" }
func (*barren) Unwrap() []error { return []error{nil} }

// list is an error of a type that can't be compared.
type list []error

func (list) Error() string     { return "list" }
func (l list) Unwrap() []error { return l }

func TestClassifyErrorOddUnwrap(t *testing.T) {
	require.Equal(t, unknown, idemmail.ClassifyError(&endless{}), "unwraps to itself")
	require.Equal(t, unknown, idemmail.ClassifyError(&branching{}), "parts into itself")
	require.Equal(t, notDelivered, idemmail.ClassifyError(idemmail.NotSent(&branching{})), "a mark in front")
	require.Equal(t, unspecified, idemmail.ClassifyError(&barren{}), "no branches")
	require.Equal(t, unspecified, idemmail.ClassifyError(list(nil)), "a nil list")
	require.Equal(t, unknown, idemmail.ClassifyError(list{reply(550), io.EOF}), "a list")

	deep := reply(550)
	for range 500 {
		deep = fmt.Errorf("%w", deep)
	}
	require.Equal(t, notDelivered, idemmail.ClassifyError(deep), "500 deep")
	wide := make([]error, 2000)
	for i := range wide {
		wide[i] = reply(550)
	}
	require.Equal(t, notDelivered, idemmail.ClassifyError(errors.Join(wide...)), "2000 wide")
}

func TestMarks(t *testing.T) {
	for name, mark := range map[string]func(error) error{"NotSent": idemmail.NotSent, "MayBeSent": idemmail.MayBeSent} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, mark(nil), "nil stays nil")
			cause := &httpError{code: 503, err: io.EOF}
			err := mark(cause)
			require.Equal(t, cause.Error(), err.Error(), "the text is unchanged")
			require.ErrorIs(t, err, io.EOF)
			var found *httpError
			require.ErrorAs(t, err, &found)
			require.Same(t, cause, found)
			var told interface{ DeliveryUnknown() bool }
			require.ErrorAs(t, err, &told)
			require.Equal(t, name == "MayBeSent", told.DeliveryUnknown())
		})
	}
}

func TestClassifyErrorAllocs(t *testing.T) {
	err := fmt.Errorf("send: %w", errors.Join(opError("read", os.NewSyscallError("read", syscall.ECONNRESET)), idemmail.NotSent(reply(550))))
	require.Zero(t, testing.AllocsPerRun(100, func() { idemmail.ClassifyError(err) }))
}
