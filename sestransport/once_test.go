package sestransport_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/sesv2"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"
	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/sestransport"
)

// eager retries whatever happens, at once.
type eager struct{ aws.NopRetryer }

func (eager) MaxAttempts() int            { return 5 }
func (eager) IsErrorRetryable(error) bool { return true }

// The client's own settings, as people have them.
var retrying = map[string]func(*sesv2.Options){
	"default":     func(*sesv2.Options) {},
	"max 5":       func(o *sesv2.Options) { o.RetryMaxAttempts = 5 },
	"own retryer": func(o *sesv2.Options) { o.Retryer = eager{} },
	"own retryer and max": func(o *sesv2.Options) {
		o.Retryer, o.RetryMaxAttempts = retry.AddWithErrorCodes(eager{}, "InternalFailure"), 7
	},
	"adaptive": func(o *sesv2.Options) { o.RetryMode = aws.RetryModeAdaptive },
}

func TestTheSDKDoesNotSendTwice(t *testing.T) {
	for name, with := range retrying {
		for answerName, answer := range map[string]http.HandlerFunc{
			"lost answer": lose,
			"500":         refuse(500, "InternalFailure"),
			"503":         page(503),
			"502":         page(502),
			"garbled 200": page(200),
		} {
			t.Run(name+" "+answerName, func(t *testing.T) {
				s := newServer(t, answer)
				r, err := newTransport(t, newClient(t, s.URL, with), sestransport.Options{}).Send(t.Context(), message())
				requireUnknown(t, r, err)
				require.Equal(t, 1, s.count())
			})
		}
		t.Run(name+" throttled", func(t *testing.T) {
			s := newServer(t, refuse(429, "TooManyRequestsException"))
			r, err := newTransport(t, newClient(t, s.URL, with), sestransport.Options{}).Send(t.Context(), message())
			requireFailed(t, r, err)
			require.Equal(t, 1, s.count())
		})
	}
}

// The client itself is left as it was.
func TestTheClientKeepsItsRetries(t *testing.T) {
	s := newServer(t, refuse(500, "InternalFailure"))
	client := newClient(t, s.URL, func(o *sesv2.Options) { o.Retryer = eager{} })
	_, err := newTransport(t, client, sestransport.Options{}).Send(t.Context(), message())
	require.Error(t, err)
	require.Equal(t, 1, s.count())
	require.IsType(t, eager{}, client.Options().Retryer)
}

// replayable makes a request one that net/http repeats: with the header field
// and a body that can be had anew.
func replayable(o *sesv2.Options) {
	o.APIOptions = append(o.APIOptions, func(stack *middleware.Stack) error {
		return stack.Build.Add(middleware.BuildMiddlewareFunc("replayable", func(ctx context.Context, in middleware.BuildInput, next middleware.BuildHandler) (middleware.BuildOutput, middleware.Metadata, error) {
			r := in.Request.(*smithyhttp.Request)
			body, err := io.ReadAll(r.GetStream())
			if err != nil {
				return middleware.BuildOutput{}, middleware.Metadata{}, err
			}
			if err := r.RewindStream(); err != nil {
				return middleware.BuildOutput{}, middleware.Metadata{}, err
			}
			r.Header.Set("Idempotency-Key", "key")
			r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
			return next.HandleBuild(ctx, in)
		}), middleware.After)
	})
}

// keepAlive answers every other request and keeps the connection, so that the
// next one, which is lost, is on a connection that was used before.
func keepAlive(s *server) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if s.count()%2 == 1 {
			sent(w, r)
			return
		}
		lose(w, r)
	}
}

func TestNetHTTPDoesNotSendTwice(t *testing.T) {
	const rounds = 10
	// The danger is real: the same client without this package sends twice. (It
	// does not where the first connection is not back in its pool in time.)
	t.Run("control", func(t *testing.T) {
		var in *sesv2.SendEmailInput
		_, err := newTransport(t, apiFunc(func(_ context.Context, i *sesv2.SendEmailInput) (*sesv2.SendEmailOutput, error) {
			in = i
			return &sesv2.SendEmailOutput{MessageId: aws.String("m")}, nil
		}), sestransport.Options{}).Send(t.Context(), message())
		require.NoError(t, err)
		s := newServer(t, nil)
		s.answer = keepAlive(s)
		client := newClient(t, s.URL, replayable, func(o *sesv2.Options) { o.Retryer = aws.NopRetryer{} })
		for i := range 100 * rounds {
			_, _ = client.SendEmail(t.Context(), in)
			if s.count() > i+1 {
				return
			}
		}
		t.Fatal("never sent twice")
	})
	for name, with := range map[string]func(*sesv2.Options){
		"as it is":                 func(*sesv2.Options) {},
		"with an Idempotency-Key":  replayable,
		"with everything that can": func(o *sesv2.Options) { replayable(o); o.Retryer = eager{} },
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t, nil)
			s.answer = keepAlive(s)
			tr := newTransport(t, newClient(t, s.URL, with), sestransport.Options{})
			for range rounds {
				_, err := tr.Send(t.Context(), message())
				require.NoError(t, err)
				r, err := tr.Send(t.Context(), message())
				requireUnknown(t, r, err)
			}
			require.Equal(t, 2*rounds, s.count())
		})
	}
}

