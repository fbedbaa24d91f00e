package idemmail_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
)

// What a receipt that is made from a transport's error says of its kind.
func TestCategoryAndRetryable(t *testing.T) {
	type answer struct {
		status    idemmail.Status
		category  idemmail.Category
		retryable bool
	}
	const again, never = true, false
	for _, test := range []struct {
		name string
		err  error
		want answer
	}{
		{"reply 530", replyError(530), answer{statusFailed, idemmail.CategoryAuth, never}},
		{"reply 534", replyError(534), answer{statusFailed, idemmail.CategoryAuth, never}},
		{"reply 535", replyError(535), answer{statusFailed, idemmail.CategoryAuth, never}},
		{"reply 421", replyError(421), answer{statusFailed, idemmail.CategoryProvider, again}},
		{"reply 450", replyError(450), answer{statusFailed, idemmail.CategoryProvider, again}},
		{"reply 500", replyError(500), answer{statusFailed, idemmail.CategoryProvider, never}},
		{"reply 554", replyError(554), answer{statusFailed, idemmail.CategoryProvider, never}},
		{"HTTP 401", &httpError{code: 401}, answer{statusFailed, idemmail.CategoryAuth, never}},
		{"HTTP 403", &httpError{code: 403}, answer{statusFailed, idemmail.CategoryAuth, never}},
		{"HTTP 408", &httpError{code: 408}, answer{statusFailed, idemmail.CategoryTimeout, again}},
		{"HTTP 429", &httpError{code: 429}, answer{statusFailed, idemmail.CategoryRateLimit, again}},
		{"HTTP 400", &httpError{code: 400}, answer{statusFailed, idemmail.CategoryValidation, never}},
		{"HTTP 422", &httpError{code: 422}, answer{statusFailed, idemmail.CategoryValidation, never}},
		{"dial", opError("dial", errors.New("no route")), answer{statusFailed, idemmail.CategoryNetwork, again}},
		{"dial that timed out", opError("dial", timeoutError{over: true}), answer{statusFailed, idemmail.CategoryNetwork, again}},
		{"DNS", &net.DNSError{Err: "no such host", IsNotFound: true}, answer{statusFailed, idemmail.CategoryNetwork, again}},
		{"refused", os.NewSyscallError("connect", syscall.ECONNREFUSED), answer{statusFailed, idemmail.CategoryNetwork, again}},
		{"TLS", &tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}}, answer{statusFailed, idemmail.CategoryNetwork, never}},
		{"TLS record", tls.RecordHeaderError{Msg: "no TLS"}, answer{statusFailed, idemmail.CategoryNetwork, never}},
		{"x509", x509.HostnameError{Certificate: &x509.Certificate{}, Host: "example.org"}, answer{statusFailed, idemmail.CategoryNetwork, never}},
		{"unspecified", errVague, answer{statusFailed, idemmail.CategoryUnknown, again}},
		{"marked not sent", errNotTaken, answer{statusFailed, idemmail.CategoryUnknown, again}},
		{"a timeout marked not sent", idemmail.NotSent(timeoutError{over: true}), answer{statusFailed, idemmail.CategoryTimeout, again}},

		// A retry of an unknown outcome only replays it.
		{"timeout", timeoutError{over: true}, answer{statusUnknown, idemmail.CategoryTimeout, never}},
		{"deadline", os.ErrDeadlineExceeded, answer{statusUnknown, idemmail.CategoryTimeout, never}},
		{"a context's deadline, not the send's", context.DeadlineExceeded, answer{statusUnknown, idemmail.CategoryTimeout, never}},
		{"EOF", io.EOF, answer{statusUnknown, idemmail.CategoryNetwork, never}},
		{"unexpected EOF", io.ErrUnexpectedEOF, answer{statusUnknown, idemmail.CategoryNetwork, never}},
		{"reset", opError("read", syscall.ECONNRESET), answer{statusUnknown, idemmail.CategoryNetwork, never}},
		{"broken pipe", opError("write", syscall.EPIPE), answer{statusUnknown, idemmail.CategoryNetwork, never}},
		{"HTTP 500", &httpError{code: 500}, answer{statusUnknown, idemmail.CategoryProvider, never}},
		{"HTTP 503", &httpError{code: 503}, answer{statusUnknown, idemmail.CategoryProvider, never}},
		{"cancelled, though the send was not", context.Canceled, answer{statusUnknown, idemmail.CategoryUnknown, never}},
		{"marked as perhaps sent", errMaybe, answer{statusUnknown, idemmail.CategoryUnknown, never}},
		{"a refusal marked as perhaps sent", idemmail.MayBeSent(&httpError{code: 429}), answer{statusUnknown, idemmail.CategoryRateLimit, never}},
	} {
		for name, err := range map[string]error{
			test.name:                      test.err,
			test.name + ", wrapped":        fmt.Errorf("retry: %w", fmt.Errorf("smtp: %w", test.err)),
			test.name + ", joined to none": errors.Join(nil, test.err),
		} {
			t.Run(name, func(t *testing.T) {
				throughDoors(t, func(t *testing.T, d door) {
					r, got := d.open(t, idemmail.Options{}, answers(nil, err))(t.Context(), "k", "a")
					requireSendError(t, "k", r, got)
					require.ErrorIs(t, got, test.err)
					require.Equal(t, test.want, answer{r.Status, r.Category, r.Retryable})
				})
			})
		}
	}

	for name, test := range map[string]struct {
		receipt idemmail.Receipt
		err     error
		want    answer
	}{
		"the transport's own, failed":                  {idemmail.Receipt{Status: statusFailed, Category: idemmail.CategoryRateLimit, Retryable: true}, replyError(550), answer{statusFailed, idemmail.CategoryRateLimit, again}},
		"the transport's own, not to be retried":       {idemmail.Receipt{Status: statusFailed, Category: idemmail.CategoryAuth}, replyError(421), answer{statusFailed, idemmail.CategoryAuth, never}},
		"the transport's own, unknown":                 {idemmail.Receipt{Status: statusUnknown, Category: idemmail.CategoryProvider, Retryable: true}, errVague, answer{statusUnknown, idemmail.CategoryProvider, never}},
		"a failed receipt that says nothing":           {idemmail.Receipt{Status: statusFailed}, nil, answer{statusFailed, idemmail.CategoryUnknown, never}},
		"an unknown receipt that says nothing":         {idemmail.Receipt{Status: statusUnknown}, nil, answer{statusUnknown, idemmail.CategoryUnknown, never}},
		"a failed receipt, to be retried":              {idemmail.Receipt{Status: statusFailed, Retryable: true}, nil, answer{statusFailed, idemmail.CategoryUnknown, again}},
		"a failed receipt, to be retried all the same": {idemmail.Receipt{Status: statusFailed, Retryable: true}, replyError(550), answer{statusFailed, idemmail.CategoryProvider, again}},
		"a failed receipt beside an error's kind":      {idemmail.Receipt{Status: statusFailed}, replyError(421), answer{statusFailed, idemmail.CategoryProvider, again}},
	} {
		t.Run(name, func(t *testing.T) {
			throughDoors(t, func(t *testing.T, d door) {
				r, err := d.open(t, idemmail.Options{}, answers(&test.receipt, test.err))(t.Context(), "k", "a")
				requireSendError(t, "k", r, err)
				require.Equal(t, test.want, answer{r.Status, r.Category, r.Retryable})
			})
		})
	}

	t.Run("sent says nothing", func(t *testing.T) {
		throughDoors(t, func(t *testing.T, d door) {
			r, err := d.open(t, idemmail.Options{}, answers(nil, nil))(t.Context(), "k", "a")
			require.NoError(t, err)
			require.Equal(t, answer{statusSent, "", never}, answer{r.Status, r.Category, r.Retryable})
			require.Empty(t, r.Code)
			require.Empty(t, r.Detail)
		})
	})
}
