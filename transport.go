package idemmail

import "context"

// A Transport sends one message: over SMTP, through a provider's API, or by
// handing it to something else that does.
//
// Send returns what became of the message. Two things count, and both must be
// told as truly as the transport can know them: the receipt's Status and the
// error. The rule that matters most:
//
//   - An error says "not sent" only where the server cannot have taken the
//     message. Where it may have (a connection lost after the final dot of
//     DATA, a timeout while waiting for the answer, an HTTP 502), say so: set
//     StatusUnknown, or wrap the error with [MayBeSent]. Where an error is
//     known to mean that the message was not taken, wrap it with [NotSent].
//     [ClassifyError] says how errors without a mark are read.
//   - A nil error and a nil receipt (or one without a Status) mean sent.
//   - A server that took some recipients and refused others sent the message:
//     StatusSent with Accepted and Rejected filled.
//
// Send must not change the message, nor keep it after it has returned. It
// returns soon after its context ends. It must be safe for concurrent use.
// The receipt belongs to the caller from then on.
type Transport interface {
	Send(ctx context.Context, m *Message) (*Receipt, error)
}

// A BatchTransport sends many messages in one call, where the provider or the
// protocol makes that cheaper.
//
// SendMany returns exactly one [Result] per message, in the order of msgs. The
// failure of one message must not fail another. What Transport says of Send
// holds for each message.
type BatchTransport interface {
	Transport
	SendMany(ctx context.Context, msgs []*Message) []Result
}

// A RawTransport sends messages that are already in RFC 5322 form.
// What Transport says of Send holds for SendRaw.
type RawTransport interface {
	Transport
	SendRaw(ctx context.Context, m *RawMessage) (*Receipt, error)
}

// An Identifier has a name that stays the same from process to process, such
// as "ses-eu-west-1". A transport's ID is the default namespace of its keys
// and stands in the receipts as Transport.
type Identifier interface{ ID() string }

// TransportFunc lets a function be a [Transport].
type TransportFunc func(ctx context.Context, m *Message) (*Receipt, error)

// Send calls f.
func (f TransportFunc) Send(ctx context.Context, m *Message) (*Receipt, error) { return f(ctx, m) }

var _ Transport = TransportFunc(nil)

// A Result is what became of one message of a batch: what Send would have
// returned for it.
type Result struct {
	Receipt *Receipt
	Err     error
}
