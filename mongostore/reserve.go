package mongostore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/idemmail/idemmail"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

const (
	// maxTries is how often an upsert is tried that collides with a document
	// which is then not there.
	maxTries = 10

	// cleanUp bounds a try of what is done, best effort, after a failure.
	cleanUp = time.Second

	// discardTimeout is how long the freeing of a failed reservation is tried
	// again where nobody waits for it, and discardPause the time in between.
	discardTimeout = 5 * time.Second
	discardPause   = 100 * time.Millisecond
)

// errCollides is the end of an upsert that collides time and again though
// nothing holds its key.
var errCollides = errors.New("collides time and again though nothing holds the key: does the collection have a second unique index, or a collation?")

// Reserve is as [idemmail.Store] says. A key that a document of another kind
// stands under is answered with idemmail.ErrBadRecord. After an error it tries
// for a second to free what it may have taken all the same; in a call that is
// [idemmail.Awaited], once that was left behind, for up to six.
func (s *Store) Reserve(ctx context.Context, key, fingerprint string, lease time.Duration) (token string, held *idemmail.Record, err error) {
	r := s.ReserveMany(ctx, []idemmail.ReserveRequest{{Key: key, Fingerprint: fingerprint, Lease: lease}})[0]
	return r.Token, r.Held, r.Err
}

// ReserveMany is as [idemmail.BatchStore] says.
func (s *Store) ReserveMany(ctx context.Context, reqs []idemmail.ReserveRequest) []idemmail.ReserveResult {
	puts := make([]*put, len(reqs))
	for i, r := range reqs {
		puts[i] = &put{
			doc:  document{Key: r.Key, State: idemmail.StatePending, Token: rand.Text(), Fingerprint: r.Fingerprint},
			life: r.Lease,
		}
	}
	s.put(ctx, puts, true)

	results := make([]idemmail.ReserveResult, len(reqs))
	var doubtful []mongo.WriteModel
	for i, p := range puts {
		switch {
		case p.err != nil:
			results[i].Err = p.err
			if p.begun && !errors.Is(p.err, idemmail.ErrBadRecord) {
				doubtful = append(doubtful, mongo.NewDeleteOneModel().
					SetFilter(heldBy(p.doc.Key, p.doc.Token, idemmail.StatePending)))
			}
		case p.held == nil, p.held.Token == p.doc.Token:
			results[i].Token = p.doc.Token
		default:
			record := p.held.record(p.now)
			results[i].Held = &record
		}
	}
	s.discard(ctx, doubtful)
	return results
}

// discard frees, best effort, what may be reserved though an error was answered.
// Where the caller has left the call behind, it is tried again for some time.
func (s *Store) discard(ctx context.Context, doubtful []mongo.WriteModel) {
	left := ctx.Err() != nil && idemmail.Awaited(ctx)
	for began := time.Now(); len(doubtful) > 0; time.Sleep(discardPause) {
		trying, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUp)
		_, errs := s.write(trying, doubtful)
		cancel()
		err := errors.Join(errs...)
		if err == nil || !left || errors.Is(err, mongo.ErrClientDisconnected) || time.Since(began) >= discardTimeout {
			return
		}
	}
}

// Complete is as [idemmail.Store] says.
func (s *Store) Complete(ctx context.Context, key, token string, rec idemmail.Record, ttl time.Duration) error {
	return s.CompleteMany(ctx, []idemmail.CompleteRequest{{Key: key, Token: token, Record: rec, TTL: ttl}})[0]
}

// CompleteMany is as [idemmail.BatchStore] says.
func (s *Store) CompleteMany(ctx context.Context, reqs []idemmail.CompleteRequest) []error {
	puts := make([]*put, len(reqs))
	for i, r := range reqs {
		puts[i] = &put{
			doc: document{Key: r.Key, State: idemmail.StateDone, Token: r.Token,
				Fingerprint: r.Record.Fingerprint, Receipt: r.Record.Receipt},
			own:  r.Token,
			life: r.TTL,
		}
		if r.Record.State != idemmail.StateDone || r.Record.Receipt == nil || r.Token == "" {
			puts[i].err = fmt.Errorf("mongostore: complete key %q: not a done record with a receipt, or no token", r.Key)
		}
	}
	s.put(ctx, puts, false)

	errs := make([]error, len(reqs))
	for i, p := range puts {
		switch {
		case p.err != nil:
			errs[i] = p.err
		case p.held != nil:
			errs[i] = fmt.Errorf("mongostore: complete key %q: %w", p.doc.Key, idemmail.ErrLeaseLost)
		}
	}
	return errs
}

