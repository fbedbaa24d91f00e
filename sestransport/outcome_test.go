package sestransport_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sesv2"
	"github.com/aws/aws-sdk-go-v2/service/sesv2/types"
	"github.com/aws/smithy-go"
	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/sestransport"
)

// Each error of SendEmail and of the common errors, as it comes over the wire.
func TestAnswersThatAreRefusals(t *testing.T) {
	const (
		validation = idemmail.CategoryValidation
		auth       = idemmail.CategoryAuth
		rateLimit  = idemmail.CategoryRateLimit
	)
	for _, tt := range []struct {
		status    int
		code      string
		category  idemmail.Category
		retryable bool
	}{
		{429, "TooManyRequestsException", rateLimit, true},
		{400, "ThrottlingException", rateLimit, true},
		{400, "Throttling", rateLimit, true},
		{400, "LimitExceededException", rateLimit, true},
		{400, "AccountSuspendedException", auth, false},
		{400, "SendingPausedException", auth, true},
		{400, "MailFromDomainNotVerifiedException", validation, false},
		{400, "MessageRejected", validation, false},
		{400, "BadRequestException", validation, false},
		{404, "NotFoundException", validation, false},
		{403, "AccessDeniedException", auth, false},
		{403, "ExpiredTokenException", auth, false},
		{403, "InvalidClientTokenId", auth, false},
		{403, "InvalidSignatureException", auth, false},
		{403, "SignatureDoesNotMatch", auth, false},
		{403, "UnrecognizedClientException", auth, false},
		{403, "MissingAuthenticationToken", auth, false},
		{403, "OptInRequired", auth, false},
		{400, "IncompleteSignature", auth, false},
		{400, "RequestExpired", auth, false},
		{401, "NotAuthorized", auth, false},
		{408, "RequestTimeoutException", idemmail.CategoryTimeout, true},
		{413, "RequestEntityTooLargeException", validation, false},
		{400, "SomethingNewException", validation, false},
		{403, "SomethingNewException", auth, false},
		{429, "SomethingNewException", rateLimit, true},
		{503, "ServiceUnavailable", idemmail.CategoryProvider, true},
		{503, "ServiceUnavailableException", idemmail.CategoryProvider, true},
	} {
		t.Run(fmt.Sprint(tt.status, " ", tt.code), func(t *testing.T) {
			s := newServer(t, refuse(tt.status, tt.code))
			r, err := newTransport(t, newClient(t, s.URL), sestransport.Options{ID: "ses-eu"}).Send(t.Context(), message())
			requireFailed(t, r, err)
			require.Equal(t, tt.code, r.Code)
			require.Equal(t, tt.category, r.Category)
			require.Equal(t, tt.retryable, r.Retryable)
			require.Equal(t, "ses-eu", r.Transport)
			require.Equal(t, fmt.Sprintf("%d %s: what SES says", tt.status, tt.code), r.Response)
			require.Equal(t, 1, s.count(), "sent again")

			var api smithy.APIError
			require.ErrorAs(t, err, &api)
			require.Equal(t, tt.code, api.ErrorCode())
		})
	}
}

func TestErrorsKeepTheirChain(t *testing.T) {
	s := newServer(t, refuse(429, "TooManyRequestsException"))
	_, err := newTransport(t, newClient(t, s.URL), sestransport.Options{}).Send(t.Context(), message())
	var e *types.TooManyRequestsException
	require.ErrorAs(t, err, &e)
	require.Equal(t, "what SES says", e.ErrorMessage())
	var op *smithy.OperationError
	require.ErrorAs(t, err, &op)
}

// A code may stand in the body instead of the header.
func TestCodeInTheBody(t *testing.T) {
	s := newServer(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(503)
		_, _ = io.WriteString(w, `{"__type":"com.amazonaws.ses#ServiceUnavailable","message":"busy"}`)
	})
	r, err := newTransport(t, newClient(t, s.URL), sestransport.Options{}).Send(t.Context(), message())
	requireFailed(t, r, err)
	require.Equal(t, "ServiceUnavailable", r.Code)
}

func TestAnswersOfAProxy(t *testing.T) {
	for status, category := range map[int]idemmail.Category{
		403: idemmail.CategoryAuth,
		404: idemmail.CategoryValidation,
		407: idemmail.CategoryAuth,
		408: idemmail.CategoryTimeout,
		413: idemmail.CategoryValidation,
		429: idemmail.CategoryRateLimit,
	} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			s := newServer(t, page(status))
			r, err := newTransport(t, newClient(t, s.URL), sestransport.Options{}).Send(t.Context(), message())
			requireFailed(t, r, err)
			require.Equal(t, category, r.Category)
			require.Equal(t, fmt.Sprint("ses.", status), r.Code)
			require.Equal(t, 1, s.count())
		})
	}
}

