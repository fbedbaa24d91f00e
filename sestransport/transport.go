package sestransport

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/aws/aws-sdk-go-v2/service/sesv2"

	"github.com/idemmail/idemmail"
)

// API is what a [Transport] calls of SES. *[sesv2.Client] is one.
//
// Another implementation that wraps a client must hand on optFns: they keep the
// client from sending one message twice, and learn how far a request came.
type API interface {
	SendEmail(ctx context.Context, params *sesv2.SendEmailInput, optFns ...func(*sesv2.Options)) (*sesv2.SendEmailOutput, error)
}

var _ API = (*sesv2.Client)(nil)

// Options say how messages are sent. The zero value of every field is a
// sensible default.
type Options struct {
	// ConfigurationSet is the configuration set that messages are sent with;
	// empty: the default one of the identity, if it has one. SES publishes
	// events, which a lost answer is looked up by, only with a configuration
	// set.
	ConfigurationSet string

	// KeyTag, if set, is the name of an email tag that carries
	// [idemmail.ProviderKey] of the namespace and the message's idempotency
	// key. SES repeats its tags in every event of the mail, so that an event
	// tells that a mail of unknown outcome did go: see [Transport.Resolve].
	// Messages without a key go without the tag.
	KeyTag string

	// Namespace is the namespace of KeyTag's value. It must be the one of the
	// decorator: set it where idemmail.Options.Namespace is set. Empty means
	// the ID, as it does there.
	Namespace string

	// ID names the transport, in receipts and as the default namespace; empty:
	// "ses".
	ID string

	// Concurrency is how many messages SendMany sends at once; 0: 4. Mind the
	// sending rate of the account: SES refuses what goes beyond it
	// (rate_limit, retryable), and nothing beneath this package tries again.
	Concurrency int
}

// A Transport sends messages through SES. It is an [idemmail.BatchTransport],
// an [idemmail.RawTransport] and an [idemmail.Identifier], safe for concurrent
// use, and keeps nothing of a message.
type Transport struct {
	client    API
	opts      Options
	namespace string
}

var (
	_ idemmail.BatchTransport = (*Transport)(nil)
	_ idemmail.RawTransport   = (*Transport)(nil)
	_ idemmail.Identifier     = (*Transport)(nil)
)

const defaultConcurrency = 4

// New returns a Transport that sends through client, which it neither changes
// nor closes. It refuses a nil client, a KeyTag that is no name of a tag, with
// KeyTag a namespace that has a ':', and a negative Concurrency.
func New(client API, opts Options) (*Transport, error) {
	if client == nil {
		return nil, errors.New("sestransport: client is nil")
	}
	if opts.ID == "" {
		opts.ID = "ses"
	}
	if opts.Concurrency == 0 {
		opts.Concurrency = defaultConcurrency
	}
	namespace := opts.Namespace
	if namespace == "" {
		namespace = opts.ID
	}
	switch {
	case opts.Concurrency < 0:
		return nil, errors.New("sestransport: Concurrency is negative")
	case opts.KeyTag == "":
	case !isTagPart(opts.KeyTag):
		return nil, fmt.Errorf("sestransport: KeyTag %q: %s", opts.KeyTag, tagPartRule)
	case strings.Contains(namespace, ":"):
		return nil, fmt.Errorf("sestransport: namespace %q has a ':': set Namespace as in idemmail.Options", namespace)
	}
	return &Transport{client: client, opts: opts, namespace: namespace}, nil
}

// ID returns Options.ID, or "ses".
func (t *Transport) ID() string { return t.opts.ID }

// Send sends one message. The receipt is never nil, and its status is what the
// error says. The package comment has which error means what.
func (t *Transport) Send(ctx context.Context, m *idemmail.Message) (*idemmail.Receipt, error) {
	in, err := t.input(m)
	if err != nil {
		return t.refuse(err)
	}
	return t.send(ctx, in)
}

// SendRaw sends a message that is already in RFC 5322 form, of at most 50
// recipients. Its To are the recipients, whatever the header says.
//
// SES takes no envelope sender: From is the address that bounces and
// complaints go to (FeedbackForwardingEmailAddress), and must be verified as
// the address in the From field must. SES's own FromEmailAddress is left empty,
// since it replaces that field and with it the sender's name. An empty From
// (the null sender) is refused. KeyTag and ConfigurationSet win over the
// X-SES-MESSAGE-TAGS and X-SES-CONFIGURATION-SET fields of the message.
func (t *Transport) SendRaw(ctx context.Context, m *idemmail.RawMessage) (*idemmail.Receipt, error) {
	in, err := t.rawInput(m)
	if err != nil {
		return t.refuse(err)
	}
	return t.send(ctx, in)
}

// SendMany sends the messages, Options.Concurrency at a time, each in a request
// of its own. What was not begun when the context ends is failed, not sent. A
// panic of the client is passed on once the sends under way have returned.
func (t *Transport) SendMany(ctx context.Context, msgs []*idemmail.Message) []idemmail.Result {
	results := make([]idemmail.Result, len(msgs))
	var (
		next     atomic.Int64
		wg       sync.WaitGroup
		panicked atomic.Pointer[any]
	)
	work := func() {
		defer func() {
			if v := recover(); v != nil {
				panicked.CompareAndSwap(nil, &v)
				next.Store(int64(len(msgs)))
			}
		}()
		for i := next.Add(1) - 1; i < int64(len(msgs)); i = next.Add(1) - 1 {
			results[i].Receipt, results[i].Err = t.Send(ctx, msgs[i])
		}
	}
	for range min(t.opts.Concurrency, len(msgs)) {
		wg.Go(work)
	}
	wg.Wait()
	if v := panicked.Load(); v != nil {
		panic(*v)
	}
	for i, r := range results {
		if r.Receipt == nil { // the client ended the goroutine
			results[i].Receipt, results[i].Err = t.fail(verdict{status: idemmail.StatusUnknown, kind: kind{CodeClient, idemmail.CategoryUnknown, false}}, errNoAnswer)
		}
	}
	return results
}

// send makes the one call.
func (t *Transport) send(ctx context.Context, in *sesv2.SendEmailInput) (*idemmail.Receipt, error) {
	if err := ctx.Err(); err != nil {
		return t.fail(verdict{status: idemmail.StatusFailed, kind: kindOf(err)}, err)
	}
	w := new(wire)
	out, err := t.client.SendEmail(ctx, in, w.attach)
	if err != nil {
		return t.fail(judge(ctx, err, w), err)
	}
	return t.succeed(out, w)
}
