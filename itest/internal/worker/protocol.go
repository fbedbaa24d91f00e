// Package worker runs senders for tests: in another process, that can be
// killed, or in the test's own, by the same code.
//
// The test says what a worker sends and what becomes of it: the worker's
// transport tells that a send has begun and waits for its outcome. A worker
// that is to die at a certain step stops there and tells so.
package worker

import (
	"time"

	"github.com/idemmail/idemmail"
)

// A Config is what a worker works with.
type Config struct {
	URL       string // of its store, as package backend has it
	Namespace string
	Modes     map[string]Mode // by the name that a send gives
	StopAt    Step            // where the sends that are to stop do so

	// SMTP is the address of the server that its mail goes to. Empty: to the
	// test, which says what becomes of it.
	SMTP string

	// Store is used instead of one on URL. Only of a worker in the test's own
	// process.
	Store idemmail.Store `json:"-"`
}

// A Mode is what of idemmail.Options a worker is told.
type Mode struct {
	Lease, TTL, StoreTimeout, MaxSend, WaitInFlight time.Duration
	AtMostOnce, FailOpen                            bool
}

// A Step is a moment in a send.
type Step string

// In the middle of a store's command means that the server has carried it out
// and that the sender has not heard of it.
const (
	BeforeReserve  Step = "before reserve"
	MidReserve     Step = "mid-reserve"
	AfterReserve   Step = "after reserve"
	BeforeComplete Step = "before complete"
	MidComplete    Step = "mid-complete"
	AfterComplete  Step = "after complete"
	BeforeRelease  Step = "before release"
	MidRelease     Step = "mid-release"
	AfterRelease   Step = "after release"
)

// An Outcome is what becomes of a send.
type Outcome string

const (
	Sent    Outcome = "sent"
	Failed  Outcome = "failed"  // surely not sent
	Unknown Outcome = "unknown" // perhaps sent
	Panic   Outcome = "panic"
	Hang    Outcome = "hang" // until its context ends, whose error it then answers
)

// An Answer is what a send was answered.
type Answer struct {
	Status     idemmail.Status
	Code       string
	ProviderID string
	Replayed   bool
	Retryable  bool
	Nil        bool     // the error was nil
	Is         []string // the names of the errors that it was
	Panicked   bool     // instead of all this
}

// A request is a line to a worker.
type request struct {
	Send    []message `json:",omitempty"` // with Batch in one call of SendMany, else it is one
	Batch   bool      `json:",omitempty"`
	Mode    string    `json:",omitempty"`
	Outcome Outcome   `json:",omitempty"` // of the send ID
	Cancel  bool      `json:",omitempty"` // the context of the send ID
	GoOn    bool      `json:",omitempty"` // the send ID, which stopped
	ID      int       `json:",omitempty"`
}

// A message is one of a request.
type message struct {
	ID      int
	Key     string
	Subject string
	SendAt  time.Time
	Stop    bool // at Config.StopAt
	Deaf    bool // the transport does not heed its context
}

// A note is a line from a worker.
type note struct {
	ID       int
	Began    bool               `json:",omitempty"` // the transport was called
	Stopped  bool               `json:",omitempty"`
	Observed idemmail.EventKind `json:",omitempty"`
	Answer   *Answer            `json:",omitempty"`
}
