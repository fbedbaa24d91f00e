package sqlstore

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"iter"
	"math"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/idemmail/idemmail"
)

// Lookup is as [idemmail.Reconciler] says.
func (s *Store) Lookup(ctx context.Context, key string) (*idemmail.Entry, error) {
	if err := checkTexts(key); err != nil {
		return nil, failure("look up", key, err)
	}
	holder, err := awaitResult(ctx, func() (*row, error) {
		rows, err := s.read(ctx, s.own, []string{key})
		return rows[key], err
	})
	if err == nil && holder != nil {
		err = holder.err
	}
	switch {
	case err != nil:
		return nil, failure("look up", key, err)
	case holder == nil || holder.expired():
		return nil, nil
	}
	e := holder.entry()
	return &e, nil
}

// Unsettled is as [idemmail.Reconciler] says. It walks the keys that begin with
// prefix in their order, by the primary key, and holds neither a connection nor
// a transaction while the caller looks at an entry.
func (s *Store) Unsettled(ctx context.Context, prefix string, olderThan time.Duration) iter.Seq2[idemmail.Entry, error] {
	return func(yield func(idemmail.Entry, error) bool) {
		st := s.sql.list
		end, ended := prefixEnd(prefix)
		if ended {
			st = s.sql.listToEnd
		}
		age := int64(math.MinInt64) // whatever the clock has done
		if olderThan > 0 {
			age = millis(olderThan)
		}
		first, seen := prefix, false // seen: first itself was on the page before
		for {
			page, err := awaitResult(ctx, func() ([]row, error) {
				return query(ctx, s.own, st, [][]any{{first, end, age}}, scanRow)
			})
			if err != nil {
				yield(idemmail.Entry{}, fmt.Errorf("sqlstore: list: %w", explain(ctx, err)))
				return
			}
			for _, r := range page {
				if seen && r.key == first || !strings.HasPrefix(r.key, prefix) {
					continue
				}
				if !r.yield(yield) {
					return
				}
			}
			if len(page) < pageSize {
				return
			}
			first, seen = page[len(page)-1].key, true
		}
	}
}

// yield hands the row on where it is unsettled, as far as the query could not
// tell, and reports whether to go on.
func (r *row) yield(yield func(idemmail.Entry, error) bool) bool {
	switch {
	case r.err != nil:
		return yield(idemmail.Entry{Key: r.key}, failure("list", r.key, r.err))
	case r.state == idemmail.StateDone && r.decoded.Status != idemmail.StatusUnknown:
		return true
	}
	return yield(r.entry(), nil)
}

// prefixEnd answers the least string that is greater than every one with the
// prefix; ok is false where there is none.
func prefixEnd(prefix string) (end string, ok bool) {
	for prefix != "" {
		last, size := utf8.DecodeLastRuneInString(prefix)
		prefix = prefix[:len(prefix)-size]
		switch last {
		case utf8.MaxRune:
			continue
		case 0xD7FF: // the surrogates are no characters
			last = 0xDFFF
		}
		return prefix + string(last+1), true
	}
	return "", false
}

// Resolve is as [idemmail.Reconciler] says. A nil receipt stands for one of
// status sent and nothing else; one of another status is refused.
func (s *Store) Resolve(ctx context.Context, e idemmail.Entry, r *idemmail.Receipt, ttl time.Duration) error {
	if r == nil {
		r = &idemmail.Receipt{Status: idemmail.StatusSent}
	}
	kept, err := life(ttl)
	if r.Status != idemmail.StatusSent {
		err = fmt.Errorf("receipt of status %q is not sent", r.Status)
	}
	status, receipt, failed := encode(r)
	return s.settle(ctx, "resolve", s.sql.resolve, e, cmp.Or(err, failed),
		[]any{e.Key, e.Token, string(e.Record.State), rand.Text(), kept, status, receipt})
}

// Forget is as [idemmail.Reconciler] says.
func (s *Store) Forget(ctx context.Context, e idemmail.Entry) error {
	return s.settle(ctx, "forget", s.sql.free, e, nil, []any{e.Key, e.Token, string(e.Record.State)})
}

// settle carries out the statement for an entry, unless it is refused already.
func (s *Store) settle(ctx context.Context, what string, st statement, e idemmail.Entry, refused error, params []any) error {
	c := &change{key: e.Key, params: params, err: cmp.Or(refused, checkTexts(e.Key, e.Token, string(e.Record.State)))}
	return s.changeMany(ctx, what, st, []*change{c}, func(*row) error { return idemmail.ErrChanged })[0]
}