func TestAnswersThatDoNotTell(t *testing.T) {
	write := func(status int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
		}
	}
	truncated := func(status int) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "1000")
			w.WriteHeader(status)
			_, _ = io.WriteString(w, `{"MessageId":"0102-`)
			_ = http.NewResponseController(w).Flush()
			lose(w, r)
		}
	}
	for name, answer := range map[string]http.HandlerFunc{
		"500 InternalFailure":               refuse(500, "InternalFailure"),
		"500 InternalServiceErrorException": refuse(500, "InternalServiceErrorException"),
		"500 with a code that is of 4xx":    refuse(500, "TooManyRequestsException"),
		"500 page":                          page(500),
		"501":                               page(501),
		"502 page of a proxy":               page(502),
		"502 with SES's code":               refuse(502, "ServiceUnavailable"),
		"503 page of a proxy":               page(503),
		"503 without a body":                write(503, ""),
		"503 with another's JSON":           write(503, `{"message":"upstream connect error"}`),
		"503 with another code":             refuse(503, "InternalFailure"),
		"503 with a code that begins alike": refuse(503, "ServiceUnavailableSomewhere"),
		"504 page of a proxy":               page(504),
		"400 RequestAbortedException":       refuse(400, "RequestAbortedException"),
		"302":                               page(302),
		"304":                               write(304, ""),
		"307":                               page(307),
		"200 without a body":                write(200, ""),
		"200 with an empty object":          write(200, "{}"),
		"200 with an empty MessageId":       write(200, `{"MessageId":""}`),
		"200 with a blank MessageId":        write(200, `{"MessageId":" "}`),
		"200 with a null MessageId":         write(200, `{"MessageId":null}`),
		"200 with a number":                 write(200, `{"MessageId":17}`),
		"200 with an array":                 write(200, `["m"]`),
		"200 with a page":                   page(200),
		"200 with half an object":           write(200, `{"MessageId":"0102-`),
		"200 cut off":                       truncated(200),
		"500 cut off":                       truncated(500),
		"202 without a body":                write(202, ""),
		"204":                               write(204, ""),
		"connection lost after the request": lose,
		"not HTTP":                          notHTTP,
		"503 with a code that is of 4xx":    refuse(503, "ThrottlingException"),
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t, answer)
			r, err := newTransport(t, newClient(t, s.URL), sestransport.Options{}).Send(t.Context(), message())
			requireUnknown(t, r, err)
			require.NotEmpty(t, r.Code)
			if strings.HasPrefix(name, "5") {
				require.Equal(t, idemmail.CategoryProvider, r.Category)
			}
			require.Contains(t, []idemmail.Category{idemmail.CategoryProvider, idemmail.CategoryNetwork}, r.Category)
			require.Equal(t, 1, s.count(), "sent again")
		})
	}
}

func notHTTP(w http.ResponseWriter, _ *http.Request) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(err)
	}
	_, _ = io.WriteString(conn, "220 mail.example.com ESMTP\r\n")
	_ = conn.Close()
}

// ending is a context that ends when the test says so, in the way it says.
type ending struct {
	context.Context
	done chan struct{}
	err  error
}

func (c ending) Done() <-chan struct{} { return c.done }

func (c ending) Err() error {
	select {
	case <-c.done:
		return c.err
	default:
		return nil
	}
}

func TestContextEndsWhileSESIsSlow(t *testing.T) {
	for _, tt := range []struct {
		cause    error
		category idemmail.Category
	}{
		{context.Canceled, idemmail.CategoryUnknown},
		{context.DeadlineExceeded, idemmail.CategoryTimeout},
	} {
		t.Run(tt.cause.Error(), func(t *testing.T) {
			ctx := ending{t.Context(), make(chan struct{}), tt.cause}
			s := newServer(t, func(_ http.ResponseWriter, r *http.Request) {
				close(ctx.done)
				<-r.Context().Done()
			})
			r, err := newTransport(t, newClient(t, s.URL), sestransport.Options{}).Send(ctx, message())
			requireUnknown(t, r, err)
			require.ErrorIs(t, err, tt.cause)
			require.Equal(t, tt.category, r.Category)
			require.Equal(t, idemmail.CodeAborted, r.Code)
			require.Equal(t, 1, s.count())
		})
	}
}

