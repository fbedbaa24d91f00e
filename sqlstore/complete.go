package sqlstore

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/idemmail/idemmail"
)

// Complete is as [idemmail.Store] says.
func (s *Store) Complete(ctx context.Context, key, token string, rec idemmail.Record, ttl time.Duration) error {
	return s.CompleteMany(ctx, []idemmail.CompleteRequest{{Key: key, Token: token, Record: rec, TTL: ttl}})[0]
}

// CompleteMany is as [idemmail.BatchStore] says.
func (s *Store) CompleteMany(ctx context.Context, reqs []idemmail.CompleteRequest) []error {
	puts := make([]*put, len(reqs))
	for i, r := range reqs {
		puts[i] = newCompletion(r)
	}
	return awaitErrors(ctx, len(puts), func() []error {
		s.put(ctx, s.own, s.sql.complete, puts)
		errs := make([]error, len(puts))
		for i, p := range puts {
			if p.held != nil {
				p.err = idemmail.ErrLeaseLost
			}
			if p.err != nil {
				errs[i] = failure("complete", p.key, p.err)
			}
		}
		return errs
	})
}

var errNotDone = errors.New("not a done record with a receipt, or no token")

func newCompletion(r idemmail.CompleteRequest) *put {
	p := &put{key: r.Key, token: r.Token, fingerprint: r.Record.Fingerprint}
	p.life, p.err = life(r.TTL)
	switch receipt := r.Record.Receipt; {
	case p.err != nil:
	case r.Record.State != idemmail.StateDone || receipt == nil || r.Token == "":
		p.err = errNotDone
	default:
		p.status, p.receipt, p.err = encode(receipt)
	}
	p.err = cmp.Or(p.err, checkTexts(p.key, p.token, p.fingerprint, p.status))
	return p
}
