package idemmail_test

import (
	"context"
	"sync"

	"github.com/idemmail/idemmail"
)

// handedOn keeps what a wrapped transport is given.
type handedOn struct {
	mu       sync.Mutex
	messages []*idemmail.Message
	raws     []*idemmail.RawMessage
}

func (h *handedOn) single() idemmail.Transport {
	return idemmail.TransportFunc(func(_ context.Context, m *idemmail.Message) (*idemmail.Receipt, error) {
		h.keep(m)
		return nil, nil
	})
}

func (h *handedOn) together() idemmail.Transport {
	return batchFunc{h.single(), func(_ context.Context, msgs []*idemmail.Message) []idemmail.Result {
		h.keep(msgs...)
		return make([]idemmail.Result, len(msgs))
	}}
}

func (h *handedOn) raw() idemmail.Transport {
	return rawTransport{send: func(_ context.Context, m *idemmail.RawMessage) (*idemmail.Receipt, error) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.raws = append(h.raws, m)
		return nil, nil
	}}
}

func (h *handedOn) keep(msgs ...*idemmail.Message) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.messages = append(h.messages, msgs...)
}

// count is how many messages were given.
func (h *handedOn) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.messages) + len(h.raws)
}

// message is the last one given.
func (h *handedOn) message() *idemmail.Message {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.messages[len(h.messages)-1]
}

// rawMessage is the last one given.
func (h *handedOn) rawMessage() *idemmail.RawMessage {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.raws[len(h.raws)-1]
}
