package idemmail

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"reflect"
	"strings"
	"time"
)

// Options say how messages are guarded. The zero value of every field is a
// sensible default; [New] and [NewGuard] refuse what cannot be meant, naming
// the field. The functions must be safe for concurrent use.
type Options struct {
	// Store keeps the keys; nil means a new [MemStore], which deduplicates
	// within this process only and forgets on a restart. Several transports
	// may share one store.
	Store Store

	// Namespace keeps the keys of different services, tenants or environments
	// on one store apart: in the store a key is "<namespace>:<key>". It obeys
	// the rules of keys, has at most 64 bytes and no ':'. Empty means the ID
	// of the wrapped transport (the first Identifier found through Unwrap),
	// else "mail". Set it in production. A Guard needs one.
	Namespace string

	// Lease is how long a key is reserved for a send before another may take
	// it over; where the store is a [Renewer] it is renewed while the send
	// runs. 0 means 10 minutes. [NoExpiry] means for ever: a key whose process
	// died then waits for an operator. A reservation that is as old as this
	// when the store has answered is renewed before anything is sent. Where the
	// store cannot do that nothing is sent (ErrStoreFailed), and where it is
	// lost by then not even with FailOpen.
	Lease time.Duration

	// TTL is how long a receipt is kept, and so how long a duplicate is known
	// as one, counted from the outcome, or from SendAt where that is later.
	// It has to outlast the longest retry of your queue. 0 means 24 hours,
	// [NoExpiry] for ever.
	TTL time.Duration

	// StoreTimeout bounds each call of the store, and settling a key with all
	// its tries, of which each gets half of the time that is left. 0 means 5
	// seconds. Keep it below a third of Lease, so that a renewal that hangs
	// leaves time for another.
	StoreTimeout time.Duration

	// MaxSend bounds a send: when it has passed, the send's context ends and
	// its lease is no longer renewed. One message where a batch goes one after
	// another, the whole call of a wrapped SendMany. 0 means 10 leases, and no
	// bound where Lease is NoExpiry.
	MaxSend time.Duration

	// WaitInFlight is how long a send whose key is in flight waits for the
	// first one's outcome before it is answered ErrInFlight. 0 means not at
	// all. SendMany never waits.
	WaitInFlight time.Duration

	// AtMostOnce makes a reservation final. By default a send whose process
	// died goes again once its lease has passed: at least once. With
	// AtMostOnce it never does: its key answers ErrAbandoned once it is older
	// than Lease, and unknown outcomes are kept for ever, until an operator
	// settles them (see [Reconciler]). Definite failures still free the key,
	// and the receipt of a sent message is kept for TTL. A [MemStore] forgets
	// all of it on a restart. A reservation whose answer was lost, and which
	// could not be freed either, waits for an operator too, though nothing was
	// sent.
	AtMostOnce bool

	// RejectDuplicates answers a duplicate with ErrDuplicate beside the first
	// one's receipt, instead of the receipt and a nil error.
	RejectDuplicates bool

	// FailOpen sends a message without a reservation when the store cannot
	// reserve its key: a duplicate rather than no mail while the store is
	// down. It never goes past a bad record, a context that has ended, or a
	// reservation that is known to be lost to another send, and New refuses it
	// together with AtMostOnce.
	FailOpen bool

	// RequireKey refuses messages with an empty key, which are otherwise sent
	// as they are.
	RequireKey bool

	// Key derives a message's key; nil means its IdempotencyKey. An empty
	// result leaves the message out. It must answer the same each time that
	// the same mail is attempted, and must not change the message.
	Key func(*Message) string

	// RawKey is Key for raw messages; nil means the raw message's
	// IdempotencyKey.
	RawKey func(*RawMessage) string

	// Fingerprint replaces the function [Fingerprint], which tells one message
	// from another under a key. Its value is kept as "c:" and the value, and
	// compared whole; a value that is not text (not valid UTF-8, or with NUL)
	// is kept as "c:" and its SHA-256 in hexadecimal. Raw messages keep
	// [FingerprintRaw].
	Fingerprint func(*Message) string

	// Classify replaces [ClassifyError], which tells "not sent" from "may have
	// been sent".
	Classify func(error) Delivery

	// MessageIDDomain, if set, gives a keyed message that has no Message-ID
	// one that is made from its namespace and key under this domain. It is the
	// same on every attempt in every process, so that mail systems which drop
	// equal Message-IDs can drop a duplicate that does go out.
	MessageIDDomain string

	// Logger gets what an operator should know: store failures, lost leases,
	// reused keys and unknown outcomes at warn, keys in flight at info, the
	// rest at debug. Keys and store errors are logged; addresses, subjects,
	// bodies and the errors of transports never. Nil means slog.Default(),
	// taken at each call.
	Logger *slog.Logger

	// Observe gets one Event per decision, synchronously. A panic in it is
	// caught. It must not change or keep the receipt.
	Observe func(ctx context.Context, e Event)
}

