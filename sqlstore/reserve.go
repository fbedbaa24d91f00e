package sqlstore

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"time"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/internal/await"
)

// maxTries is how often a key is tried that is held when it is to be taken,
// and free when the holder is read.
const maxTries = 20

var errUnsteady = errors.New("it is freed each time that its holder is read")

// Reserve is as [idemmail.Store] says. Under a context of [WithReservation] it
// takes up the reservation first. After an error it tries for a second to free
// what it may have taken all the same; where its context has ended, so that
// nobody waits for that, it tries again for some seconds while the database
// does not answer.
func (s *Store) Reserve(ctx context.Context, key, fingerprint string, lease time.Duration) (token string, held *idemmail.Record, err error) {
	r := s.ReserveMany(ctx, []idemmail.ReserveRequest{{Key: key, Fingerprint: fingerprint, Lease: lease}})[0]
	return r.Token, r.Held, r.Err
}

// ReserveMany is as [idemmail.BatchStore] says. Reservations of the context, by
// [WithReservation], are taken up by one statement each.
func (s *Store) ReserveMany(ctx context.Context, reqs []idemmail.ReserveRequest) []idemmail.ReserveResult {
	puts := make([]*put, len(reqs))
	for i, r := range reqs {
		puts[i] = newReservation(ctx, r.Key, r.Fingerprint, r.Lease)
	}
	run := func() []idemmail.ReserveResult {
		s.claim(ctx, puts)
		s.put(ctx, s.own, s.sql.reserve, puts)
		return s.reserved(ctx, puts)
	}
	results, err := await.Call(ctx, run, func([]idemmail.ReserveResult) {
		s.discard(ctx, puts) // nobody will use them
	})
	if err != nil {
		results = make([]idemmail.ReserveResult, len(reqs))
		for i := range results {
			results[i].Err = failure("reserve", reqs[i].Key, err)
		}
	}
	return results
}

// reserved answers what became of the puts, and frees what those may have taken
// that ended in an error.
func (s *Store) reserved(ctx context.Context, puts []*put) []idemmail.ReserveResult {
	results := make([]idemmail.ReserveResult, len(puts))
	var doubtful []*put
	for i, p := range puts {
		results[i] = p.reserved()
		if p.begun && p.err != nil && !errors.Is(p.err, idemmail.ErrBadRecord) {
			doubtful = append(doubtful, p)
		}
	}
	s.discard(ctx, doubtful)
	return results
}

// discard frees, best effort, what the puts have taken. Where the context has
// ended nobody waits for that any more, and a try that hangs is followed by
// others, on other connections.
func (s *Store) discard(ctx context.Context, puts []*put) {
	begun := sorted(slices.DeleteFunc(slices.Clone(puts), func(p *put) bool { return !p.begun }))
	late := ctx.Err() != nil
	ctx = context.WithoutCancel(ctx)
	for began := time.Now(); len(begun) > 0; {
		hung := s.free(ctx, begun)
		if !hung || !late || time.Since(began) >= patience {
			return
		}
	}
}

// free frees what the puts have taken, and reports whether that took too long.
func (s *Store) free(ctx context.Context, puts []*put) (hung bool) {
	ctx, cancel := context.WithTimeout(ctx, cleanUp)
	defer cancel()
	for part := range slices.Chunk(puts, maxRows) {
		var params [][]any
		for _, p := range part {
			params = append(params, []any{p.key, p.token, string(idemmail.StatePending)})
		}
		s.change(ctx, s.own, s.sql.free, params)
	}
	return ctx.Err() != nil
}

// A put is a row on its way into the table.
type put struct {
	key, token, fingerprint string
	reservation             string // a token to be taken up; empty: none
	life                    any    // milliseconds; nil: for ever
	status, receipt         string // once done

	begun bool // it may stand, whatever err says
	stood bool // it was written
	held  *row // it was not: this holds the key
	err   error
}

func newReservation(ctx context.Context, key, fingerprint string, lease time.Duration) *put {
	p := &put{key: key, token: rand.Text(), fingerprint: fingerprint, reservation: reservation(ctx, key)}
	p.life, p.err = life(lease)
	p.err = cmp.Or(p.err, checkTexts(key, fingerprint))
	return p
}

// params are the put as a statement takes it.
func (p *put) params() []any {
	if p.status == "" {
		return []any{p.key, p.token, p.fingerprint, p.life}
	}
	return []any{p.key, p.token, p.fingerprint, p.life, p.status, p.receipt}
}

// reserved answers what became of a reservation.
func (p *put) reserved() idemmail.ReserveResult {
	switch {
	case p.err != nil:
		return idemmail.ReserveResult{Err: failure("reserve", p.key, p.err)}
	case p.held != nil && p.held.token != p.token:
		return idemmail.ReserveResult{Held: p.held.record()}
	}
	// It stands, or the driver wrote it twice and it met itself.
	return idemmail.ReserveResult{Token: p.token}
}

// sorted answers the puts in the order of their keys, which all statements
// keep: two of them that take the same keys do not then wait for each other.
func sorted(puts []*put) []*put {
	return slices.SortedFunc(slices.Values(puts), func(a, b *put) int { return cmp.Compare(a.key, b.key) })
}

// put carries out the statement for those of the puts that have no error and
// do not stand, and reads what holds the keys of those that were not written.
func (s *Store) put(ctx context.Context, on session, st statement, puts []*put) {
	var left []*put
	for _, p := range sorted(puts) {
		if p.err == nil && !p.stood {
			left = append(left, p)
		}
	}
	for try := 0; len(left) > 0; try++ {
		err := ctx.Err()
		switch {
		case try == maxTries:
			err = errUnsteady
		case try > 1:
			err = pause(ctx, try-1)
		}
		if err != nil {
			for _, p := range left {
				p.err = err
			}
			return
		}
		var again []*put
		for part := range slices.Chunk(left, maxRows) {
			again = append(again, s.putOnce(ctx, on, st, part)...)
		}
		left = again
	}
}

// putOnce answers those of the puts whose keys nothing holds after all.
func (s *Store) putOnce(ctx context.Context, on session, st statement, puts []*put) (again []*put) {
	params := make([][]any, len(puts))
	for i, p := range puts {
		params[i] = p.params()
		p.begun = true
	}
	written, err := s.change(ctx, on, st, params)
	var keys []string
	for _, p := range puts {
		p.err, p.stood = err, written[p.key]
		if err == nil && !p.stood {
			keys = append(keys, p.key)
		}
	}
	if len(keys) == 0 {
		return nil
	}
	found, err := s.read(ctx, on, keys)
	for _, p := range puts {
		if p.stood {
			continue
		}
		switch holder := found[p.key]; {
		case err != nil:
			p.err = err
		case holder == nil:
			again = append(again, p)
		case holder.err != nil:
			p.err = holder.err
		case holder.expired():
			again = append(again, p)
		default:
			p.held = holder
		}
	}
	return again
}
