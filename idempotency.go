package idemmail

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"reflect"
	"time"
)

// IdempotencyTransport sends each keyed message once through the transport
// that it wraps, and answers every later send under the key with the receipt
// of the first. It belongs outside decorators that retry or that choose among
// several transports: a message is then reserved once for all their attempts.
//
// It is safe for concurrent use and has nothing to close; the store stays the
// caller's.
type IdempotencyTransport struct {
	next  Transport
	batch BatchTransport // next, where it sends many at once
	raw   RawTransport   // next, where it sends raw messages
	guard *Guard
	named bool // an Identifier was found
}

var (
	_ BatchTransport = (*IdempotencyTransport)(nil)
	_ RawTransport   = (*IdempotencyTransport)(nil)
	_ Identifier     = (*IdempotencyTransport)(nil)
)

// New wraps next. The error names every option that breaks its rule. New also
// refuses a next in which, followed through its Unwrap() Transport methods,
// the same namespace of the same store stands already: every message would
// meet its own reservation.
func New(next Transport, options Options) (*IdempotencyTransport, error) {
	if f, ok := next.(TransportFunc); next == nil || ok && f == nil {
		return nil, errors.New("idemmail: New: the transport is nil")
	}
	chain, err := unwrap(next)
	if err != nil {
		return nil, err
	}
	id := chainID(chain)
	if options.Namespace == "" {
		options.Namespace = defaultNamespace
		if id != "" {
			if err := checkNamespace(id); err != nil {
				return nil, fmt.Errorf("idemmail: the transport's ID %q cannot be the namespace: it %w; set Options.Namespace", id, err)
			}
			options.Namespace = id
		}
	}
	guard, err := NewGuard(options)
	if err != nil {
		return nil, err
	}
	for _, t := range chain {
		if inner, ok := t.(*IdempotencyTransport); ok && inner.guard.shares(guard) {
			return nil, fmt.Errorf("idemmail: New: the transport already has an IdempotencyTransport with namespace %q on the same store: every message would find its own key in flight", options.Namespace)
		}
	}
	t := &IdempotencyTransport{next: next, guard: guard, named: id != ""}
	if id != "" {
		guard.id = id
	}
	t.batch, _ = next.(BatchTransport)
	t.raw, _ = next.(RawTransport)
	if inner, ok := next.(*IdempotencyTransport); ok {
		// It has every method; what counts is what it can pass on.
		if inner.batch == nil {
			t.batch = nil
		}
		if inner.raw == nil {
			t.raw = nil
		}
	}
	return t, nil
}

// maxChain bounds how deep decorators are followed, so that one which wraps
// itself is found out.
const maxChain = 100

// unwrap lists a transport and those that it wraps, outermost first.
func unwrap(t Transport) ([]Transport, error) {
	var chain []Transport
	for t != nil {
		if len(chain) == maxChain {
			return nil, fmt.Errorf("idemmail: New: the transport's Unwrap chain does not end within %d steps", maxChain)
		}
		chain = append(chain, t)
		wrapper, ok := t.(interface{ Unwrap() Transport })
		if !ok {
			break
		}
		t = wrapper.Unwrap()
	}
	return chain, nil
}

// chainID is the first name in a chain of transports, or empty.
func chainID(chain []Transport) string {
	for _, t := range chain {
		if inner, ok := t.(*IdempotencyTransport); ok && !inner.named {
			continue // its ID is its namespace
		}
		if named, ok := t.(Identifier); ok && named.ID() != "" {
			return named.ID()
		}
	}
	return ""
}

// shares reports whether two guards keep the same keys.
func (g *Guard) shares(other *Guard) bool {
	a, b := g.options.Store, other.options.Store
	return g.options.Namespace == other.options.Namespace &&
		reflect.ValueOf(a).Comparable() && reflect.ValueOf(b).Comparable() && a == b
}

// ID is the name of the wrapped transport (the first Identifier found through
// Unwrap), or the namespace.
func (t *IdempotencyTransport) ID() string { return t.guard.id }

// Unwrap returns the wrapped transport.
func (t *IdempotencyTransport) Unwrap() Transport { return t.next }

// Send sends the message once under its key. A message without a key goes to
// the wrapped transport as it is, and that transport's answer is returned.
//
// The receipt is never nil for a keyed message. The error is nil when the
// message was sent, now or before (then Receipt.Replayed tells); otherwise it
// is a [*SendError] which has the receipt and matches the sentinel of its
// code: ErrInFlight, ErrKeyReused, ErrInvalidKey, ErrNotBegun, ErrAborted,
// ErrAbandoned, ErrStoreFailed or ErrDuplicate. It matches ErrDeliveryUnknown
// where the message may have gone, and wraps the transport's own error.
//
// The message is not changed. The wrapped transport gets the effective key in
// its IdempotencyKey, in a copy where need be.
func (t *IdempotencyTransport) Send(ctx context.Context, m *Message) (*Receipt, error) {
	if m == nil {
		return t.refuseNil("message").result()
	}
	key := t.key(m)
	if key == "" && !t.guard.options.RequireKey {
		return t.next.Send(ctx, m)
	}
	c := t.guard.newCall(key)
	if t.prepare(ctx, c, m) {
		t.deliver(ctx, c, m)
	}
	return c.result()
}

