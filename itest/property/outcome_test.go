package property

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"pgregory.net/rapid"

	"github.com/idemmail/idemmail"
)

// An outcome is what a transport does with a message.
type outcome struct {
	receipt  string // none, empty, sent, failed, unknown, odd
	err      string // nil, not delivered, unspecified, unknown, in flight
	accepted bool   // the receipt lists a recipient that was accepted
	coded    bool   // it has a code of the transport's own
	cancels  bool   // the caller's context ends meanwhile
	lasts    time.Duration
	waits    bool   // until its context ends, whose error it answers
	exit     string // empty: it returns; panic, goexit
}

func drawOutcome(t *rapid.T, alone bool) outcome {
	o := outcome{
		receipt:  rapid.SampledFrom([]string{"none", "none", "sent", "sent", "empty", "failed", "unknown", "odd"}).Draw(t, "receipt"),
		err:      rapid.SampledFrom([]string{"nil", "nil", "nil", "not delivered", "not delivered", "unspecified", "unknown", "in flight"}).Draw(t, "err"),
		accepted: rapid.IntRange(0, 4).Draw(t, "accepted") == 0,
		coded:    rapid.IntRange(0, 4).Draw(t, "coded") == 0,
		cancels:  rapid.IntRange(0, 5).Draw(t, "cancels") == 0,
	}
	if alone {
		o.lasts = rapid.SampledFrom([]time.Duration{0, 0, 0, time.Second, 25 * time.Minute}).Draw(t, "lasts")
		o.waits = rapid.IntRange(0, 15).Draw(t, "waits") == 0
	}
	if rapid.IntRange(0, 15).Draw(t, "exits") == 0 {
		o.exit = rapid.SampledFrom([]string{"panic", "goexit"}).Draw(t, "exit")
	}
	return o
}

// What transports answer. Their text must not be in any log.
var (
	errTransport = errors.New("secret: the transport's own error")
	errBeneath   = fmt.Errorf("secret: %w", idemmail.ErrInFlight) // as a decorator beneath would say
)

const secretAddress = "secret@example.com"

// do does it. id tells this send from all others.
func (o outcome) do(ctx context.Context, cancel func(), id string) (*idemmail.Receipt, error) {
	time.Sleep(o.lasts)
	if o.cancels {
		cancel()
	}
	switch o.exit {
	case "panic":
		panic(errTransport)
	case "goexit":
		runtime.Goexit()
	}
	var r *idemmail.Receipt
	if o.receipt != "none" {
		status := idemmail.Status(o.receipt)
		if o.receipt == "empty" {
			status = ""
		}
		r = &idemmail.Receipt{Status: status, ProviderID: id, Response: "secret"}
		if o.accepted {
			r.Accepted = []string{secretAddress}
		}
		if o.coded {
			r.Code = "own.code"
		}
	}
	if o.waits {
		<-ctx.Done()
		return r, ctx.Err()
	}
	switch o.err {
	case "not delivered":
		return r, idemmail.NotSent(errTransport)
	case "unspecified":
		return r, errTransport
	case "unknown":
		return r, idemmail.MayBeSent(errTransport)
	case "in flight":
		return r, errBeneath
	}
	return r, nil
}

// witnesses is the table of SEMANTICS.md: what the receipt's status and the
// error come to. Its columns: no error, not delivered, unspecified, unknown.
var witnesses = map[string][4]idemmail.Status{
	"none":    {"sent", "failed", "failed", "unknown"}, // unspecified: unknown, once the context is done
	"sent":    {"sent", "unknown", "unknown", "unknown"},
	"failed":  {"failed", "failed", "failed", "unknown"},
	"unknown": {"unknown", "unknown", "unknown", "unknown"},
}

// weigh says what an outcome comes to, where the send's context is done or not.
func (o outcome) weigh(done bool) (status idemmail.Status, code string) {
	if o.exit != "" {
		return idemmail.StatusUnknown, idemmail.CodePanicked
	}
	receipt, accepted := o.receipt, o.accepted && o.receipt != "none"
	switch receipt {
	case "empty":
		receipt = "none"
	case "odd":
		receipt = "unknown"
	}
	column, done := o.column(), done || o.cancels
	if column == "in flight" {
		if receipt != "sent" && !accepted {
			return idemmail.StatusFailed, idemmail.CodeInFlight
		}
		column = "unspecified"
	}
	switch column {
	case "nil":
		status = witnesses[receipt][0]
	case "not delivered":
		status = witnesses[receipt][1]
	case "unspecified":
		if status = witnesses[receipt][2]; receipt == "none" && done {
			status = idemmail.StatusUnknown
		}
	case "unknown":
		status = witnesses[receipt][3]
	}
	if status == idemmail.StatusFailed && accepted {
		status = idemmail.StatusUnknown
	}
	if o.coded && o.receipt != "none" {
		code = "own.code"
	} else if status == idemmail.StatusUnknown && column != "nil" && done {
		code = idemmail.CodeAborted
	}
	return status, code
}

func (o outcome) column() string {
	if o.waits {
		return "unknown"
	}
	return o.err
}

// cause is the transport's own error in what is answered.
func (o outcome) cause() error {
	switch o.column() {
	case "nil":
		return nil
	case "in flight":
		return idemmail.ErrInFlight
	}
	if o.waits {
		return nil // the context's, which depends
	}
	return errTransport
}
