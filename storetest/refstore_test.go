package storetest_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"iter"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/idemmail/idemmail"
)

// A refStore is the contract in few words: correct, and with places to put a
// fault. Each fault is off where its field is zero.
type refStore struct {
	now func() time.Time

	mu   sync.Mutex
	rows map[string]row

	// faults
	end         func(now time.Time, d time.Duration) time.Time // when d is over, in place of the right answer
	token       func(key string) string                        // in place of a random one
	name        func(key string) string                        // what a key is kept under
	age         func(time.Duration) time.Duration              // what is answered as the age
	kept        func(*idemmail.Receipt)                        // done to a receipt before it is kept
	under       func(key, prefix string) bool                  // in place of strings.HasPrefix
	spins       atomic.Int64
	briefly     bool             // hesitates for a microsecond
	listsTwice  bool             // Unsettled lists each key twice, as SCAN may
	clockOfAges func() time.Time // by which ages go, in place of now
	hesitates   string           // the method that reads and writes in two steps
	inherits    bool             // a takeover leaves the old receipt
	listsEnded  bool             // Unsettled lists what has ended
	listsYoung  bool             // Unsettled does not look at ages
	stateless   bool             // entries are fenced by the token alone
	unfenced    bool             // entries are not fenced
	busy        bool             // while Unsettled yields, other calls fail
	listing     bool
}

type row struct {
	token  string
	record idemmail.Record
	born   time.Time
	end    time.Time // zero: never
}

func newRefStore(now func() time.Time) *refStore {
	return &refStore{now: now, rows: make(map[string]row)}
}

func copyOf(r *idemmail.Receipt) *idemmail.Receipt {
	if r == nil {
		return nil
	}
	c := *r
	c.Accepted, c.Rejected = slices.Clone(r.Accepted), slices.Clone(r.Rejected)
	return &c
}

func (s *refStore) check(ctx context.Context, durations ...time.Duration) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("refstore: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.busy && s.listing {
		return errBroken
	}
	for _, d := range durations {
		if d <= 0 && d != idemmail.NoExpiry {
			return fmt.Errorf("refstore: duration %v", d)
		}
	}
	return nil
}

func (s *refStore) ends(d time.Duration) time.Time {
	now := s.now()
	if s.end != nil {
		return s.end(now, d)
	}
	if d == idemmail.NoExpiry {
		return time.Time{}
	}
	return now.Add(d)
}

// find answers the row that holds the key, for the method. The lock is held.
func (s *refStore) find(key, method string) (row, bool) {
	r, ok := s.rows[s.named(key)]
	if s.hesitates == method {
		s.mu.Unlock()
		if s.briefly {
			for range 200 {
				s.spins.Add(1)
			}
		} else {
			runtime.Gosched()
		}
		s.mu.Lock()
	}
	return r, ok && (r.end.IsZero() || s.now().Before(r.end))
}

func (s *refStore) nowOfAges() time.Time {
	if s.clockOfAges != nil {
		return s.clockOfAges()
	}
	return s.now()
}

func (s *refStore) named(key string) string {
	if s.name != nil {
		return s.name(key)
	}
	return key
}

func (s *refStore) put(key string, r row) {
	r.record.Receipt = copyOf(r.record.Receipt)
	if r.record.Receipt != nil {
		r.record.Receipt.Replayed = false
		if s.kept != nil {
			s.kept(r.record.Receipt)
		}
	}
	r.born = s.nowOfAges()
	s.rows[s.named(key)] = r
}

// change changes the row of a key, if there is one.
func (s *refStore) change(key string, f func(r *row)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r, there := s.rows[key]; there {
		f(&r)
		s.rows[key] = r
	}
}

// row answers the row of a key, whether or not its time has passed.
func (s *refStore) row(key string) (r row, there bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, there = s.rows[key]
	return r, there
}

// holder answers the row that holds a key.
func (s *refStore) holder(key string) (r row, held bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.find(key, "")
}

func (s *refStore) drop(key string) { delete(s.rows, s.named(key)) }

func (s *refStore) shown(r row) *idemmail.Record {
	rec := r.record
	rec.Receipt = copyOf(rec.Receipt)
	rec.Age = s.nowOfAges().Sub(r.born)
	if s.age != nil {
		rec.Age = s.age(rec.Age)
	}
	return &rec
}

func (s *refStore) newToken(key string) string {
	if s.token != nil {
		return s.token(key)
	}
	return rand.Text()
}

