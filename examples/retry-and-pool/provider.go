package main

import (
	"context"
	"fmt"
	"io"
	"net/textproto"
	"strings"

	"github.com/idemmail/idemmail"
)

// does is what a provider does when it is asked to send a message.
type does string

const (
	takes   does = "takes"
	busy    does = "busy"    // 451: not taken, may be the next time
	refuses does = "refuses" // 550: not taken, and never will be
	loses   does = "loses"   // takes it, but its answer does not come
)

// tell tells what a provider does, attempt by attempt.
func tell(script []does) string {
	var words []string
	for _, d := range script {
		words = append(words, string(d))
	}
	return strings.Join(words, ", ")
}

// A provider stands in for the transport of a real one. It follows its script
// and counts. It is for one goroutine.
type provider struct {
	name   string
	script map[string][]does // by key
	asked  map[string]int
	took   map[string]int
}

func newProvider(name string) *provider {
	return &provider{name, make(map[string][]does), make(map[string]int), make(map[string]int)}
}

// Send tells the truth about what became of the message, as each transport has
// to: everything around it relies on that.
func (p *provider) Send(_ context.Context, m *idemmail.Message) (*idemmail.Receipt, error) {
	script, key := p.script[m.IdempotencyKey], m.IdempotencyKey
	now := script[min(p.asked[key], len(script)-1)]
	p.asked[key]++
	switch now {
	case busy:
		return p.failed(&textproto.Error{Code: 451, Msg: "busy"}, true)
	case refuses:
		return p.failed(&textproto.Error{Code: 550, Msg: "not this one"}, false)
	case loses:
		p.took[key]++
		err := fmt.Errorf("%s: waiting for the answer: %w", p.name, io.ErrUnexpectedEOF)
		return &idemmail.Receipt{
			Status:   idemmail.StatusUnknown,
			Code:     "network",
			Category: idemmail.CategoryNetwork,
		}, idemmail.MayBeSent(err)
	default:
		p.took[key]++
		return &idemmail.Receipt{Status: idemmail.StatusSent, ProviderID: p.name}, nil
	}
}

func (p *provider) failed(reply *textproto.Error, retryable bool) (*idemmail.Receipt, error) {
	return &idemmail.Receipt{
		Status:    idemmail.StatusFailed,
		Code:      fmt.Sprintf("smtp.%d", reply.Code),
		Category:  idemmail.CategoryProvider,
		Retryable: retryable,
	}, fmt.Errorf("%s: %w", p.name, reply)
}
