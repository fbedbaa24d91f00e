package idemmail_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
)

func TestKinds(t *testing.T) {
	const (
		validation = idemmail.CategoryValidation
		auth       = idemmail.CategoryAuth
		rateLimit  = idemmail.CategoryRateLimit
		network    = idemmail.CategoryNetwork
		late       = idemmail.CategoryTimeout
		provider   = idemmail.CategoryProvider
		none       = idemmail.CategoryUnknown
	)
	const again, never = true, false
	inner := func(r idemmail.Receipt) error { return &idemmail.SendError{Key: "k", Receipt: &r, Err: io.EOF} }
	for _, test := range []struct {
		name     string
		err      error
		category idemmail.Category
		retry    bool
	}{
		{"nil", nil, none, again},
		{"unspecified", errOnFire, none, again},

		{"reply 530", replyError(530), auth, never},
		{"reply 534", replyError(534), auth, never},
		{"reply 535", replyError(535), auth, never},
		{"reply 421", replyError(421), provider, again},
		{"reply 450", replyError(450), provider, again},
		{"reply 454", replyError(454), provider, again},
		{"reply 500", replyError(500), provider, never},
		{"reply 550", replyError(550), provider, never},
		{"reply 599", replyError(599), provider, never},
		{"reply 250", replyError(250), provider, again},

		{"HTTP 400", &httpError{code: 400}, validation, never},
		{"HTTP 401", &httpError{code: 401}, auth, never},
		{"HTTP 403", &httpError{code: 403}, auth, never},
		{"HTTP 404", &httpError{code: 404}, validation, never},
		{"HTTP 408", &httpError{code: 408}, late, again},
		{"HTTP 422", &httpError{code: 422}, validation, never},
		{"HTTP 429", &httpError{code: 429}, rateLimit, again},
		{"HTTP 499", &httpError{code: 499}, validation, never},
		{"HTTP 500", &httpError{code: 500}, provider, again},
		{"HTTP 503", &httpError{code: 503}, provider, again},
		{"HTTP 302", &httpError{code: 302}, provider, again},
		{"HTTP 0 is no answer", &httpError{code: 0}, none, again},

		{"dial", opError("dial", errOnFire), network, again},
		{"dial that timed out", opError("dial", timeoutError{true}), network, again},
		{"dial that was cancelled", opError("dial", context.Canceled), network, again},
		{"DNS", &net.DNSError{}, network, again},
		{"DNS that timed out", &net.DNSError{IsTimeout: true}, network, again},
		{"refused", syscall.ECONNREFUSED, network, again},
		{"certificate", &tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}}, network, never},
		{"x509", x509.UnknownAuthorityError{}, network, never},
		{"x509 within a dial", opError("dial", x509.UnknownAuthorityError{}), network, never},
		{"no TLS", tls.RecordHeaderError{}, network, never},

		{"timeout", timeoutError{true}, late, again},
		{"read that timed out", opError("read", os.ErrDeadlineExceeded), late, again},
		{"deadline of a context", context.DeadlineExceeded, late, again},
		{"aborted by the caller", context.Canceled, none, again},
		{"aborted by the caller, in a client's error", &url.Error{Op: "Post", Err: context.Canceled}, none, again},
		{"end of file", io.ErrUnexpectedEOF, network, again},
		{"reset", opError("read", syscall.ECONNRESET), network, again},
		{"nil pointer", (*net.OpError)(nil), none, again},

		{"a mark says nothing of the kind: not sent", idemmail.NotSent(io.EOF), network, again},
		{"a mark says nothing of the kind: may be sent", idemmail.MayBeSent(replyError(535)), auth, never},
		{"a mark on a plain error", idemmail.NotSent(errOnFire), none, again},
		{"a marked joined error: the branch with a kind", idemmail.NotSent(errors.Join(errOnFire, &httpError{code: 429})), rateLimit, again},

		{"joined: the branch that decides", errors.Join(replyError(535), context.DeadlineExceeded), late, again},
		{"joined: the branch that decides, in front", errors.Join(io.EOF, replyError(535)), network, again},
		{"joined: a plain error decides over a refusal", errors.Join(replyError(535), errOnFire), none, again},
		{"joined: the first of two equals", errors.Join(replyError(451), replyError(535)), provider, again},
		{"joined: the first of two equals that has a kind", errors.Join(idemmail.NotSent(errOnFire), replyError(535)), auth, never},

		{"inner decorator: its receipt's", inner(idemmail.Receipt{Status: idemmail.StatusFailed, Category: auth}), auth, never},
		{"inner decorator: retryable", inner(idemmail.Receipt{Status: idemmail.StatusFailed, Category: none, Retryable: true}), none, again},
		{"inner decorator: unknown", inner(idemmail.Receipt{Status: idemmail.StatusUnknown, Category: provider}), provider, never},
		{"inner decorator: before an answer around it", &httpError{429, inner(idemmail.Receipt{Status: idemmail.StatusFailed, Category: auth})}, auth, never},
		{"inner decorator: marked", idemmail.NotSent(inner(idemmail.Receipt{Status: idemmail.StatusUnknown, Category: late})), late, never},
		{"inner decorator: no category", inner(idemmail.Receipt{Status: idemmail.StatusUnknown}), network, again},
		{"inner decorator: no receipt", &idemmail.SendError{Err: io.EOF}, network, again},
	} {
		t.Run(test.name, func(t *testing.T) {
			for _, err := range []error{test.err, fmt.Errorf("send: %w", fmt.Errorf("attempt: %w", test.err))} {
				category, retry := idemmail.KindOf(err)
				require.Equal(t, test.category, category)
				require.Equal(t, test.retry, retry)
				if test.err == nil {
					break
				}
			}
		})
	}
}