func TestContextEndsWhileTheAnswerIsRead(t *testing.T) {
	ctx := ending{t.Context(), make(chan struct{}), context.DeadlineExceeded}
	s := newServer(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, `{"MessageId":"0102-`)
		_ = http.NewResponseController(w).Flush()
		close(ctx.done)
		<-r.Context().Done()
	})
	r, err := newTransport(t, newClient(t, s.URL), sestransport.Options{}).Send(ctx, message())
	requireUnknown(t, r, err)
}

func TestClientTimeout(t *testing.T) {
	s := newServer(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	transport := &http.Transport{ResponseHeaderTimeout: 20 * time.Millisecond} // counts from the whole request on
	defer transport.CloseIdleConnections()
	client := newClient(t, s.URL, func(o *sesv2.Options) { o.HTTPClient = &http.Client{Transport: transport} })
	r, err := newTransport(t, client, sestransport.Options{}).Send(t.Context(), message())
	requireUnknown(t, r, err)
	require.Equal(t, idemmail.CategoryTimeout, r.Category)
	require.Equal(t, sestransport.CodeTimeout, r.Code)
	require.Equal(t, 1, s.count())
}

func TestCodesOfWhatSESHasNoCodeFor(t *testing.T) {
	for want, answer := range map[string]http.HandlerFunc{
		"ses.502":                page(502),
		"ses.307":                page(307),
		"InternalFailure":        refuse(500, "InternalFailure"),
		sestransport.CodeAnswer:  page(200),
		sestransport.CodeNetwork: lose,
	} {
		s := newServer(t, answer)
		r, err := newTransport(t, newClient(t, s.URL), sestransport.Options{}).Send(t.Context(), message())
		requireUnknown(t, r, err)
		require.Equal(t, want, r.Code)
	}
	s := newServer(t, func(http.ResponseWriter, *http.Request) {}) // 200, and nothing
	r, err := newTransport(t, newClient(t, s.URL), sestransport.Options{}).Send(t.Context(), message())
	requireUnknown(t, r, err)
	require.Equal(t, sestransport.CodeAnswer, r.Code)
}

type answered int

func (e answered) Error() string       { return fmt.Sprintf("HTTP %d", int(e)) }
func (e answered) HTTPStatusCode() int { return int(e) }

// Behind another API than the SDK's client there is no proof that nothing was
// sent but the error itself.
func TestErrorsOfAnotherAPI(t *testing.T) {
	for name, tt := range map[string]struct {
		err      error
		status   idemmail.Status
		category idemmail.Category
	}{
		"throttled":          {&types.TooManyRequestsException{}, idemmail.StatusFailed, idemmail.CategoryRateLimit},
		"rejected":           {&types.MessageRejected{}, idemmail.StatusFailed, idemmail.CategoryValidation},
		"client fault":       {&types.ConflictException{}, idemmail.StatusFailed, idemmail.CategoryValidation},
		"server fault":       {&types.InternalServiceErrorException{}, idemmail.StatusUnknown, idemmail.CategoryUnknown},
		"unavailable":        {&smithy.GenericAPIError{Code: "ServiceUnavailable"}, idemmail.StatusFailed, idemmail.CategoryProvider},
		"unknown code":       {&smithy.GenericAPIError{Code: "Hm"}, idemmail.StatusUnknown, idemmail.CategoryUnknown},
		"HTTP 400":           {answered(400), idemmail.StatusFailed, idemmail.CategoryValidation},
		"HTTP 503":           {answered(503), idemmail.StatusUnknown, idemmail.CategoryProvider},
		"dial":               {&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}, idemmail.StatusFailed, idemmail.CategoryNetwork},
		"dial timed out":     {&net.OpError{Op: "dial", Err: context.DeadlineExceeded}, idemmail.StatusFailed, idemmail.CategoryNetwork},
		"DNS":                {&net.DNSError{}, idemmail.StatusFailed, idemmail.CategoryNetwork},
		"reset":              {&net.OpError{Op: "read", Err: syscall.ECONNRESET}, idemmail.StatusUnknown, idemmail.CategoryNetwork},
		"EOF":                {io.ErrUnexpectedEOF, idemmail.StatusUnknown, idemmail.CategoryNetwork},
		"deadline":           {context.DeadlineExceeded, idemmail.StatusUnknown, idemmail.CategoryTimeout},
		"cancelled":          {context.Canceled, idemmail.StatusUnknown, idemmail.CategoryUnknown},
		"anything":           {errors.New("hm"), idemmail.StatusUnknown, idemmail.CategoryUnknown},
		"marked not sent":    {idemmail.NotSent(errors.New("hm")), idemmail.StatusFailed, idemmail.CategoryUnknown},
		"marked may be sent": {idemmail.MayBeSent(&net.DNSError{}), idemmail.StatusUnknown, idemmail.CategoryNetwork},
		"refused or lost":    {errors.Join(&net.DNSError{}, io.EOF), idemmail.StatusUnknown, idemmail.CategoryNetwork},
	} {
		t.Run(name, func(t *testing.T) {
			for _, wrapped := range []error{tt.err, fmt.Errorf("a: %w", fmt.Errorf("b: %w", tt.err))} {
				api := apiFunc(func(context.Context, *sesv2.SendEmailInput) (*sesv2.SendEmailOutput, error) { return nil, wrapped })
				r, err := newTransport(t, api, sestransport.Options{}).Send(t.Context(), message())
				if tt.status == idemmail.StatusFailed {
					requireFailed(t, r, err)
				} else {
					requireUnknown(t, r, err)
				}
				require.Equal(t, tt.category, r.Category)
				require.ErrorIs(t, err, tt.err)
			}
		})
	}
	t.Run("nothing at all", func(t *testing.T) {
		api := apiFunc(func(context.Context, *sesv2.SendEmailInput) (*sesv2.SendEmailOutput, error) { return nil, nil })
		r, err := newTransport(t, api, sestransport.Options{}).Send(t.Context(), message())
		requireUnknown(t, r, err)
	})
}

