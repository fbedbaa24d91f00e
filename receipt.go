package idemmail

import "time"

// Status is what became of a message.
type Status string

const (
	StatusSent    Status = "sent"    // the provider or server took it
	StatusFailed  Status = "failed"  // it was not taken: sending it again cannot double it
	StatusUnknown Status = "unknown" // it may have been taken; only the provider knows
)

// Category says what kind of thing went wrong.
type Category string

const (
	CategoryValidation Category = "validation" // the message itself
	CategoryAuth       Category = "auth"       // credentials or permissions
	CategoryRateLimit  Category = "rate_limit" // too many messages
	CategoryNetwork    Category = "network"    // no connection, or a lost one
	CategoryTimeout    Category = "timeout"    // no answer in time
	CategoryProvider   Category = "provider"   // the server's own trouble
	CategoryUnknown    Category = "unknown"    // none of these; also everything that this package itself decides, so that a circuit breaker does not count it against the provider
)

// A Receipt tells what became of a message. It is what a [Store] keeps of a
// send and what every later send under the same key is answered with.
//
// Receipts that come from this package are copies: the caller may change them.
// Their strings are valid UTF-8, Detail, Response and each Rejection's Reason
// are cut to 1 KiB, and the lists to 1,000 entries, so that what is kept under
// a key stays small and a replay shows what the first answer showed.
type Receipt struct {
	Status     Status      `json:"status" bson:"status"`
	Transport  string      `json:"transport,omitempty" bson:"transport,omitempty"`     // ID of the transport that answered
	MessageID  string      `json:"message_id,omitempty" bson:"message_id,omitempty"`   // the Message-ID, without angle brackets
	ProviderID string      `json:"provider_id,omitempty" bson:"provider_id,omitempty"` // the provider's id of the message: SES MessageId, SMTP queue id
	Response   string      `json:"response,omitempty" bson:"response,omitempty"`       // the server's last reply
	Accepted   []string    `json:"accepted,omitzero" bson:"accepted"`                  // recipients that the server took, where the transport tells
	Rejected   []Rejection `json:"rejected,omitzero" bson:"rejected"`                  // recipients that the server refused
	At         time.Time   `json:"at,omitzero" bson:"at"`                              // when the outcome was known; UTC, milliseconds
	Code       string      `json:"code,omitempty" bson:"code,omitempty"`               // machine-readable reason; empty for sent
	Category   Category    `json:"category,omitempty" bson:"category,omitempty"`       // empty for sent
	Retryable  bool        `json:"retryable,omitempty" bson:"retryable,omitempty"`     // sending again may succeed; never true where it may double
	Detail     string      `json:"detail,omitempty" bson:"detail,omitempty"`           // the error's text

	// Replayed is set when the receipt is that of an earlier send: this call
	// sent nothing. It is never stored.
	Replayed bool `json:"-" bson:"-"`
}

// A Rejection is one recipient that the server refused, and why.
type Rejection struct {
	Address string `json:"address" bson:"address"`
	Reason  string `json:"reason,omitempty" bson:"reason,omitempty"` // the server's reply
	Code    int    `json:"code,omitempty" bson:"code,omitempty"`     // the reply code, such as 550; 0: none
}

// Codes that this package puts into a [Receipt]. Each has a sentinel error that
// errors.Is finds in the [SendError] that carries the receipt.
const (
	CodeInFlight      = "idempotency.in_flight"
	CodeKeyReused     = "idempotency.key_reused"
	CodeInvalidKey    = "idempotency.invalid_key"
	CodeNotBegun      = "idempotency.not_begun"
	CodeAborted       = "idempotency.aborted"
	CodeAbandoned     = "idempotency.abandoned"
	CodePanicked      = "idempotency.panicked"
	CodeStoreFailed   = "idempotency.store_failed"
	CodeBatchMismatch = "idempotency.batch_mismatch"
)

// clone returns a copy that shares nothing with r. Nil lists stay nil and
// empty ones empty.
func (r *Receipt) clone() *Receipt {
	if r == nil {
		return nil
	}
	c := *r
	if r.Accepted != nil {
		c.Accepted = append(make([]string, 0, len(r.Accepted)), r.Accepted...)
	}
	if r.Rejected != nil {
		c.Rejected = append(make([]Rejection, 0, len(r.Rejected)), r.Rejected...)
	}
	return &c
}
