package sqlstore

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/idemmail/idemmail"
)

// Release is as [idemmail.Store] says.
func (s *Store) Release(ctx context.Context, key, token string) error {
	return s.ReleaseMany(ctx, []idemmail.ReleaseRequest{{Key: key, Token: token}})[0]
}

// ReleaseMany is as [idemmail.BatchStore] says.
func (s *Store) ReleaseMany(ctx context.Context, reqs []idemmail.ReleaseRequest) []error {
	changes := make([]*change, len(reqs))
	for i, r := range reqs {
		changes[i] = &change{key: r.Key, err: checkTexts(r.Key, r.Token),
			params: []any{r.Key, r.Token, string(idemmail.StatePending)}}
	}
	return s.changeMany(ctx, "release", s.sql.free, changes, func(holder *row) error {
		if holder == nil {
			return nil
		}
		return idemmail.ErrLeaseLost
	})
}

// Renew is as [idemmail.Renewer] says.
func (s *Store) Renew(ctx context.Context, key, token string, lease time.Duration) error {
	return s.RenewMany(ctx, []idemmail.RenewRequest{{Key: key, Token: token, Lease: lease}})[0]
}

// RenewMany is as [idemmail.BatchStore] says.
func (s *Store) RenewMany(ctx context.Context, reqs []idemmail.RenewRequest) []error {
	changes := make([]*change, len(reqs))
	for i, r := range reqs {
		lease, err := life(r.Lease)
		changes[i] = &change{key: r.Key, err: cmp.Or(err, checkTexts(r.Key, r.Token)),
			params: []any{r.Key, r.Token, lease}}
	}
	return s.changeMany(ctx, "renew", s.sql.renew, changes, func(*row) error { return idemmail.ErrLeaseLost })
}

// A change is that of one key's row by a statement.
type change struct {
	key    string
	params []any
	err    error
}

// changeMany carries out the statement for those of the changes that have no
// error yet, and answers the error of each. Where it changed nothing, it judges
// by what holds the key: nil if nothing does.
func (s *Store) changeMany(ctx context.Context, what string, st statement, changes []*change, judge func(holder *row) error) []error {
	return awaitErrors(ctx, len(changes), func() []error {
		var left []*change
		for _, c := range changes {
			if c.err == nil {
				left = append(left, c)
			}
		}
		slices.SortFunc(left, func(a, b *change) int { return cmp.Compare(a.key, b.key) }) // as sorted has it
		for part := range slices.Chunk(left, maxRows) {
			s.changePart(ctx, st, part, judge)
		}
		errs := make([]error, len(changes))
		for i, c := range changes {
			if c.err != nil {
				errs[i] = failure(what, c.key, c.err)
			}
		}
		return errs
	})
}

func (s *Store) changePart(ctx context.Context, st statement, changes []*change, judge func(*row) error) {
	params := make([][]any, len(changes))
	for i, c := range changes {
		params[i] = c.params
	}
	changed, err := s.change(ctx, s.own, st, params)
	var keys []string
	for _, c := range changes {
		c.err = err
		if err == nil && !changed[c.key] {
			keys = append(keys, c.key)
		}
	}
	if len(keys) == 0 {
		return
	}
	found, err := s.read(ctx, s.own, keys)
	for _, c := range changes {
		if changed[c.key] {
			continue
		}
		switch holder := found[c.key]; {
		case err != nil:
			c.err = err
		case holder == nil:
			c.err = judge(nil)
		case holder.err != nil:
			c.err = holder.err
		case holder.expired():
			c.err = judge(nil)
		default:
			c.err = judge(holder)
		}
	}
}
