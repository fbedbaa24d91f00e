package sestransport_test

import (
	"context"
	"encoding/json"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/mail"
	"sync"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sesv2"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/sestransport"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A request is what the server got of one call.
type request struct {
	Method, Path string
	Header       http.Header
	Body         []byte
}

// A server speaks the wire format of SES: it reads each request whole, and
// answers as it is told.
type server struct {
	*httptest.Server
	answer http.HandlerFunc

	mu       sync.Mutex
	requests []request
}

func newServer(t *testing.T, answer http.HandlerFunc) *server {
	t.Helper()
	s := &server{answer: answer}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	s.mu.Lock()
	s.requests = append(s.requests, request{r.Method, r.URL.Path, r.Header, body})
	s.mu.Unlock()
	s.answer(w, r)
}

func (s *server) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.requests)
}

func (s *server) only(t *testing.T) request {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	require.Len(t, s.requests, 1)
	return s.requests[0]
}

// sent answers as SES does when it takes a message.
func sent(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Amzn-Requestid", "4f7a-request")
	_, _ = io.WriteString(w, `{"MessageId":"0102-message-000000"}`)
}

// refuse answers as SES does when it doesn't: the code in a header, the text in
// the body.
func refuse(status int, code string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Amzn-Errortype", code+":http://internal.amazon.com/coral/")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, `{"message":"what SES says"}`)
	}
}

// page answers as a proxy does, or a captive portal.
func page(status int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, "<html><body>Sorry</body></html>")
	}
}

// lose ends the connection without an answer.
func lose(w http.ResponseWriter, _ *http.Request) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(err)
	}
	_ = conn.Close()
}

var credentials = aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
	return aws.Credentials{AccessKeyID: "AKIDEXAMPLE", SecretAccessKey: "example"}, nil
})

// newClient returns a client that talks to url, with the SDK's own ideas of
// retrying.
func newClient(t *testing.T, url string, with ...func(*sesv2.Options)) *sesv2.Client {
	t.Helper()
	transport := &http.Transport{ForceAttemptHTTP2: true}
	t.Cleanup(transport.CloseIdleConnections)
	return sesv2.New(sesv2.Options{
		Region:       "eu-west-1",
		BaseEndpoint: aws.String(url),
		Credentials:  credentials,
		HTTPClient:   &http.Client{Transport: transport},
	}, with...)
}

func newTransport(t *testing.T, client sestransport.API, opts sestransport.Options) *sestransport.Transport {
	t.Helper()
	tr, err := sestransport.New(client, opts)
	require.NoError(t, err)
	return tr
}

// apiFunc is an API that is no client of the SDK.
type apiFunc func(ctx context.Context, in *sesv2.SendEmailInput) (*sesv2.SendEmailOutput, error)

func (f apiFunc) SendEmail(ctx context.Context, in *sesv2.SendEmailInput, _ ...func(*sesv2.Options)) (*sesv2.SendEmailOutput, error) {
	return f(ctx, in)
}

func message() *idemmail.Message {
	return &idemmail.Message{
		From:           mail.Address{Address: "shop@example.com"},
		To:             []mail.Address{{Address: "ann@example.org"}},
		Subject:        "Your order",
		Text:           "Thank you.",
		IdempotencyKey: "order/1042",
	}
}

// requireFailed asserts that receipt and error say: not sent.
func requireFailed(t *testing.T, r *idemmail.Receipt, err error) {
	t.Helper()
	require.Error(t, err)
	require.NotNil(t, r)
	require.Equal(t, idemmail.StatusFailed, r.Status, "%v", err)
	require.Equal(t, idemmail.NotDelivered, idemmail.ClassifyError(err))
	require.Equal(t, err.Error(), r.Detail)
}

// requireUnknown asserts that receipt and error say: it may have been sent.
func requireUnknown(t *testing.T, r *idemmail.Receipt, err error) {
	t.Helper()
	require.Error(t, err)
	require.NotNil(t, r)
	require.Equal(t, idemmail.StatusUnknown, r.Status, "%v", err)
	require.Equal(t, idemmail.DeliveryUnknown, idemmail.ClassifyError(err))
	require.False(t, r.Retryable)
	require.Equal(t, err.Error(), r.Detail)
}

func body(t *testing.T, r request) map[string]any {
	t.Helper()
	var v map[string]any
	require.NoError(t, json.Unmarshal(r.Body, &v))
	return v
}

// quiet is for servers that are to meet broken clients.
func quiet() *log.Logger { return log.New(io.Discard, "", 0) }
