package sestransport

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptrace"
	"slices"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sesv2"
	"github.com/aws/smithy-go/middleware"
)

var (
	// errRepeated is what middleware that sends again gets.
	errRepeated = errors.New("a second request for one send was refused")

	// errRedirected stands for the answer to a GET that net/http has made of
	// the request (301, 302, 303): it is not the answer of SES.
	errRedirected = errors.New("redirected to something that is not SES")
)

// A wire stands between one call of SendEmail and the network. It lets one
// HTTP request through, keeps net/http from repeating it, and sees how far it
// came. The hooks of net/http come from its own goroutines, also after the
// request has ended.
type wire struct {
	mu        sync.Mutex
	began     bool   // the SDK's own client ran the call: a request that is not seen here was not made
	requested bool   // a request was handed to the HTTP client
	failed    bool   // which answered an error instead of a response
	asked     bool   // net/http looked for a connection
	connected int    // and got one, so many times
	broken    int    // of these, so many broke before the request was written
	host      string // of the request
}

// attach is an option of the SendEmail call.
func (w *wire) attach(o *sesv2.Options) {
	// RetryMaxAttempts stays as it is: the SDK heeds one that is set per call,
	// by wrapping the Retryer, and ignores the client's.
	o.Retryer = aws.NopRetryer{}
	o.HTTPClient = wiredClient{o.HTTPClient, w}
	o.APIOptions = append(slices.Clip(o.APIOptions), func(stack *middleware.Stack) error {
		return stack.Initialize.Add(middleware.InitializeMiddlewareFunc("idemmailBegan", w.begin), middleware.Before)
	})
}

func (w *wire) begin(ctx context.Context, in middleware.InitializeInput, next middleware.InitializeHandler) (middleware.InitializeOutput, middleware.Metadata, error) {
	w.note(func() { w.began = true })
	return next.HandleInitialize(ctx, in)
}

// notSent reports whether SES cannot have got a whole request. It says so only
// on the word of the SDK's client and of net/http.
func (w *wire) notSent() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case !w.began:
		return false
	case !w.requested:
		return true
	case !w.failed, !w.asked:
		return false
	}
	return w.broken == w.connected
}

// reached reports whether a connection to SES, or to a proxy, was made.
func (w *wire) reached() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.connected > 0
}

func (w *wire) note(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

func (w *wire) trace() *httptrace.ClientTrace {
	return &httptrace.ClientTrace{
		GetConn: func(string) { w.note(func() { w.asked = true }) },
		GotConn: func(httptrace.GotConnInfo) { w.note(func() { w.connected++ }) },
		WroteRequest: func(info httptrace.WroteRequestInfo) {
			if info.Err != nil {
				w.note(func() { w.broken++ })
			}
		},
	}
}

// A wiredClient is the client's HTTP client with a wire in front.
type wiredClient struct {
	next sesv2.HTTPClient
	wire *wire
}

func (c wiredClient) Do(r *http.Request) (*http.Response, error) {
	first := false
	c.wire.note(func() {
		first = !c.wire.requested
		c.wire.requested = true
		c.wire.host = r.URL.Host
	})
	if !first {
		return nil, errRepeated
	}
	r = r.WithContext(httptrace.WithClientTrace(r.Context(), c.wire.trace()))
	r.GetBody = nil // without it net/http sends no body a second time
	resp, err := c.next.Do(r)
	if err == nil && resp.Request != nil && resp.Request.Method != r.Method {
		_ = resp.Body.Close()
		resp, err = nil, errRedirected
	}
	if err != nil {
		c.wire.note(func() { c.wire.failed = true })
	}
	return resp, err
}

// requestHost returns the host that the request went to; empty without one.
func (w *wire) requestHost() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.host
}
