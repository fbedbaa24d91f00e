package main

import (
	"context"
	"fmt"
	"io"
	"net/textproto"
	"os"

	"github.com/idemmail/idemmail"
)

// Recipients that are not like others.
const (
	busy    = "busy@example.org"   // the provider is busy, the first time in each process
	refused = "nobody@example.org" // it refuses this one
	lost    = "lost@example.org"   // it takes the mail, but its answer does not come
)

// A provider stands in for a real one. It has taken a mail when the mail's key
// and Message-ID are in its file, which stands in for the customers' mailboxes.
type provider struct {
	mailbox *os.File
	wasBusy bool
	crash   crashPoint
}

func openProvider(name string, crash crashPoint) (*provider, error) {
	mailbox, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	return &provider{mailbox: mailbox, crash: crash}, nil
}

func (p *provider) close() error { return p.mailbox.Close() }

// Send is an [idemmail.Transport]'s. The worker sends one mail at a time.
func (p *provider) Send(_ context.Context, m *idemmail.Message) (*idemmail.Receipt, error) {
	key, to := m.IdempotencyKey, m.To[0].Address
	p.crash.at("mid-send", key)
	switch {
	case to == refused:
		return nil, &textproto.Error{Code: 550, Msg: "no such mailbox"}
	case to == busy && !p.wasBusy:
		p.wasBusy = true
		return nil, &textproto.Error{Code: 451, Msg: "busy"}
	}
	if _, err := fmt.Fprintln(p.mailbox, key, m.MessageID); err != nil {
		return nil, idemmail.MayBeSent(err)
	}
	if err := p.mailbox.Sync(); err != nil {
		return nil, idemmail.MayBeSent(err)
	}
	p.crash.at("after-accept", key)
	if to == lost {
		return nil, fmt.Errorf("waiting for the answer: %w", io.ErrUnexpectedEOF)
	}
	return &idemmail.Receipt{Status: idemmail.StatusSent, MessageID: m.MessageID}, nil
}