func TestARedirectIsNotFollowedWithTheMessage(t *testing.T) {
	for _, status := range []int{301, 302, 303, 307, 308} {
		t.Run(http.StatusText(status), func(t *testing.T) {
			posts := 0
			s := newServer(t, nil)
			s.answer = func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodPost {
					posts++
				}
				if r.URL.Path == "/elsewhere" {
					sent(w, r)
					return
				}
				http.Redirect(w, r, "/elsewhere", status)
			}
			r, err := newTransport(t, newClient(t, s.URL, replayable), sestransport.Options{}).Send(t.Context(), message())
			requireUnknown(t, r, err)
			require.Equal(t, 1, posts)
		})
	}
}

// Middleware of somebody's own that tries again does not reach the network.
func TestMiddlewareDoesNotSendTwice(t *testing.T) {
	twice := func(o *sesv2.Options) {
		o.APIOptions = append(o.APIOptions, func(stack *middleware.Stack) error {
			return stack.Finalize.Add(middleware.FinalizeMiddlewareFunc("twice", func(ctx context.Context, in middleware.FinalizeInput, next middleware.FinalizeHandler) (middleware.FinalizeOutput, middleware.Metadata, error) {
				out, metadata, err := next.HandleFinalize(ctx, in)
				if err != nil {
					_ = in.Request.(*smithyhttp.Request).RewindStream()
					out, metadata, err = next.HandleFinalize(ctx, in)
				}
				return out, metadata, err
			}), middleware.After)
		})
	}
	t.Run("lost answer", func(t *testing.T) {
		s := newServer(t, lose)
		r, err := newTransport(t, newClient(t, s.URL, twice), sestransport.Options{}).Send(t.Context(), message())
		requireUnknown(t, r, err)
		require.Equal(t, 1, s.count())
	})
	t.Run("refused connection", func(t *testing.T) {
		r, err := newTransport(t, newClient(t, refusing(t), twice), sestransport.Options{}).Send(t.Context(), message())
		requireFailed(t, r, err)
	})
}

// An HTTP client that tries again beneath us is seen: what each of its requests
// did counts, not only how the last one ended.
func TestAnHTTPClientThatTriesAgain(t *testing.T) {
	reset := func(conn *net.TCPConn) { _ = conn.SetLinger(0) }
	for name, tt := range map[string]struct {
		urls   func(t *testing.T, losing string) []string
		status idemmail.Status
	}{
		"lost, then refused":   {func(t *testing.T, losing string) []string { return []string{losing, refusing(t)} }, idemmail.StatusUnknown},
		"lost, then broken":    {func(t *testing.T, losing string) []string { return []string{losing, stuck(t, reset)} }, idemmail.StatusUnknown},
		"broken, then lost":    {func(t *testing.T, losing string) []string { return []string{stuck(t, reset), losing} }, idemmail.StatusUnknown},
		"broken, then refused": {func(t *testing.T, losing string) []string { return []string{stuck(t, reset), refusing(t)} }, idemmail.StatusFailed},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t, lose)
			transport := &http.Transport{}
			defer transport.CloseIdleConnections()
			urls := tt.urls(t, s.URL)
			client := newClient(t, s.URL, func(o *sesv2.Options) {
				o.HTTPClient = doFunc(func(r *http.Request) (*http.Response, error) {
					body, err := io.ReadAll(r.Body)
					for _, url := range urls {
						var again *http.Request
						again, err = http.NewRequestWithContext(r.Context(), r.Method, url, bytes.NewReader(body))
						if err != nil {
							return nil, err
						}
						if _, err = transport.RoundTrip(again); err == nil {
							t.Error("answered")
						}
					}
					return nil, err
				})
			})
			r, err := newTransport(t, client, sestransport.Options{}).Send(t.Context(), big())
			require.Error(t, err)
			require.Equal(t, tt.status, r.Status, "%v", err)
		})
	}
}

func TestHTTP2(t *testing.T) {
	count, proto := 0, 0
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		count++
		proto = r.ProtoMajor
		if count == 1 {
			sent(w, r)
			return
		}
		panic(http.ErrAbortHandler) // resets the stream
	}))
	s.EnableHTTP2 = true
	s.Config.ErrorLog = quiet()
	s.StartTLS()
	defer s.Close()
	client := newClient(t, s.URL, replayable, func(o *sesv2.Options) { o.HTTPClient, o.Retryer = s.Client(), eager{} })
	tr := newTransport(t, client, sestransport.Options{})
	r, err := tr.Send(t.Context(), message())
	require.NoError(t, err)
	require.Equal(t, idemmail.StatusSent, r.Status)
	r, err = tr.Send(t.Context(), message())
	requireUnknown(t, r, err)
	require.Equal(t, 2, count)
	require.Equal(t, 2, proto)
}
