package idemmail

import (
	"strings"
	"time"
	"unicode/utf8"
)

// A call is one keyed send on its way through a Guard: what it is about, what
// the store said of its key, and in the end its answer.
type call struct {
	key         string // the caller's, without the namespace
	storeKey    string // with it
	fingerprint string
	messageID   string    // for the receipt, where the transport names none
	sendAt      time.Time // zero: now
	began       time.Time
	patient     bool // may wait for a send in flight
	alone       bool // sent in a call of its own: when its lease is lost, the send is stopped

	first *call // of the same key, earlier in the batch; nil: this is it

	asked   time.Time     // when its reservation was asked for
	token   string        // while the call holds its key
	held    *Record       // what held the key instead
	failure error         // of the store's last answer
	inStore time.Duration // spent waiting for the store
	lost    bool          // its lease is known to be lost
	keepFor time.Duration // how long its receipt is kept

	sent    Result // what the wrapped transport answered
	missing bool   // it did not answer: its SendMany came up short

	self [1]*call // the call as a batch of one

	kind    EventKind // the decision
	receipt *Receipt  // the answer; nil until decided
	err     *SendError
}

// one is the call as a batch of one.
func (c *call) one() []*call {
	c.self[0] = c
	return c.self[:]
}

// record is what the store is to keep of the call.
func (c *call) record() Record {
	return Record{State: StateDone, Fingerprint: c.fingerprint, Receipt: c.receipt}
}

// keeps reports whether the call's receipt is to be kept under its key.
func (c *call) keeps() bool { return c.token != "" && c.receipt.Status != StatusFailed }

// frees reports whether the call's key is to be freed.
func (c *call) frees() bool { return c.token != "" && c.receipt.Status == StatusFailed }

// decided reports whether the call has its answer.
func (c *call) decided() bool { return c.receipt != nil }

// undecide takes the answer back: the call is to be sent after all.
func (c *call) undecide() { c.kind, c.receipt, c.err = "", nil, nil }

// result is the call's answer as its caller gets it.
func (c *call) result() (*Receipt, error) {
	if c.err == nil {
		return c.receipt, nil
	}
	return c.receipt, c.err
}

// answer decides the call: r is its receipt, and its error too unless the
// message was sent.
func (c *call) answer(kind EventKind, r *Receipt, cause error) {
	c.kind, c.receipt, c.err = kind, r, nil
	if r.Status != StatusSent || cause != nil {
		c.err = &SendError{Key: c.key, Receipt: r, Err: cause}
	}
}

const (
	maxText    = 1 << 10 // bytes of a text that a receipt keeps
	maxEntries = 1000    // entries of a list that a receipt keeps
)

// tidy makes a receipt fit to be kept: valid UTF-8, bounded, in milliseconds
// of UTC. It changes r, which must be the caller's own copy.
func tidy(r *Receipt) {
	for _, s := range []*string{(*string)(&r.Status), &r.Transport, &r.MessageID, &r.ProviderID, &r.Code, (*string)(&r.Category)} {
		*s = strings.ToValidUTF8(*s, "\uFFFD")
	}
	r.Response, r.Detail = cut(r.Response), cut(r.Detail)
	r.Accepted = r.Accepted[:min(len(r.Accepted), maxEntries)]
	for i, address := range r.Accepted {
		r.Accepted[i] = strings.ToValidUTF8(address, "\uFFFD")
	}
	r.Rejected = r.Rejected[:min(len(r.Rejected), maxEntries)]
	for i := range r.Rejected {
		r.Rejected[i].Address = strings.ToValidUTF8(r.Rejected[i].Address, "\uFFFD")
		r.Rejected[i].Reason = cut(r.Rejected[i].Reason)
	}
	r.At = r.At.UTC().Truncate(time.Millisecond)
}

// cut makes s valid UTF-8 of at most maxText bytes, without splitting a rune.
// It bounds s first: a huge text costs no more than a small one.
func cut(s string) string {
	if len(s) > maxText {
		end := maxText
		for end > maxText-utf8.UTFMax && !utf8.RuneStart(s[end]) {
			end--
		}
		s = strings.Clone(s[:end])
	}
	if utf8.ValidString(s) {
		return s
	}
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) > maxText {
		return cut(s)
	}
	return s
}