// looksAtOptions is an API for tests, which applies the options to see them and
// sends by other means.
type looksAtOptions struct{ err error }

func (a looksAtOptions) SendEmail(_ context.Context, _ *sesv2.SendEmailInput, optFns ...func(*sesv2.Options)) (*sesv2.SendEmailOutput, error) {
	var o sesv2.Options
	for _, f := range optFns {
		f(&o)
	}
	return nil, a.err
}

func TestOptionsThatAreOnlyLookedAtProveNothing(t *testing.T) {
	r, err := newTransport(t, looksAtOptions{io.EOF}, sestransport.Options{}).Send(t.Context(), message())
	requireUnknown(t, r, err)
}

// A client that is not net/http tells nothing of its connections.
func TestAnotherHTTPClient(t *testing.T) {
	for name, tt := range map[string]struct {
		err    error
		status idemmail.Status
	}{
		"lost": {io.EOF, idemmail.StatusUnknown},
		"dial": {&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}, idemmail.StatusFailed},
		"odd":  {errors.New("hm"), idemmail.StatusUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			client := newClient(t, "http://127.0.0.1:1", func(o *sesv2.Options) {
				o.HTTPClient = doFunc(func(*http.Request) (*http.Response, error) { return nil, tt.err })
			})
			r, err := newTransport(t, client, sestransport.Options{}).Send(t.Context(), message())
			require.Error(t, err)
			require.Equal(t, tt.status, r.Status)
		})
	}
}

type doFunc func(*http.Request) (*http.Response, error)

func (f doFunc) Do(r *http.Request) (*http.Response, error) { return f(r) }

func TestMessageIDIsTheOneOfSES(t *testing.T) {
	for host, want := range map[string]string{
		"email.us-east-1.amazonaws.com":             "m@email.amazonses.com",
		"email.eu-west-1.amazonaws.com":             "m@eu-west-1.amazonses.com",
		"email-fips.us-west-2.amazonaws.com":        "m@us-west-2.amazonses.com",
		"ses.example.com":                           "",
		"email.cn-north-1.amazonaws.com.cn":         "",
		"email.amazonaws.com":                       "",
		"vpce-1.email.eu-west-1.vpce.amazonaws.com": "",
		"127.0.0.1:4566":                            "",
	} {
		t.Run(host, func(t *testing.T) {
			client := newClient(t, "https://"+host, func(o *sesv2.Options) {
				o.HTTPClient = doFunc(func(r *http.Request) (*http.Response, error) {
					return &http.Response{StatusCode: 200, Body: io.NopCloser(strings.NewReader(`{"MessageId":"m"}`))}, nil
				})
			})
			r, err := newTransport(t, client, sestransport.Options{}).Send(t.Context(), message())
			require.NoError(t, err)
			require.Equal(t, "m", r.ProviderID)
			require.Equal(t, want, r.MessageID)
		})
	}
	t.Run("the SDK's own endpoint", func(t *testing.T) {
		client := newClient(t, "", func(o *sesv2.Options) {
			o.BaseEndpoint = nil
			o.HTTPClient = doFunc(func(r *http.Request) (*http.Response, error) {
				return &http.Response{StatusCode: 200, Body: io.NopCloser(strings.NewReader(`{"MessageId":"m"}`))}, nil
			})
		})
		r, err := newTransport(t, client, sestransport.Options{}).Send(t.Context(), message())
		require.NoError(t, err)
		require.Equal(t, "m@eu-west-1.amazonses.com", r.MessageID)
	})
}