func (s *refStore) Reserve(ctx context.Context, key, fingerprint string, lease time.Duration) (string, *idemmail.Record, error) {
	if err := s.check(ctx, lease); err != nil {
		return "", nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	old, held := s.find(key, "Reserve")
	if held {
		return "", s.shown(old), nil
	}
	r := row{token: s.newToken(key), record: idemmail.Record{State: idemmail.StatePending, Fingerprint: fingerprint}, end: s.ends(lease)}
	if s.inherits {
		r.record.Receipt = old.record.Receipt
	}
	s.put(key, r)
	return r.token, nil, nil
}

func (s *refStore) Complete(ctx context.Context, key, token string, rec idemmail.Record, ttl time.Duration) error {
	if err := s.check(ctx, ttl); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if old, held := s.find(key, "Complete"); held && old.token != token {
		return idemmail.ErrLeaseLost
	}
	s.put(key, row{token: token, record: rec, end: s.ends(ttl)})
	return nil
}

func (s *refStore) Release(ctx context.Context, key, token string) error {
	if err := s.check(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	old, held := s.find(key, "Release")
	if held && (old.token != token || old.record.State == idemmail.StateDone) {
		return idemmail.ErrLeaseLost
	}
	s.drop(key)
	return nil
}

func (s *refStore) Renew(ctx context.Context, key, token string, lease time.Duration) error {
	if err := s.check(ctx, lease); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	old, held := s.find(key, "Renew")
	if !held || old.token != token || old.record.State == idemmail.StateDone {
		return idemmail.ErrLeaseLost
	}
	old.end = s.ends(lease)
	s.put(key, old)
	return nil
}

func (s *refStore) ReserveMany(ctx context.Context, reqs []idemmail.ReserveRequest) []idemmail.ReserveResult {
	results := make([]idemmail.ReserveResult, len(reqs))
	for i, r := range reqs {
		results[i].Token, results[i].Held, results[i].Err = s.Reserve(ctx, r.Key, r.Fingerprint, r.Lease)
	}
	return results
}

func (s *refStore) CompleteMany(ctx context.Context, reqs []idemmail.CompleteRequest) []error {
	errs := make([]error, len(reqs))
	for i, r := range reqs {
		errs[i] = s.Complete(ctx, r.Key, r.Token, r.Record, r.TTL)
	}
	return errs
}

func (s *refStore) ReleaseMany(ctx context.Context, reqs []idemmail.ReleaseRequest) []error {
	errs := make([]error, len(reqs))
	for i, r := range reqs {
		errs[i] = s.Release(ctx, r.Key, r.Token)
	}
	return errs
}

func (s *refStore) RenewMany(ctx context.Context, reqs []idemmail.RenewRequest) []error {
	errs := make([]error, len(reqs))
	for i, r := range reqs {
		errs[i] = s.Renew(ctx, r.Key, r.Token, r.Lease)
	}
	return errs
}

func (s *refStore) entry(key string, r row) idemmail.Entry {
	return idemmail.Entry{Key: key, Token: r.token, Record: *s.shown(r), ExpiresAt: r.end}
}

func (s *refStore) Lookup(ctx context.Context, key string) (*idemmail.Entry, error) {
	if err := s.check(ctx); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r, held := s.find(key, "Lookup")
	if !held {
		return nil, nil
	}
	e := s.entry(key, r)
	return &e, nil
}

func (s *refStore) Unsettled(ctx context.Context, prefix string, olderThan time.Duration) iter.Seq2[idemmail.Entry, error] {
	return func(yield func(idemmail.Entry, error) bool) {
		s.mu.Lock()
		under := strings.HasPrefix
		if s.under != nil {
			under = s.under
		}
		var entries []idemmail.Entry
		for key, r := range s.rows {
			switch {
			case !under(key, prefix):
			case !r.end.IsZero() && !s.now().Before(r.end) && !s.listsEnded:
			case r.record.State == idemmail.StatePending && s.nowOfAges().Sub(r.born) < olderThan && !s.listsYoung:
			case r.record.State == idemmail.StateDone && r.record.Receipt.Status != idemmail.StatusUnknown:
			default:
				entries = append(entries, s.entry(key, r))
				if s.listsTwice {
					entries = append(entries, s.entry(key, r))
				}
			}
		}
		s.mu.Unlock()
		if err := s.check(ctx); err != nil {
			yield(idemmail.Entry{}, err)
			return
		}
		s.list(true)
		defer s.list(false)
		for _, e := range entries {
			if !yield(e, nil) {
				return
			}
		}
	}
}

func (s *refStore) list(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listing = on
}

// fence answers the row that an entry is about. The lock is held.
func (s *refStore) fence(e idemmail.Entry, method string) (row, error) {
	r, held := s.find(e.Key, method)
	switch {
	case s.unfenced:
	case !held, r.token != e.Token, r.record.State != e.Record.State && !s.stateless:
		return row{}, idemmail.ErrChanged
	}
	return r, nil
}

func (s *refStore) Resolve(ctx context.Context, e idemmail.Entry, r *idemmail.Receipt, ttl time.Duration) error {
	if err := s.check(ctx, ttl); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	old, err := s.fence(e, "Resolve")
	if err != nil {
		return err
	}
	rec := idemmail.Record{State: idemmail.StateDone, Fingerprint: old.record.Fingerprint, Receipt: r}
	s.put(e.Key, row{token: s.newToken(e.Key), record: rec, end: s.ends(ttl)})
	return nil
}

func (s *refStore) Forget(ctx context.Context, e idemmail.Entry) error {
	if err := s.check(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.fence(e, "Forget"); err != nil {
		return err
	}
	s.drop(e.Key)
	return nil
}

var (
	_ idemmail.BatchStore = (*refStore)(nil)
	_ idemmail.Renewer    = (*refStore)(nil)
	_ idemmail.Reconciler = (*refStore)(nil)

	errBroken = errors.New("broken on purpose")
)