const (
	defaultLease        = 10 * time.Minute
	defaultTTL          = 24 * time.Hour
	defaultStoreTimeout = 5 * time.Second
	defaultNamespace    = "mail"
	maxSendLeases       = 10

	maxKeyBytes       = 512
	maxNamespaceBytes = 64
)

// withDefaults returns o with every zero duration replaced by its default.
func (o Options) withDefaults() Options {
	if o.Lease == 0 {
		o.Lease = defaultLease
	}
	if o.TTL == 0 {
		o.TTL = defaultTTL
	}
	if o.StoreTimeout == 0 {
		o.StoreTimeout = defaultStoreTimeout
	}
	if o.MaxSend == 0 && o.Lease != NoExpiry {
		o.MaxSend = math.MaxInt64
		if o.Lease <= math.MaxInt64/maxSendLeases {
			o.MaxSend = maxSendLeases * o.Lease
		}
	}
	if o.Classify == nil {
		o.Classify = ClassifyError
	}
	return o
}

// validate reports every field that breaks its rule. It is asked before
// withDefaults, and after the namespace is known.
func (o Options) validate() error {
	var errs []error
	refuse := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("idemmail: Options."+format, args...))
	}
	if v := reflect.ValueOf(o.Store); v.Kind() == reflect.Pointer && v.IsNil() {
		refuse("Store is a nil %T: leave the field out for a new MemStore", o.Store)
	}
	if err := checkNamespace(o.Namespace); err != nil {
		refuse("Namespace %q: %w", o.Namespace, err)
	}
	for _, d := range []struct {
		name     string
		value    time.Duration
		noExpiry bool
	}{
		{"Lease", o.Lease, true},
		{"TTL", o.TTL, true},
		{"StoreTimeout", o.StoreTimeout, false},
		{"MaxSend", o.MaxSend, false},
		{"WaitInFlight", o.WaitInFlight, false},
	} {
		switch {
		case d.value >= 0, d.noExpiry && d.value == NoExpiry:
		case d.noExpiry:
			refuse("%s is %v: it must be positive, 0 for the default, or NoExpiry", d.name, d.value)
		default:
			refuse("%s is %v: it must not be negative", d.name, d.value)
		}
	}
	if o.FailOpen && o.AtMostOnce {
		refuse("FailOpen and AtMostOnce exclude each other: a message sent without a reservation may go twice")
	}
	if o.MessageIDDomain != "" {
		if err := checkDomain(o.MessageIDDomain); err != nil {
			refuse("MessageIDDomain %q: %w", o.MessageIDDomain, err)
		}
	}
	return errors.Join(errs...)
}

// checkDomain accepts host names as RFC 5321 4.1.2 has them: labels of
// letters, digits and inner hyphens, so that the Message-ID is one that every
// mail system takes.
func checkDomain(domain string) error {
	if len(domain) > 253 {
		return errors.New("longer than 253 bytes")
	}
	for label := range strings.SplitSeq(domain, ".") {
		switch {
		case label == "":
			return errors.New("has an empty label")
		case len(label) > 63:
			return errors.New("has a label of more than 63 bytes")
		case label[0] == '-' || label[len(label)-1] == '-':
			return errors.New("has a label that begins or ends with a hyphen")
		}
		for i := range len(label) {
			switch c := label[i]; {
			case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-':
			default:
				return fmt.Errorf("has %q: only letters, digits, hyphens and dots are allowed (use the punycode form of an international name)", c)
			}
		}
	}
	return nil
}
