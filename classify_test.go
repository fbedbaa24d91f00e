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
	deliveryUnspecified = idemmail.DeliveryUnspecified
	notDelivered        = idemmail.NotDelivered
	deliveryUnknown     = idemmail.DeliveryUnknown
)

// errOnFire says nothing of the delivery.
var errOnFire = errors.New("mailbox on fire")

// httpError is what an HTTP adapter might return.
type httpError struct {
	code int
	err  error
}

func (e *httpError) Error() string       { return fmt.Sprint("status ", e.code) }
func (e *httpError) HTTPStatusCode() int { return e.code }
func (e *httpError) Unwrap() error       { return e.err }

// tellingError is an adapter's error with a word on the delivery.
type tellingError struct {
	unknown bool
	err     error
}

func (e tellingError) Error() string         { return "told" }
func (e tellingError) DeliveryUnknown() bool { return e.unknown }
func (e tellingError) Unwrap() error         { return e.err }

// timeoutError is a net.Error.
type timeoutError struct{ over bool }

func (timeoutError) Error() string   { return "waited" }
func (e timeoutError) Timeout() bool { return e.over }
func (timeoutError) Temporary() bool { return true }

// opaqueError has the method As of another error, but does not unwrap to it.
type opaqueError struct{ err error }

func (opaqueError) Error() string        { return "opaque" }
func (e opaqueError) As(target any) bool { return errors.As(e.err, target) }

// likeError has the method Is alone.
type likeError struct{ err error }

func (likeError) Error() string          { return "like" }
func (e likeError) Is(target error) bool { return errors.Is(e.err, target) }

func replyError(code int) error          { return &textproto.Error{Code: code, Msg: "so it goes"} }
func opError(op string, err error) error { return &net.OpError{Op: op, Net: "tcp", Err: err} }
func sendErrorOf(s idemmail.Status) error {
	return &idemmail.SendError{Receipt: &idemmail.Receipt{Status: s}}
}