// A put is a document on its way into the collection: in place of nothing, of
// a record whose time has passed, or of one that the token own holds.
type put struct {
	doc  document
	own  string
	life time.Duration

	begun bool      // it may stand, whatever err says
	err   error     // it does not stand, or is not known to
	held  *document // it does not stand: this holds the key
	now   time.Time // the time at which held was judged
}

// put carries out those of the puts that have no error yet. If repeat is set,
// one whose answer was lost is tried again, once: it then meets itself.
func (s *Store) put(ctx context.Context, puts []*put, repeat bool) {
	var todo []*put
	for _, p := range puts {
		if p.err == nil {
			p.err = checkLife(p.life)
		}
		if p.err == nil && !(utf8.ValidString(p.doc.Key) && utf8.ValidString(p.doc.Fingerprint)) {
			p.err = errNotUTF8
		}
		if p.err == nil {
			todo = append(todo, p)
		}
	}
	for try := 1; len(todo) > 0; try++ {
		if try > maxTries {
			for _, p := range todo {
				p.err = fmt.Errorf("mongostore: key %q: %w", p.doc.Key, errCollides)
			}
			return
		}
		if err := pause(ctx, try); err != nil {
			fail(todo, err)
			return
		}
		todo = s.putOnce(ctx, todo, repeat && try == 1)
	}
}

// putOnce writes the puts and reads what the keys of those that collided hold.
// It answers those that are to be tried again: nothing holds the key after all,
// or the answer was lost and repeat is set.
func (s *Store) putOnce(ctx context.Context, puts []*put, repeat bool) (again []*put) {
	now, err := s.clock.now(ctx)
	if err != nil {
		fail(puts, err)
		return nil
	}
	models := make([]mongo.WriteModel, 0, len(puts))
	sent := make([]*put, 0, len(puts))
	for _, p := range puts {
		p.doc.Format, p.doc.At, p.doc.Expires, p.now = format, bson.NewDateTimeFromTime(now), expiry(now, p.life), now
		raw, err := p.doc.encode()
		if err != nil {
			p.err = fmt.Errorf("mongostore: key %q: %w", p.doc.Key, err)
			continue
		}
		sent = append(sent, p)
		models = append(models, mongo.NewReplaceOneModel().
			SetFilter(replaceable(p.doc.Key, p.own, now)).SetReplacement(raw).SetUpsert(true))
	}
	if len(sent) == 0 {
		return nil
	}
	_, errs := s.write(ctx, models)
	var collided []*put
	var keys []string
	for i, p := range sent {
		// What did not come to be sent, for want of a server, has an error
		// that no server had a part in.
		var answer mongo.ServerError
		p.begun = p.begun || errors.As(errs[i], &answer)
		switch err := errs[i]; {
		case err == nil:
		case mongo.IsDuplicateKeyError(err):
			collided = append(collided, p)
			keys = append(keys, p.doc.Key)
		case repeat && mongo.IsNetworkError(err) && ctx.Err() == nil:
			again = append(again, p) // not just read: only a write waits until the majority has it
		default:
			p.err = err
		}
	}
	if len(collided) == 0 {
		return again
	}
	docs, err := s.read(ctx, keys)
	if err != nil {
		fail(collided, err)
		return again
	}
	for _, p := range collided {
		switch doc, ok := docs[p.doc.Key]; {
		case !ok: // freed in between
			again = append(again, p)
		case doc.err != nil:
			p.err = doc.err
		case doc.expired(now), p.own != "" && doc.Token == p.own: // the filter matches it by now
			again = append(again, p)
		default:
			p.held = &doc.document
		}
	}
	return again
}

func fail(puts []*put, err error) {
	for _, p := range puts {
		p.err = err
	}
}

// pause waits before a further try: not at all before the second, then
// 1 ms, 2 ms, and so on up to 64 ms.
func pause(ctx context.Context, try int) error {
	if try <= 2 {
		return nil
	}
	timer := time.NewTimer(time.Millisecond << min(try-3, 6))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("mongostore: %w", ctx.Err())
	}
}
