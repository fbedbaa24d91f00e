// Package mailtest has a transport for tests: it sends nothing, does what it
// is told to, counts, and keeps what it was given.
//
//	mails := new(mailtest.Transport)
//	transport, err := idemmail.New(mails, idemmail.Options{Namespace: "orders"})
//	// ... run what sends the mail, twice ...
//	if n := mails.SendsOf("order/1042"); n != 1 {
//		t.Errorf("sent %d times", n)
//	}
//
// A new Transport sends every message. [Transport.Next] says what becomes of
// the next ones instead: [Sent], [Failed], [Unknown], [Hang], [Panic], or any
// [Answer].
//
// [Simulate] tries a store and a transport together: it has the processes that
// use them crash at each step, and reports what was sent twice or lost.
package mailtest

import (
	"context"
	"strconv"
	"sync"

	"github.com/idemmail/idemmail"
)

// A Transport is an [idemmail.Transport], [idemmail.RawTransport] and
// [idemmail.Identifier] for tests. The zero value is ready to use and sends
// everything. It is safe for concurrent use; its fields are to be set before.
//
// It has no SendMany: wrapped, its batches go one message after another. For
// one that takes them in one call there is [BatchTransport]; for one that can
// do nothing but Send, idemmail.TransportFunc(t.Send).
type Transport struct {
	Name      string  // what ID answers, and the receipts' Transport; empty: "mailtest"
	Otherwise Outcome // of the sends that nothing else is scripted for; zero: sent

	mu      sync.Mutex
	next    []Outcome
	nextFor map[string][]Outcome
	sends   int
	keys    map[string]int
	plain   []*idemmail.Message
	raw     []*idemmail.RawMessage
	batches [][]*idemmail.Message
}

var (
	_ idemmail.RawTransport   = (*Transport)(nil)
	_ idemmail.Identifier     = (*Transport)(nil)
	_ idemmail.BatchTransport = (*BatchTransport)(nil)
)

// Next scripts the outcomes of the next sends, in the order in which they
// begin, after those that are scripted already.
func (t *Transport) Next(outcomes ...Outcome) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.next = append(t.next, outcomes...)
}

// NextFor scripts the outcomes of the next sends under an idempotency key, as
// Next does for all. They come first: a send takes one from Next only where
// its key has none left. With several goroutines the order among keys is
// anybody's guess, but that within a key is not.
func (t *Transport) NextFor(key string, outcomes ...Outcome) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.nextFor == nil {
		t.nextFor = make(map[string][]Outcome)
	}
	t.nextFor[key] = append(t.nextFor[key], outcomes...)
}

// ID answers Name.
func (t *Transport) ID() string {
	if t.Name != "" {
		return t.Name
	}
	return "mailtest"
}

// Send counts and keeps the message, and does what the script says.
func (t *Transport) Send(ctx context.Context, m *idemmail.Message) (*idemmail.Receipt, error) {
	s := sending{transport: t.ID()}
	if m != nil {
		s.key, s.messageID = m.IdempotencyKey, m.MessageID
	}
	outcome := t.begin(&s, func() { t.plain = append(t.plain, copyMessage(m)) })
	return outcome.of(ctx, s)
}

// SendRaw counts and keeps the message, and does what the script says.
func (t *Transport) SendRaw(ctx context.Context, m *idemmail.RawMessage) (*idemmail.Receipt, error) {
	s := sending{transport: t.ID()}
	if m != nil {
		s.key = m.IdempotencyKey
	}
	outcome := t.begin(&s, func() { t.raw = append(t.raw, copyRawMessage(m)) })
	return outcome.of(ctx, s)
}

// begin counts a send and takes its outcome from the script.
func (t *Transport) begin(s *sending, keep func()) Outcome {
	t.mu.Lock()
	defer t.mu.Unlock()
	keep()
	t.sends++
	s.number = t.sends
	if t.keys == nil {
		t.keys = make(map[string]int)
	}
	t.keys[s.key]++
	switch {
	case len(t.nextFor[s.key]) > 0:
		outcome := t.nextFor[s.key][0]
		t.nextFor[s.key] = t.nextFor[s.key][1:]
		return outcome
	case len(t.next) > 0:
		outcome := t.next[0]
		t.next = t.next[1:]
		return outcome
	}
	return t.Otherwise
}

// Sends answers how many messages the transport has begun to send, raw ones
// and those of batches too, whatever became of them.
func (t *Transport) Sends() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.sends
}

// SendsOf answers how many of them had the idempotency key. A message that
// comes from a guarded transport has the key that Options.Key derived.
func (t *Transport) SendsOf(key string) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.keys[key]
}

// Messages answers copies of the messages that the transport has begun to
// send, in that order, those of batches too. They are as they were then: what
// the sender did to them afterwards does not show.
func (t *Transport) Messages() []*idemmail.Message {
	t.mu.Lock()
	defer t.mu.Unlock()
	return copies(t.plain, copyMessage)
}

// RawMessages is Messages for raw ones.
func (t *Transport) RawMessages() []*idemmail.RawMessage {
	t.mu.Lock()
	defer t.mu.Unlock()
	return copies(t.raw, copyRawMessage)
}

// A BatchTransport is a [Transport] that takes many messages in one call.
type BatchTransport struct{ Transport }

// SendMany does with one message after another what Send does. A panic that is
// scripted for one ends the call: those after it were not begun.
func (t *BatchTransport) SendMany(ctx context.Context, msgs []*idemmail.Message) []idemmail.Result {
	t.mu.Lock()
	t.batches = append(t.batches, copies(msgs, copyMessage))
	t.mu.Unlock()
	results := make([]idemmail.Result, len(msgs))
	for i, m := range msgs {
		results[i].Receipt, results[i].Err = t.Send(ctx, m)
	}
	return results
}

// Batches answers copies of what each call of SendMany was given.
func (t *BatchTransport) Batches() [][]*idemmail.Message {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([][]*idemmail.Message, len(t.batches))
	for i, batch := range t.batches {
		all[i] = copies(batch, copyMessage)
	}
	return all
}

// A sending is one message under way.
type sending struct {
	number    int // of the send, from 1
	transport string
	key       string
	messageID string
}

// receipt is what a sent message is answered with.
func (s sending) receipt(status idemmail.Status) *idemmail.Receipt {
	r := &idemmail.Receipt{Status: status, Transport: s.transport, MessageID: s.messageID}
	if status == idemmail.StatusSent {
		r.ProviderID = strconv.Itoa(s.number)
	}
	return r
}
