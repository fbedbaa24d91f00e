package idemmail

import "context"

// SendMany sends each message once under its key and answers one Result per
// message, in order. Messages without a key are handed on as they are.
//
// Where the wrapped transport is a [BatchTransport] it gets all that are to go
// in one call; keys are then reserved before it and settled after it, in one
// call of the store each where that is a [BatchStore]. Otherwise the messages
// go one after another, and each key is reserved just before its own send and
// settled as soon as its own outcome is known, so that a crash midway repeats
// nothing that was kept and abandons one key at most.
//
// A key that comes twice in msgs is sent once: the later message is answered
// with a copy of the first one's receipt and error, or as key reused where it
// is another message. One message's failure fails no other. A send in flight
// elsewhere is never waited for.
func (t *IdempotencyTransport) SendMany(ctx context.Context, msgs []*Message) []Result {
	b := &batch{
		transport: t,
		messages:  msgs,
		calls:     make([]*call, len(msgs)),
		results:   make([]Result, len(msgs)),
		firsts:    make(map[string]*call),
	}
	if t.batch != nil {
		b.sendTogether(ctx)
	} else {
		b.sendInTurn(ctx)
	}
	return b.results
}

// A batch is one SendMany on its way. Every slice has an element per message.
type batch struct {
	transport *IdempotencyTransport
	messages  []*Message
	calls     []*call // nil: the message has no key
	results   []Result
	firsts    map[string]*call // by key
}

// sendInTurn sends one message after another.
func (b *batch) sendInTurn(ctx context.Context) {
	t := b.transport
	for i, m := range b.messages {
		c := b.prepare(ctx, i)
		switch {
		case c == nil:
			b.results[i].Receipt, b.results[i].Err = t.next.Send(ctx, m)
			continue
		case c.decided():
		case c.first != nil:
			t.guard.follow(ctx, c)
		default:
			t.deliver(ctx, c, m)
		}
		b.results[i].Receipt, b.results[i].Err = c.result()
	}
}

// sendTogether hands all messages that are to go to the wrapped SendMany.
func (b *batch) sendTogether(ctx context.Context) {
	g := b.transport.guard
	var leaders []*call
	for i := range b.messages {
		if c := b.prepare(ctx, i); c != nil && !c.decided() && c.first == nil {
			c.alone = false
			leaders = append(leaders, c)
		}
	}
	if going := g.reserve(ctx, leaders); len(going) > 0 {
		g.deliver(ctx, going, b.handOn)
	} else {
		b.handOn(ctx)
	}
	for i, c := range b.calls {
		if c == nil {
			continue
		}
		if c.first != nil {
			g.follow(ctx, c)
		}
		b.results[i].Receipt, b.results[i].Err = c.result()
	}
}

// prepare makes the call of message i: nil where the message has no key,
// decided where it cannot be sent, and with its first where its key came
// earlier in the batch.
func (b *batch) prepare(ctx context.Context, i int) *call {
	t, m := b.transport, b.messages[i]
	if m == nil {
		b.calls[i] = t.refuseNil("message")
		return b.calls[i]
	}
	key := t.key(m)
	if key == "" && !t.guard.options.RequireKey {
		return nil
	}
	c := t.guard.newCall(key)
	c.patient = false
	b.calls[i] = c
	if t.prepare(ctx, c, m) {
		if c.first = b.firsts[key]; c.first == nil {
			b.firsts[key] = c
		}
	}
	return c
}

// handOn gives the wrapped SendMany the messages that are to go, in their
// order: those without a key, and those whose call is neither decided nor the
// second of its key.
func (b *batch) handOn(ctx context.Context) {
	t := b.transport
	var messages []*Message
	var positions []int
	for i, m := range b.messages {
		c := b.calls[i]
		switch {
		case c == nil:
		case c.decided() || c.first != nil:
			continue
		default:
			m = t.keyed(c, m)
		}
		messages = append(messages, m)
		positions = append(positions, i)
	}
	if len(messages) == 0 {
		return
	}
	answers := t.batch.SendMany(ctx, messages)
	for n, i := range positions {
		c := b.calls[i]
		switch {
		case n < len(answers) && c != nil:
			c.sent = answers[n]
		case n < len(answers):
			b.results[i] = answers[n]
		case c != nil:
			c.missing = true
		default:
			// A message without a key is nobody's to keep, but an empty
			// Result would call it sent.
			c = new(call)
			t.guard.refuse(c, CodeBatchMismatch, nil)
			b.results[i].Receipt, b.results[i].Err = c.result()
		}
	}
}

// follow answers a call whose key came earlier in the same batch: from the
// record that the first one met, or from the first one's own answer.
func (g *Guard) follow(ctx context.Context, c *call) {
	first := c.first
	switch {
	case first.held != nil:
		g.answerFrom(ctx, c, first.held.clone())
	case !sameFingerprint(first.fingerprint, c.fingerprint):
		g.refuse(c, CodeKeyReused, nil)
	default:
		g.replay(c, first.receipt.clone(), first.err)
	}
	g.report(ctx, c)
}