// SendRaw is Send for a message that is already in RFC 5322 form; what tells
// one such message from another is its envelope. Where the wrapped transport
// has no SendRaw, the receipt is nil, the error wraps errors.ErrUnsupported
// and nothing is reserved.
func (t *IdempotencyTransport) SendRaw(ctx context.Context, m *RawMessage) (*Receipt, error) {
	if m == nil {
		return t.refuseNil("raw message").result()
	}
	if t.raw == nil {
		return nil, fmt.Errorf("idemmail: the wrapped transport sends no raw messages: %w", errors.ErrUnsupported)
	}
	key := m.IdempotencyKey
	if t.guard.options.RawKey != nil {
		key = t.guard.options.RawKey(m)
	}
	if key == "" && !t.guard.options.RequireKey {
		return t.raw.SendRaw(ctx, m)
	}
	c := t.guard.newCall(key)
	if !t.guard.admit(ctx, c) {
		return c.result()
	}
	c.fingerprint = FingerprintRaw(m)
	if going := t.guard.reserve(ctx, c.one()); len(going) > 0 {
		t.guard.deliver(ctx, going, func(ctx context.Context) {
			keyed := *m
			keyed.IdempotencyKey = key
			c.sent.Receipt, c.sent.Err = t.raw.SendRaw(ctx, &keyed)
		})
	}
	return c.result()
}

// refuseNil answers a nil message, of which there is nothing to observe.
func (t *IdempotencyTransport) refuseNil(what string) *call {
	c := new(call)
	r := &Receipt{Status: StatusFailed, Category: CategoryValidation, Detail: what + " is nil"}
	t.guard.fill(c, r)
	c.answer(EventFailed, r, errors.New(r.Detail))
	return c
}

// key is the effective key of a message.
func (t *IdempotencyTransport) key(m *Message) string {
	if t.guard.options.Key != nil {
		return t.guard.options.Key(m)
	}
	return m.IdempotencyKey
}

// prepare makes a call of a message, or answers it where it cannot be one.
func (t *IdempotencyTransport) prepare(ctx context.Context, c *call, m *Message) bool {
	if !t.guard.admit(ctx, c) {
		return false
	}
	if t.guard.options.Fingerprint != nil {
		c.fingerprint = customFingerprint(t.guard.options.Fingerprint(m))
	} else {
		c.fingerprint = Fingerprint(m)
	}
	c.sendAt = m.SendAt
	c.messageID = messageID(m)
	if c.messageID == "" && t.guard.options.MessageIDDomain != "" {
		c.messageID = stableMessageID(t.guard.options.Namespace, c.key, t.guard.options.MessageIDDomain)
	}
	return true
}

// deliver takes a call through the guard: reserve, send, settle.
func (t *IdempotencyTransport) deliver(ctx context.Context, c *call, m *Message) {
	if going := t.guard.reserve(ctx, c.one()); len(going) > 0 {
		t.guard.deliver(ctx, going, func(ctx context.Context) {
			c.sent.Receipt, c.sent.Err = t.next.Send(ctx, t.keyed(c, m))
		})
	}
}

// keyed is the message as the wrapped transport gets it: with the effective
// key, and with the stable Message-ID where it has none of its own.
func (t *IdempotencyTransport) keyed(c *call, m *Message) *Message {
	stable := t.guard.options.MessageIDDomain != "" && messageID(m) == ""
	if m.IdempotencyKey == c.key && !stable {
		return m
	}
	keyed := *m
	keyed.IdempotencyKey = c.key
	if stable {
		keyed.MessageID = c.messageID
	}
	return &keyed
}

// Lookup is [Guard.Lookup].
func (t *IdempotencyTransport) Lookup(ctx context.Context, key string) (*Entry, error) {
	return t.guard.Lookup(ctx, key)
}

// Unsettled is [Guard.Unsettled].
func (t *IdempotencyTransport) Unsettled(ctx context.Context, olderThan time.Duration) iter.Seq2[Entry, error] {
	return t.guard.Unsettled(ctx, olderThan)
}

// Resolve is [Guard.Resolve].
func (t *IdempotencyTransport) Resolve(ctx context.Context, e Entry, r *Receipt) error {
	return t.guard.Resolve(ctx, e, r)
}

// Forget is [Guard.Forget].
func (t *IdempotencyTransport) Forget(ctx context.Context, e Entry) error {
	return t.guard.Forget(ctx, e)
}