// Each row is one line of the contract's list. None is in the rules' order by
// chance: an outer link of a later rule loses to an inner one of an earlier.
func TestClassifyErrorRules(t *testing.T) {
	for _, test := range []struct {
		name string
		err  error
		want idemmail.Delivery
	}{
		{"nil error", nil, deliveryUnspecified},

		{"1 DeliveryUnknown true", tellingError{unknown: true}, deliveryUnknown},
		{"1 DeliveryUnknown false", tellingError{unknown: false}, notDelivered},
		{"1 NotSent", idemmail.NotSent(errOnFire), notDelivered},
		{"1 MayBeSent", idemmail.MayBeSent(errOnFire), deliveryUnknown},
		{"1 NotSent of a lost connection", idemmail.NotSent(io.EOF), notDelivered},
		{"1 MayBeSent of a refusal", idemmail.MayBeSent(replyError(550)), deliveryUnknown},
		{"1 NotSent of a joined error", idemmail.NotSent(errors.Join(errOnFire, io.EOF)), notDelivered},
		{"1 the outermost of two marks: NotSent", idemmail.NotSent(idemmail.MayBeSent(errOnFire)), notDelivered},
		{"1 the outermost of two marks: MayBeSent", idemmail.MayBeSent(idemmail.NotSent(errOnFire)), deliveryUnknown},
		{"1 before 2, from inside", &httpError{502, idemmail.NotSent(errOnFire)}, notDelivered},
		{"1 before 3, from inside", opError("dial", idemmail.MayBeSent(errOnFire)), deliveryUnknown},
		{"1 before 4, from inside", &url.Error{Op: "Post", Err: idemmail.NotSent(timeoutError{true})}, notDelivered},
		{"1 SendError sent", sendErrorOf(idemmail.StatusSent), deliveryUnknown},
		{"1 SendError failed", sendErrorOf(idemmail.StatusFailed), notDelivered},
		{"1 SendError unknown", sendErrorOf(idemmail.StatusUnknown), deliveryUnknown},
		{"1 SendError of a status of another version", sendErrorOf("queued"), deliveryUnknown},
		{"1 SendError failed, of a lost connection", &idemmail.SendError{Receipt: &idemmail.Receipt{Status: idemmail.StatusFailed}, Err: io.EOF}, notDelivered},
		{"1 SendError without a receipt", &idemmail.SendError{Err: replyError(550)}, deliveryUnknown},
		{"1 ErrDeliveryUnknown", idemmail.ErrDeliveryUnknown, deliveryUnknown},

		{"2 reply 399", replyError(399), deliveryUnknown},
		{"2 reply 400", replyError(400), notDelivered},
		{"2 reply 421", replyError(421), notDelivered},
		{"2 reply 550", replyError(550), notDelivered},
		{"2 reply 599", replyError(599), notDelivered},
		{"2 reply 600", replyError(600), deliveryUnknown},
		{"2 reply 250", replyError(250), deliveryUnknown},
		{"2 reply 354", replyError(354), deliveryUnknown},
		{"2 reply 0", replyError(0), deliveryUnknown},
		{"2 HTTP 100", &httpError{code: 100}, deliveryUnknown},
		{"2 HTTP 200", &httpError{code: 200}, deliveryUnknown},
		{"2 HTTP 302", &httpError{code: 302}, deliveryUnknown},
		{"2 HTTP 399", &httpError{code: 399}, deliveryUnknown},
		{"2 HTTP 400", &httpError{code: 400}, notDelivered},
		{"2 HTTP 408", &httpError{code: 408}, notDelivered},
		{"2 HTTP 429", &httpError{code: 429}, notDelivered},
		{"2 HTTP 499", &httpError{code: 499}, notDelivered},
		{"2 HTTP 500", &httpError{code: 500}, deliveryUnknown},
		{"2 HTTP 502", &httpError{code: 502}, deliveryUnknown},
		{"2 HTTP 503", &httpError{code: 503}, deliveryUnknown},
		{"2 HTTP 504", &httpError{code: 504}, deliveryUnknown},
		{"2 HTTP 600", &httpError{code: 600}, deliveryUnknown},
		{"2 HTTP 0 is no answer", &httpError{code: 0}, deliveryUnspecified},
		{"2 HTTP 0 leaves the word to its cause", &httpError{0, opError("dial", errOnFire)}, notDelivered},
		{"2 the outermost of two answers", &httpError{502, replyError(550)}, deliveryUnknown},
		{"2 before 3, from inside", opError("dial", &httpError{code: 502}), deliveryUnknown},
		{"2 before 4, from inside", &url.Error{Op: "Post", Err: &httpError{422, timeoutError{true}}}, notDelivered},
		{"2 before 4, from outside", &httpError{400, io.ErrUnexpectedEOF}, notDelivered},

		{"3 net.DNSError", &net.DNSError{Err: "no such host"}, notDelivered},
		{"3 net.DNSError that timed out", &net.DNSError{Err: "timeout", IsTimeout: true}, notDelivered},
		{"3 net.OpError of op dial", opError("dial", errOnFire), notDelivered},
		{"3 net.OpError of op dial that timed out", opError("dial", timeoutError{true}), notDelivered},
		{"3 net.OpError of op dial, cancelled", opError("dial", context.Canceled), notDelivered},
		{"3 net.OpError of op dial, reset", opError("dial", os.NewSyscallError("connect", syscall.ECONNRESET)), notDelivered},
		{"3 ECONNREFUSED", syscall.ECONNREFUSED, notDelivered},
		{"3 ECONNREFUSED of op read", opError("read", os.NewSyscallError("read", syscall.ECONNREFUSED)), notDelivered},
		{"3 tls.CertificateVerificationError", &tls.CertificateVerificationError{Err: errOnFire}, notDelivered},
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
		{"3 before 4, from inside", &url.Error{Op: "Post", Err: opError("dial", timeoutError{true})}, notDelivered},
		{"3 TLS alerts are not here", opError("remote error", tls.AlertError(80)), deliveryUnspecified},

		{"4 net.Error that timed out", timeoutError{true}, deliveryUnknown},
		{"4 net.Error that did not time out", timeoutError{false}, deliveryUnspecified},
		{"4 net.OpError of op read that timed out", opError("read", timeoutError{true}), deliveryUnknown},
		{"4 os.ErrDeadlineExceeded", os.ErrDeadlineExceeded, deliveryUnknown},
		{"4 ETIMEDOUT", syscall.ETIMEDOUT, deliveryUnknown},
		{"4 io.EOF", io.EOF, deliveryUnknown},
		{"4 io.ErrUnexpectedEOF", io.ErrUnexpectedEOF, deliveryUnknown},
		{"4 io.ErrClosedPipe", io.ErrClosedPipe, deliveryUnknown},
		{"4 net.ErrClosed", net.ErrClosed, deliveryUnknown},
		{"4 connection reset", syscall.ECONNRESET, deliveryUnknown},
		{"4 connection aborted", syscall.ECONNABORTED, deliveryUnknown},
		{"4 broken pipe", syscall.EPIPE, deliveryUnknown},
		{"4 no route to host in mid-session", opError("read", os.NewSyscallError("read", syscall.EHOSTUNREACH)), deliveryUnknown},
		{"4 Windows: connection reset", opError("read", os.NewSyscallError("wsarecv", syscall.Errno(10054))), deliveryUnknown},
		{"4 Windows: connection timed out", opError("read", os.NewSyscallError("wsarecv", syscall.Errno(10060))), deliveryUnknown},
		{"3 Windows: connection refused", syscall.Errno(10061), notDelivered},
		{"4 context.Canceled", context.Canceled, deliveryUnknown},
		{"4 context.DeadlineExceeded", context.DeadlineExceeded, deliveryUnknown},
		{"4 a nil pointer of net.OpError", (*net.OpError)(nil), deliveryUnknown},
		{"4 a nil pointer of textproto.Error", (*textproto.Error)(nil), deliveryUnknown},
		{"4 a nil pointer of SendError", (*idemmail.SendError)(nil), deliveryUnknown},
		{"4 a nil pointer of an adapter's error", (*httpError)(nil), deliveryUnknown},
		{"4 a nil pointer inside", fmt.Errorf("send: %w", (*httpError)(nil)), deliveryUnknown},
		{"2 before a nil pointer", &httpError{400, (*net.OpError)(nil)}, notDelivered},

		{"5 a plain error", errOnFire, deliveryUnspecified},
		{"5 an errno of another kind", syscall.ENOENT, deliveryUnspecified},
		{"5 net.OpError of another op", opError("listen", errOnFire), deliveryUnspecified},
		{"5 an error whose Unwrap answers nil", &httpError{}, deliveryUnspecified},
		{"5 ErrKeyReused alone", idemmail.ErrKeyReused, deliveryUnspecified},

		{"Is of a link: io.EOF", likeError{io.EOF}, deliveryUnknown},
		{"Is of a link: context.Canceled", likeError{context.Canceled}, deliveryUnknown},
		{"Is of a link: context.DeadlineExceeded", likeError{context.DeadlineExceeded}, deliveryUnknown},
		{"Is of a link: ErrDeliveryUnknown", likeError{idemmail.ErrDeliveryUnknown}, deliveryUnknown},
		{"As of a link: textproto.Error", opaqueError{replyError(550)}, notDelivered},
		{"As of a link: HTTPStatusCode", opaqueError{&httpError{code: 502}}, deliveryUnknown},
		{"As of a link: DeliveryUnknown", opaqueError{idemmail.NotSent(io.EOF)}, notDelivered},
		{"As of a link: errno", opaqueError{syscall.ECONNREFUSED}, notDelivered},
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
		deliveryUnspecified: errOnFire,
		notDelivered:        replyError(550),
		deliveryUnknown:     io.EOF,
	}
	for _, test := range []struct {
		name        string
		a, b, wants idemmail.Delivery
	}{
		{"unknown beats unspecified", deliveryUnknown, deliveryUnspecified, deliveryUnknown},
		{"unknown beats not delivered", deliveryUnknown, notDelivered, deliveryUnknown},
		{"unspecified beats not delivered", deliveryUnspecified, notDelivered, deliveryUnspecified},
		{"not delivered twice", notDelivered, notDelivered, notDelivered},
		{"unspecified twice", deliveryUnspecified, deliveryUnspecified, deliveryUnspecified},
		{"unknown twice", deliveryUnknown, deliveryUnknown, deliveryUnknown},
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
		{"an answer speaks for branches without one", &httpError{400, errors.Join(io.EOF, errOnFire)}, notDelivered},
		{"an answer does not silence a mark in a branch", &httpError{400, errors.Join(errOnFire, idemmail.MayBeSent(errOnFire))}, deliveryUnknown},
		{"a timeout does not silence answers", &url.Error{Op: "Post", Err: errors.Join(replyError(451), replyError(550))}, notDelivered},
		{"a mark holds for all", idemmail.NotSent(errors.Join(idemmail.MayBeSent(errOnFire), io.EOF)), notDelivered},
		{"marks that differ by branch", errors.Join(idemmail.NotSent(io.EOF), idemmail.MayBeSent(replyError(550))), deliveryUnknown},
		{"each branch with its own mark", errors.Join(idemmail.NotSent(io.EOF), idemmail.NotSent(errOnFire)), notDelivered},
	} {
		t.Run(test.name, func(t *testing.T) {
			require.Equal(t, test.want, idemmail.ClassifyError(test.err))
		})
	}
}

