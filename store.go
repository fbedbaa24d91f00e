package idemmail

import (
	"context"
	"iter"
	"time"
)

// NoExpiry, as a lease or a TTL, means that it never ends.
const NoExpiry time.Duration = -1

// State is how far the send under a key has come.
type State string

const (
	StatePending State = "pending" // reserved, not yet settled
	StateDone    State = "done"    // settled with a receipt
)

// A Record is what a store keeps under a key.
type Record struct {
	State       State
	Fingerprint string   // of the message that the key was reserved for; exactly the string given
	Receipt     *Receipt // once done

	// Age is set by the store when it answers: the time since the record was
	// reserved, renewed or completed, whichever came last, by the store's
	// clock. It is ignored in what is given to a store.
	Age time.Duration
}

// clone returns a copy that shares nothing with r.
func (r *Record) clone() *Record {
	if r == nil {
		return nil
	}
	c := *r
	c.Receipt = r.Receipt.clone()
	return &c
}

// A Store keeps the keys. It does three things, each one atomic step on the
// store itself: reading first and writing after is not enough, since two
// processes may read at the same time.
//
// Keys come with their namespace in front ("orders:order/1042"), are valid
// UTF-8 without control characters, and may hold any other character. A store
// keeps them apart exactly: no folding of case, no pattern characters.
//
// Durations are positive or [NoExpiry]. A store rounds one up to its own unit,
// never down to nothing; it refuses a zero one and any other negative one with
// an error and writes nothing. Ages and expiry are reckoned by the store's own
// clock, not by its clients'. A record whose time has passed holds its key no
// longer: it is as if it were not there, whether or not it was cleaned up.
//
// A Receipt survives unchanged, but for Replayed: nil and empty lists stay
// what they are, times keep milliseconds. What a store was given, or answers,
// shares no memory with what it keeps.
//
// Every method returns soon after its context ends, with an error that wraps
// the context's; what the call did on the store is then unknown. (A call that
// is [Awaited] is left behind where it does not.) Loops that try again are
// bounded and end with the context. Methods are safe for
// concurrent use. Data under a key that is not a record of the store's own,
// or is of a state or format that this version does not know, is answered
// with an error that wraps [ErrBadRecord], and never written over; further
// fields in a record that is otherwise known are no fault.
//
// Package storetest tests all this.
type Store interface {
	// Reserve takes the key for lease. Where no record holds the key within
	// its time, it keeps a pending record with the fingerprint under a new
	// token that cannot be guessed, in place of any record whose time has
	// passed and showing nothing of it, and answers the token and a nil
	// record. Otherwise it answers an empty token and the record that holds
	// the key.
	//
	// A client that repeats the reserving command by itself after a lost
	// answer may find its own token in the record: it is then the owner and
	// answers the token. A Reserve that ends in an error tries, best effort
	// and bounded, to free the key that it may have taken.
	Reserve(ctx context.Context, key, fingerprint string, lease time.Duration) (token string, held *Record, err error)

	// Complete keeps rec (State done, its fingerprint and receipt) under the
	// key for ttl, when token holds the key, pending or done, or nothing holds
	// it. Otherwise it answers [ErrLeaseLost] and changes nothing. A done
	// record keeps its token, so completing again under it is no error.
	Complete(ctx context.Context, key, token string, rec Record, ttl time.Duration) error

	// Release frees the key when token holds it pending. A key that nothing
	// holds is no error. One that another token holds, or that is done,
	// answers [ErrLeaseLost] and is left as it is.
	Release(ctx context.Context, key, token string) error
}

// A Renewer is a store that can extend a lease.
type Renewer interface {
	// Renew lets the lease of the key that token holds, pending and within its
	// time, begin anew, and with it the record's age. A key that is missing,
	// expired, done or another's answers [ErrLeaseLost] and is left as it is.
	Renew(ctx context.Context, key, token string, lease time.Duration) error
}

// A BatchStore does many keys in one call. Each method answers one result per
// request, in order; each request is judged as the method of one key would
// judge it, and the failure of one is no failure of another. A context that
// ends, or a store that is down, is an error in each result that it touches.
// Requests of one call never name a key twice. A BatchStore is a [Renewer] too.
type BatchStore interface {
	ReserveMany(ctx context.Context, reqs []ReserveRequest) []ReserveResult
	CompleteMany(ctx context.Context, reqs []CompleteRequest) []error
	ReleaseMany(ctx context.Context, reqs []ReleaseRequest) []error
	RenewMany(ctx context.Context, reqs []RenewRequest) []error
}

// A ReserveRequest has the arguments of [Store] Reserve.
type ReserveRequest struct {
	Key, Fingerprint string
	Lease            time.Duration
}

// A ReserveResult has the results of [Store] Reserve.
type ReserveResult struct {
	Token string
	Held  *Record
	Err   error
}

// A CompleteRequest has the arguments of [Store] Complete.
type CompleteRequest struct {
	Key, Token string
	Record     Record
	TTL        time.Duration
}

// A ReleaseRequest has the arguments of [Store] Release.
type ReleaseRequest struct{ Key, Token string }

// A RenewRequest has the arguments of [Renewer] Renew.
type RenewRequest struct {
	Key, Token string
	Lease      time.Duration
}

// A Reconciler is a store whose unsettled keys can be listed and settled by an
// operator. What Store says of contexts and bad records holds here too.
type Reconciler interface {
	// Lookup answers what holds the key within its time; nil and a nil error
	// where nothing does.
	Lookup(ctx context.Context, key string) (*Entry, error)

	// Unsettled lists, in no order, the keys that begin with prefix (taken
	// literally) and are within their time, and are done with a receipt of
	// status unknown, or pending with an age of olderThan or more. It streams:
	// it does not collect them first, and it may be ended early. A key that is
	// settled or reserved meanwhile may or may not be listed. Data under such
	// a key that is not a record yields an error that wraps [ErrBadRecord] and
	// names the key, beside an entry with that Key alone, and the listing goes
	// on. Any other error ends it.
	Unsettled(ctx context.Context, prefix string, olderThan time.Duration) iter.Seq2[Entry, error]

	// Resolve keeps the key of e done with r for ttl, under a new token and
	// with the record's fingerprint, when the key still holds e's token in e's
	// state, within its time; otherwise it answers [ErrChanged] and changes
	// nothing. A nil r means a bare receipt of status sent. One of any other
	// status is refused with an error, and nothing is changed.
	Resolve(ctx context.Context, e Entry, r *Receipt, ttl time.Duration) error

	// Forget frees the key of e, when it still holds e's token in e's state,
	// within its time; otherwise it answers [ErrChanged] and changes nothing.
	Forget(ctx context.Context, e Entry) error
}

// An Entry is a record as a [Reconciler] shows it.
type Entry struct {
	Key       string
	Token     string // with Record.State, fences Resolve and Forget
	Record    Record
	ExpiresAt time.Time // zero: never
}
