package sqlstore

import (
	"context"
	"database/sql"
	"strings"
	"time"

	"github.com/idemmail/idemmail"
)

// ReserveTx is Reserve within the caller's transaction: the key is reserved if,
// and when, the transaction is committed. Until it ends, others who ask for the
// key wait for it, and so does a second transaction that reserves it; that one
// then finds it held, or free after a rollback.
//
// key is as the store has it, with the namespace in front and a colon between;
// fingerprint is what the transport will ask with: idemmail.Fingerprint of the
// message, say. lease counts from this call, not from the commit. After the
// commit, send under a context of [WithReservation], in this process or
// another. Nobody else can send under the key until lease has passed; then
// anybody can, as with every reservation whose owner is gone.
//
// An error, other than one about the arguments, leaves the transaction fit only
// to be rolled back: nothing is tried again here. Those that the database calls
// serialization failures ask for the whole transaction to be done anew.
//
// Do not send before the commit, nor keep the transaction open for a send: a
// commit that fails would forget a message that went.
func (s *Store) ReserveTx(ctx context.Context, tx *sql.Tx, key, fingerprint string, lease time.Duration) (token string, held *idemmail.Record, err error) {
	p := newReservation(ctx, key, fingerprint, lease)
	p.token = reservedToken + p.token
	s.put(ctx, session{tx: tx}, s.sql.reserve, []*put{p})
	r := p.reserved()
	return r.Token, r.Held, r.Err
}

// reservedToken begins the tokens of ReserveTx: no send has begun under them.
const reservedToken = "tx-"

// reservedKey is the key, in a context, of the token that a key is reserved
// under.
type reservedKey string

// WithReservation returns a context under which Reserve and ReserveMany of this
// package take up what [Store.ReserveTx] reserved key under, once: they give it
// a new token, and the lease that they are called with. Where that reservation
// is no more, was taken up already, or is for a message with another
// fingerprint, they do as under any other context.
//
// Of several who take up one reservation, one is answered the new token, and
// the others find the key held. Contexts for several keys are made one from the
// other.
func WithReservation(ctx context.Context, key, token string) context.Context {
	return context.WithValue(ctx, reservedKey(key), token)
}

// reservation answers the token of ReserveTx that the context has for the key,
// or none. It is none of a send's, which must not be taken from it.
func reservation(ctx context.Context, key string) string {
	token, _ := ctx.Value(reservedKey(key)).(string)
	if !strings.HasPrefix(token, reservedToken) {
		return ""
	}
	return token
}

// claim takes up the reservations of the puts that have one.
func (s *Store) claim(ctx context.Context, puts []*put) {
	for _, p := range puts {
		if p.reservation == "" || p.err != nil {
			continue
		}
		p.begun = true
		changed, err := s.change(ctx, s.own, s.sql.claim, [][]any{{p.key, p.reservation, p.token, p.fingerprint, p.life}})
		p.err, p.stood = err, changed[p.key]
	}
}