// endlessError unwraps to itself; branchingError does so twice.
type endlessError struct{}

func (e *endlessError) Error() string { return "again" }
func (e *endlessError) Unwrap() error { return e }

type branchingError struct{}

func (e *branchingError) Error() string   { return "again and again" }
func (e *branchingError) Unwrap() []error { return []error{e, nil, e} }

type barrenError struct{}

func (*barrenError) Error() string   { return "no branches" }
func (*barrenError) Unwrap() []error { return []error{nil} }

// errorList is an error of a type that can't be compared.
type errorList []error

func (errorList) Error() string     { return "list" }
func (l errorList) Unwrap() []error { return l }

func TestClassifyErrorOddUnwrap(t *testing.T) {
	require.Equal(t, deliveryUnknown, idemmail.ClassifyError(&endlessError{}), "unwraps to itself")
	require.Equal(t, deliveryUnknown, idemmail.ClassifyError(&branchingError{}), "parts into itself")
	require.Equal(t, notDelivered, idemmail.ClassifyError(idemmail.NotSent(&branchingError{})), "a mark in front")
	require.Equal(t, deliveryUnspecified, idemmail.ClassifyError(&barrenError{}), "no branches")
	require.Equal(t, deliveryUnspecified, idemmail.ClassifyError(errorList(nil)), "a nil list")
	require.Equal(t, deliveryUnknown, idemmail.ClassifyError(errorList{replyError(550), io.EOF}), "a list")

	deep := replyError(550)
	for range 500 {
		deep = fmt.Errorf("%w", deep)
	}
	require.Equal(t, notDelivered, idemmail.ClassifyError(deep), "500 deep")
	wide := make([]error, 2000)
	for i := range wide {
		wide[i] = replyError(550)
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
	err := fmt.Errorf("send: %w", errors.Join(opError("read", os.NewSyscallError("read", syscall.ECONNRESET)), idemmail.NotSent(replyError(550))))
	require.Zero(t, testing.AllocsPerRun(100, func() { idemmail.ClassifyError(err) }))
}
