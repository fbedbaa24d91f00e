package storetest_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"path"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/storetest"
	"github.com/stretchr/testify/require"
)

// A broken store is the reference with one thing wrong, and the rules that
// must say so: these, and no others.
type broken struct {
	what  string
	wrong func(s *refStore) idemmail.Store
	rules []string
}

// set is a broken store whose fault is one of the reference's own.
func set(what string, fault func(s *refStore), rules ...string) broken {
	return broken{what, func(s *refStore) idemmail.Store { fault(s); return s }, rules}
}

// over is a broken store that answers some calls in its own way.
func over(what string, o overrides, rules ...string) broken {
	return broken{what, func(s *refStore) idemmail.Store { o.refStore = s; return &o }, rules}
}

// overrides has other methods where they are set.
type overrides struct {
	*refStore
	reserve   func(s *refStore, ctx context.Context, key, fingerprint string, lease time.Duration) (string, *idemmail.Record, error)
	complete  func(s *refStore, ctx context.Context, key, token string, rec idemmail.Record, ttl time.Duration) error
	release   func(s *refStore, ctx context.Context, key, token string) error
	renew     func(s *refStore, ctx context.Context, key, token string, lease time.Duration) error
	lookup    func(s *refStore, ctx context.Context, key string) (*idemmail.Entry, error)
	unsettled func(s *refStore, ctx context.Context, prefix string, olderThan time.Duration) iter.Seq2[idemmail.Entry, error]
	resolve   func(s *refStore, ctx context.Context, e idemmail.Entry, r *idemmail.Receipt, ttl time.Duration) error
	forget    func(s *refStore, ctx context.Context, e idemmail.Entry) error

	reserveMany  func(s *refStore, ctx context.Context, reqs []idemmail.ReserveRequest) []idemmail.ReserveResult
	completeMany func(s *refStore, ctx context.Context, reqs []idemmail.CompleteRequest) []error
	releaseMany  func(s *refStore, ctx context.Context, reqs []idemmail.ReleaseRequest) []error
	renewMany    func(s *refStore, ctx context.Context, reqs []idemmail.RenewRequest) []error
}

func (o *overrides) Reserve(ctx context.Context, key, fingerprint string, lease time.Duration) (string, *idemmail.Record, error) {
	if o.reserve != nil {
		return o.reserve(o.refStore, ctx, key, fingerprint, lease)
	}
	return o.refStore.Reserve(ctx, key, fingerprint, lease)
}

func (o *overrides) Complete(ctx context.Context, key, token string, rec idemmail.Record, ttl time.Duration) error {
	if o.complete != nil {
		return o.complete(o.refStore, ctx, key, token, rec, ttl)
	}
	return o.refStore.Complete(ctx, key, token, rec, ttl)
}

func (o *overrides) Release(ctx context.Context, key, token string) error {
	if o.release != nil {
		return o.release(o.refStore, ctx, key, token)
	}
	return o.refStore.Release(ctx, key, token)
}

func (o *overrides) Renew(ctx context.Context, key, token string, lease time.Duration) error {
	if o.renew != nil {
		return o.renew(o.refStore, ctx, key, token, lease)
	}
	return o.refStore.Renew(ctx, key, token, lease)
}

func (o *overrides) Lookup(ctx context.Context, key string) (*idemmail.Entry, error) {
	if o.lookup != nil {
		return o.lookup(o.refStore, ctx, key)
	}
	return o.refStore.Lookup(ctx, key)
}

func (o *overrides) Unsettled(ctx context.Context, prefix string, olderThan time.Duration) iter.Seq2[idemmail.Entry, error] {
	if o.unsettled != nil {
		return o.unsettled(o.refStore, ctx, prefix, olderThan)
	}
	return o.refStore.Unsettled(ctx, prefix, olderThan)
}

func (o *overrides) Resolve(ctx context.Context, e idemmail.Entry, r *idemmail.Receipt, ttl time.Duration) error {
	if o.resolve != nil {
		return o.resolve(o.refStore, ctx, e, r, ttl)
	}
	return o.refStore.Resolve(ctx, e, r, ttl)
}

func (o *overrides) Forget(ctx context.Context, e idemmail.Entry) error {
	if o.forget != nil {
		return o.forget(o.refStore, ctx, e)
	}
	return o.refStore.Forget(ctx, e)
}

func (o *overrides) ReserveMany(ctx context.Context, reqs []idemmail.ReserveRequest) []idemmail.ReserveResult {
	if o.reserveMany != nil {
		return o.reserveMany(o.refStore, ctx, reqs)
	}
	return o.refStore.ReserveMany(ctx, reqs)
}

func (o *overrides) CompleteMany(ctx context.Context, reqs []idemmail.CompleteRequest) []error {
	if o.completeMany != nil {
		return o.completeMany(o.refStore, ctx, reqs)
	}
	return o.refStore.CompleteMany(ctx, reqs)
}

func (o *overrides) ReleaseMany(ctx context.Context, reqs []idemmail.ReleaseRequest) []error {
	if o.releaseMany != nil {
		return o.releaseMany(o.refStore, ctx, reqs)
	}
	return o.refStore.ReleaseMany(ctx, reqs)
}

func (o *overrides) RenewMany(ctx context.Context, reqs []idemmail.RenewRequest) []error {
	if o.renewMany != nil {
		return o.renewMany(o.refStore, ctx, reqs)
	}
	return o.refStore.RenewMany(ctx, reqs)
}

// A loyal store lets the token of a reservation that was taken over stand for
// the new one, in Complete or else in Release.
type loyal struct {
	*refStore
	complete bool
	heirs    map[string]string // old token to new
}

func (l *loyal) Reserve(ctx context.Context, key, fingerprint string, lease time.Duration) (string, *idemmail.Record, error) {
	l.mu.Lock()
	old := l.rows[key]
	l.mu.Unlock()
	token, held, err := l.refStore.Reserve(ctx, key, fingerprint, lease)
	l.mu.Lock()
	defer l.mu.Unlock()
	if token != "" && old.token != "" {
		l.heirs[old.token] = token
	}
	return token, held, err
}

func (l *loyal) heir(key, token string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if heir := l.heirs[token]; heir != "" && l.rows[key].token == heir {
		return heir
	}
	return token
}

func (l *loyal) Complete(ctx context.Context, key, token string, rec idemmail.Record, ttl time.Duration) error {
	if l.complete {
		token = l.heir(key, token)
	}
	return l.refStore.Complete(ctx, key, token, rec, ttl)
}

func (l *loyal) Release(ctx context.Context, key, token string) error {
	if !l.complete {
		token = l.heir(key, token)
	}
	return l.refStore.Release(ctx, key, token)
}

// names answers the names of the broken rules in an error of Check.
func names(t *testing.T, err error) []string {
	t.Helper()
	if err == nil {
		return nil
	}
	joined, ok := err.(interface{ Unwrap() []error })
	require.True(t, ok, "the broken rules are joined: %v", err)
	var all []string
	for _, e := range joined.Unwrap() {
		parts := strings.SplitN(e.Error(), ": ", 3)
		require.Len(t, parts, 3, "storetest: name: what it wants")
		require.Equal(t, "storetest", parts[0])
		all = append(all, parts[1])
	}
	return all
}

func allBroken() []broken { return slices.Concat(brokenStores, brokenBatches, brokenReconcilers) }

// TestBrokenStores feeds the kit each broken store twice: with a clock that it
// advances, and in real time (of a bubble, so that no machine is too slow).
func TestBrokenStores(t *testing.T) {
	for _, b := range allBroken() {
		t.Run(b.what, func(t *testing.T) {
			rounds := 30
			if strings.Contains(strings.Join(b.rules, " "), "race-") {
				rounds = 500
			}
			defer storetest.SetRaceRounds(rounds)()
			t.Run("advanced", func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					clock := newFakeClock()
					err := storetest.Check(storetest.Config{
						Open:    func() (idemmail.Store, error) { return b.wrong(newRefStore(clock.now)), nil },
						Advance: clock.advance,
					})
					require.ElementsMatch(t, b.rules, names(t, err), "%v", err)
				})
			})
			t.Run("real time", func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					err := storetest.Check(storetest.Config{
						Open: func() (idemmail.Store, error) { return b.wrong(newRefStore(time.Now)), nil },
					})
					require.ElementsMatch(t, b.rules, names(t, err), "%v", err)
				})
			})
		})
	}
}

// endAfter is the right answer of a store about when d is over.
func endAfter(now time.Time, d time.Duration) time.Time {
	if d == idemmail.NoExpiry {
		return time.Time{}
	}
	return now.Add(d)
}

var sequence atomic.Int64

var brokenStores = []broken{
	// reserve
	set("Reserve gets, then sets", func(s *refStore) { s.hesitates = "Reserve" }, "race-fresh", "race-expired"),
	over("Reserve always wins", overrides{
		reserve: func(s *refStore, ctx context.Context, key, fp string, lease time.Duration) (string, *idemmail.Record, error) {
			s.mu.Lock()
			s.drop(key)
			s.mu.Unlock()
			return s.Reserve(ctx, key, fp, lease)
		},
	}, "reserve"),
	over("Reserve answers the token of a held key", overrides{
		reserve: func(s *refStore, ctx context.Context, key, fp string, lease time.Duration) (string, *idemmail.Record, error) {
			token, held, err := s.Reserve(ctx, key, fp, lease)
			if held != nil {
				token = "the token of another's reservation"
			}
			return token, held, err
		},
	}, "token-or-record"),
	over("Reserve answers the new record beside the token", overrides{
		reserve: func(s *refStore, ctx context.Context, key, fp string, lease time.Duration) (string, *idemmail.Record, error) {
			token, held, err := s.Reserve(ctx, key, fp, lease)
			if token != "" {
				held = &idemmail.Record{State: idemmail.StatePending, Fingerprint: fp}
			}
			return token, held, err
		},
	}, "reserve"),
	over("Reserve answers a pending key as done", overrides{
		reserve: func(s *refStore, ctx context.Context, key, fp string, lease time.Duration) (string, *idemmail.Record, error) {
			token, held, err := s.Reserve(ctx, key, fp, lease)
			if held != nil && held.State == idemmail.StatePending {
				held.Receipt = &idemmail.Receipt{}
			}
			return token, held, err
		},
	}, "held-pending", "aliasing", "takeover-clean", "renew-keeps"),
	set("tokens are counted", func(s *refStore) {
		s.token = func(string) string { return fmt.Sprintf("token-%020d", sequence.Add(1)) }
	}, "tokens-unguessable"),
	set("tokens are short", func(s *refStore) {
		s.token = func(string) string { return fmt.Sprint(sequence.Add(7919)) }
	}, "tokens-unguessable"),
	set("the token is made of the key", func(s *refStore) {
		s.token = func(key string) string { return "the token of " + key }
	}, "tokens-differ"),

	// leases and TTLs
	set("what lasts never ends", func(s *refStore) {
		s.end = func(time.Time, time.Duration) time.Time { return time.Time{} }
	}, "lease-ends", "ttl-ends"),
	over("a lease never ends", overrides{
		reserve: func(s *refStore, ctx context.Context, key, fp string, lease time.Duration) (string, *idemmail.Record, error) {
			if lease > 0 {
				lease = idemmail.NoExpiry
			}
			return s.Reserve(ctx, key, fp, lease)
		},
	}, "lease-ends"),
	set("what lasts ends at once", func(s *refStore) {
		s.end = func(now time.Time, d time.Duration) time.Time {
			return endAfter(now, min(d, 0))
		}
	}, "lease-holds"),
	set("a lease is taken for half as long", func(s *refStore) {
		s.end = func(now time.Time, d time.Duration) time.Time { return endAfter(now, min(d, max(d/2, 1))) }
	}, "lease-holds"),
	over("a TTL is taken for half as long", overrides{
		complete: func(s *refStore, ctx context.Context, key, token string, rec idemmail.Record, ttl time.Duration) error {
			if ttl > 1 {
				ttl /= 2
			}
			return s.Complete(ctx, key, token, rec, ttl)
		},
	}, "ttl-holds"),
	over("Complete leaves the end of the lease", overrides{
		complete: func(s *refStore, ctx context.Context, key, token string, rec idemmail.Record, ttl time.Duration) error {
			s.mu.Lock()
			old, held := s.find(key, "")
			s.mu.Unlock()
			err := s.Complete(ctx, key, token, rec, ttl)
			s.mu.Lock()
			defer s.mu.Unlock()
			if r := s.rows[key]; err == nil && held {
				r.end = old.end
				s.rows[key] = r
			}
			return err
		},
	}, "ttl-ends"),
	over("completing again only prolongs", overrides{
		complete: func(s *refStore, ctx context.Context, key, token string, rec idemmail.Record, ttl time.Duration) error {
			s.mu.Lock()
			old, held := s.find(key, "")
			s.mu.Unlock()
			err := s.Complete(ctx, key, token, rec, ttl)
			s.mu.Lock()
			defer s.mu.Unlock()
			r := s.rows[key]
			if err == nil && held && old.record.State == idemmail.StateDone && !r.end.IsZero() && !old.end.IsZero() && old.end.After(r.end) {
				r.end = old.end
				s.rows[key] = r
			}
			return err
		},
	}, "ttl-not-lease"),
	over("what once had no end never gets one", overrides{
		complete: func(s *refStore, ctx context.Context, key, token string, rec idemmail.Record, ttl time.Duration) error {
			s.mu.Lock()
			if old, held := s.find(key, ""); held && old.end.IsZero() && ttl > 0 {
				ttl = idemmail.NoExpiry
			}
			s.mu.Unlock()
			return s.Complete(ctx, key, token, rec, ttl)
		},
	}, "no-expiry-ends"),
	set("NoExpiry is a duration like any other", func(s *refStore) {
		s.end = func(now time.Time, d time.Duration) time.Time { return now.Add(d) }
	}, "no-expiry"),
	set("long durations wrap around", func(s *refStore) {
		s.end = func(now time.Time, d time.Duration) time.Time {
			if d == idemmail.NoExpiry {
				return time.Time{}
			}
			return time.Unix(0, now.UnixNano()+int64(d))
		}
	}, "long-durations"),
	set("tiny durations are rounded down, and nothing is for ever", func(s *refStore) {
		s.end = func(now time.Time, d time.Duration) time.Time {
			if d.Truncate(time.Millisecond) == 0 {
				return time.Time{}
			}
			return endAfter(now, d)
		}
	}, "tiny-durations"),
	over("a lease of zero is taken", overrides{
		reserve: func(s *refStore, ctx context.Context, key, fp string, lease time.Duration) (string, *idemmail.Record, error) {
			if lease == 0 {
				lease = idemmail.NoExpiry
			}
			return s.Reserve(ctx, key, fp, lease)
		},
	}, "refused-lease"),
	over("a negative lease is taken", overrides{
		reserve: func(s *refStore, ctx context.Context, key, fp string, lease time.Duration) (string, *idemmail.Record, error) {
			if lease < 0 {
				lease = idemmail.NoExpiry
			}
			return s.Reserve(ctx, key, fp, lease)
		},
	}, "refused-lease"),
	over("a lease of zero is refused once it was written", overrides{
		reserve: func(s *refStore, ctx context.Context, key, fp string, lease time.Duration) (string, *idemmail.Record, error) {
			if lease == 0 {
				_, _, _ = s.Reserve(ctx, key, fp, idemmail.NoExpiry)
				return "", nil, errBroken
			}
			return s.Reserve(ctx, key, fp, lease)
		},
	}, "refused-lease"),
	over("a TTL of zero is taken", overrides{
		complete: func(s *refStore, ctx context.Context, key, token string, rec idemmail.Record, ttl time.Duration) error {
			if ttl == 0 {
				ttl = idemmail.NoExpiry
			}
			return s.Complete(ctx, key, token, rec, ttl)
		},
	}, "refused-ttl"),
	set("the age is always zero", func(s *refStore) { s.age = func(time.Duration) time.Duration { return 0 } }, "age"),
	set("the age is in milliseconds", func(s *refStore) {
		s.age = func(d time.Duration) time.Duration { return d / time.Millisecond }
	}, "age"),
	over("the age is kept as it was given", overrides{
		complete: func(s *refStore, ctx context.Context, key, token string, rec idemmail.Record, ttl time.Duration) error {
			err := s.Complete(ctx, key, token, rec, ttl)
			s.mu.Lock()
			defer s.mu.Unlock()
			if r := s.rows[key]; err == nil {
				r.born = r.born.Add(-rec.Age)
				s.rows[key] = r
			}
			return err
		},
	}, "age"),
	over("completing again leaves the age", overrides{
		complete: func(s *refStore, ctx context.Context, key, token string, rec idemmail.Record, ttl time.Duration) error {
			s.mu.Lock()
			old, held := s.find(key, "")
			s.mu.Unlock()
			err := s.Complete(ctx, key, token, rec, ttl)
			s.mu.Lock()
			defer s.mu.Unlock()
			if r := s.rows[key]; err == nil && held && old.record.State == idemmail.StateDone {
				r.born = old.born
				s.rows[key] = r
			}
			return err
		},
	}, "age-restarts"),

	// fencing
	over("Release goes by the key alone", overrides{
		release: func(s *refStore, ctx context.Context, key, token string) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.drop(key)
			return ctx.Err()
		},
	}, "release-foreign"),
	over("Release does nothing", overrides{
		release: func(s *refStore, ctx context.Context, key, token string) error { return ctx.Err() },
	}, "release"),
	over("Release deletes a done key", overrides{
		release: func(s *refStore, ctx context.Context, key, token string) error {
			s.mu.Lock()
			if r := s.rows[key]; r.token == token {
				s.drop(key)
			}
			s.mu.Unlock()
			return s.Release(ctx, key, token)
		},
	}, "release-done"),
	over("Release of nothing is ErrLeaseLost", overrides{
		release: func(s *refStore, ctx context.Context, key, token string) error {
			s.mu.Lock()
			_, held := s.find(key, "")
			s.mu.Unlock()
			if !held {
				return errors.Join(ctx.Err(), idemmail.ErrLeaseLost)
			}
			return s.Release(ctx, key, token)
		},
	}, "release-nothing"),
	over("Release after the own lease is ErrLeaseLost", overrides{
		release: func(s *refStore, ctx context.Context, key, token string) error {
			s.mu.Lock()
			_, held := s.find(key, "")
			_, there := s.rows[key]
			s.mu.Unlock()
			if there && !held {
				return idemmail.ErrLeaseLost
			}
			return s.Release(ctx, key, token)
		},
	}, "release-expired"),
	{"Complete knows the token of who was taken over", func(s *refStore) idemmail.Store {
		l := &loyal{refStore: s, heirs: make(map[string]string)}
		l.complete = true
		return l
	}, []string{"takeover-complete"}},
	{"Release knows the token of who was taken over", func(s *refStore) idemmail.Store {
		return &loyal{refStore: s, heirs: make(map[string]string)}
	}, []string{"takeover-release"}},
	set("Release compares, then deletes", func(s *refStore) { s.hesitates = "Release" },
		"race-release", "race-release-expired", "race-settle"),
	over("Complete ignores the token", overrides{
		complete: func(s *refStore, ctx context.Context, key, token string, rec idemmail.Record, ttl time.Duration) error {
			s.mu.Lock()
			if r, held := s.find(key, ""); held {
				token = r.token
			}
			s.mu.Unlock()
			return s.Complete(ctx, key, token, rec, ttl)
		},
	}, "complete-foreign"),
	over("Complete does nothing", overrides{
		complete: func(s *refStore, ctx context.Context, key, token string, rec idemmail.Record, ttl time.Duration) error {
			return ctx.Err()
		},
	}, "complete"),
	over("Complete loses the receipt", overrides{
		complete: func(s *refStore, ctx context.Context, key, token string, rec idemmail.Record, ttl time.Duration) error {
			rec.Receipt = nil
			return s.Complete(ctx, key, token, rec, ttl)
		},
	}, "complete"),
	over("Complete loses the fingerprint", overrides{
		complete: func(s *refStore, ctx context.Context, key, token string, rec idemmail.Record, ttl time.Duration) error {
			rec.Fingerprint = ""
			return s.Complete(ctx, key, token, rec, ttl)
		},
	}, "fingerprint"),
	over("Complete again is refused", overrides{
		complete: func(s *refStore, ctx context.Context, key, token string, rec idemmail.Record, ttl time.Duration) error {
			s.mu.Lock()
			r, held := s.find(key, "")
			s.mu.Unlock()
			if held && r.record.State == idemmail.StateDone {
				return errors.Join(ctx.Err(), idemmail.ErrLeaseLost)
			}
			return s.Complete(ctx, key, token, rec, ttl)
		},
	}, "complete-again"),
	over("Complete again keeps the first receipt", overrides{
		complete: func(s *refStore, ctx context.Context, key, token string, rec idemmail.Record, ttl time.Duration) error {
			s.mu.Lock()
			if r, held := s.find(key, ""); held && r.record.State == idemmail.StateDone {
				rec.Receipt = r.record.Receipt
			}
			s.mu.Unlock()
			return s.Complete(ctx, key, token, rec, ttl)
		},
	}, "complete-again"),
	over("a late Complete is refused", overrides{
		complete: func(s *refStore, ctx context.Context, key, token string, rec idemmail.Record, ttl time.Duration) error {
			s.mu.Lock()
			_, held := s.find(key, "")
			s.mu.Unlock()
			if !held {
				return errors.Join(ctx.Err(), idemmail.ErrLeaseLost)
			}
			return s.Complete(ctx, key, token, rec, ttl)
		},
	}, "complete-free"),
	over("a Complete after the own lease is refused", overrides{
		complete: func(s *refStore, ctx context.Context, key, token string, rec idemmail.Record, ttl time.Duration) error {
			s.mu.Lock()
			_, held := s.find(key, "")
			_, there := s.rows[key]
			s.mu.Unlock()
			if there && !held {
				return idemmail.ErrLeaseLost
			}
			return s.Complete(ctx, key, token, rec, ttl)
		},
	}, "complete-expired"),
	set("Complete compares, then writes", func(s *refStore) { s.hesitates = "Complete" },
		"race-complete-expired", "race-late-completes", "race-operators"),
	set("a takeover leaves the old receipt", func(s *refStore) { s.inherits = true }, "takeover-clean"),
	over("a takeover leaves the old end", overrides{
		reserve: func(s *refStore, ctx context.Context, key, fp string, lease time.Duration) (string, *idemmail.Record, error) {
			s.mu.Lock()
			old := s.rows[key]
			s.mu.Unlock()
			token, held, err := s.Reserve(ctx, key, fp, lease)
			if token != "" && lease == idemmail.NoExpiry && !old.end.IsZero() {
				s.mu.Lock()
				defer s.mu.Unlock()
				r := s.rows[key]
				r.end = s.now().Add(time.Millisecond)
				s.rows[key] = r
			}
			return token, held, err
		},
	}, "takeover-clean"),

	// what is kept
	set("empty lists become nil", func(s *refStore) {
		s.kept = func(r *idemmail.Receipt) {
			if len(r.Accepted) == 0 {
				r.Accepted = nil
			}
		}
	}, "receipt-lists"),
	set("nil lists become empty", func(s *refStore) {
		s.kept = func(r *idemmail.Receipt) {
			if r.Rejected == nil {
				r.Rejected = []idemmail.Rejection{}
			}
		}
	}, "receipt-lists"),
	set("times are kept in seconds", func(s *refStore) {
		s.kept = func(r *idemmail.Receipt) { r.At = r.At.Truncate(time.Second) }
	}, "receipt-times"),
	set("times come back in another zone", func(s *refStore) {
		s.kept = func(r *idemmail.Receipt) { r.At = r.At.In(time.FixedZone("here", 3600)) }
	}, "receipt-times"),
	set("the zero time becomes 1970", func(s *refStore) {
		s.kept = func(r *idemmail.Receipt) {
			if r.At.IsZero() {
				r.At = time.Unix(0, 0).UTC()
			}
		}
	}, "receipt-times"),
	set("HTML characters are escaped", func(s *refStore) {
		s.kept = func(r *idemmail.Receipt) { r.Detail = strings.ReplaceAll(r.Detail, "<", `\u003c`) }
	}, "receipt-texts"),
	set("control characters are dropped", func(s *refStore) {
		s.kept = func(r *idemmail.Receipt) { r.Response = strings.ReplaceAll(r.Response, "\x00", "") }
	}, "receipt-control-characters"),
	set("the provider's id is lost", func(s *refStore) {
		s.kept = func(r *idemmail.Receipt) { r.ProviderID = "" }
	}, "receipt-fields", "receipt-texts", "receipt-control-characters"),
	set("codes are floats", func(s *refStore) {
		s.kept = func(r *idemmail.Receipt) {
			for i := range r.Rejected {
				if r.Rejected[i].Code == math.MaxInt {
					r.Rejected[i].Code--
				}
			}
		}
	}, "receipt-fields"),
	set("lists are cut", func(s *refStore) {
		s.kept = func(r *idemmail.Receipt) {
			if len(r.Rejected) > 500 {
				r.Rejected = r.Rejected[:500]
			}
		}
	}, "receipt-large"),
	set("Replayed is kept", func(s *refStore) {
		s.kept = func(r *idemmail.Receipt) { r.Replayed = strings.HasPrefix(r.MessageID, "1@") }
	}, "replayed"),
	over("the receipt that was given is kept itself", overrides{
		complete: func(s *refStore, ctx context.Context, key, token string, rec idemmail.Record, ttl time.Duration) error {
			err := s.Complete(ctx, key, token, rec, ttl)
			s.mu.Lock()
			defer s.mu.Unlock()
			if r := s.rows[key]; err == nil {
				r.record.Receipt.Accepted = rec.Receipt.Accepted
				s.rows[key] = r
			}
			return err
		},
	}, "aliasing"),
	over("the receipt that is kept is answered itself", overrides{
		reserve: func(s *refStore, ctx context.Context, key, fp string, lease time.Duration) (string, *idemmail.Record, error) {
			token, held, err := s.Reserve(ctx, key, fp, lease)
			if held != nil {
				s.mu.Lock()
				defer s.mu.Unlock()
				held.Receipt = s.rows[key].record.Receipt
			}
			return token, held, err
		},
	}, "aliasing"),

	// keys
	set("keys are folded", func(s *refStore) { s.name = strings.ToLower }, "keys", "unsettled"),
	set("keys are cut", func(s *refStore) {
		s.name = func(key string) string { return key[:min(len(key), 255)] }
	}, "keys"),
	set("keys are trimmed", func(s *refStore) { s.name = strings.TrimSpace }, "keys"),
	over("a long key is refused", overrides{
		reserve: func(s *refStore, ctx context.Context, key, fp string, lease time.Duration) (string, *idemmail.Record, error) {
			if len(key) > 512 {
				return "", nil, errBroken
			}
			return s.Reserve(ctx, key, fp, lease)
		},
	}, "keys"),
	over("Release takes the key for a pattern", overrides{
		release: func(s *refStore, ctx context.Context, key, token string) error {
			err := s.Release(ctx, key, token)
			s.mu.Lock()
			defer s.mu.Unlock()
			for k := range s.rows {
				if ok, _ := path.Match(key, k); ok && k != key {
					s.drop(k)
				}
			}
			return err
		},
	}, "keys-released"),

	// contexts
	over("Reserve does not look at its context", overrides{
		reserve: func(s *refStore, ctx context.Context, key, fp string, lease time.Duration) (string, *idemmail.Record, error) {
			return s.Reserve(context.WithoutCancel(ctx), key, fp, lease)
		},
	}, "context-ended-reserve"),
	over("Reserve looks at its context when all is done", overrides{
		reserve: func(s *refStore, ctx context.Context, key, fp string, lease time.Duration) (string, *idemmail.Record, error) {
			token, held, err := s.Reserve(context.WithoutCancel(ctx), key, fp, lease)
			if ctx.Err() != nil {
				return "", nil, ctx.Err()
			}
			return token, held, err
		},
	}, "context-ended-reserve"),
	over("Complete does not look at its context", overrides{
		complete: func(s *refStore, ctx context.Context, key, token string, rec idemmail.Record, ttl time.Duration) error {
			return s.Complete(context.WithoutCancel(ctx), key, token, rec, ttl)
		},
	}, "context-ended"),
	over("Release answers another error for its context's", overrides{
		release: func(s *refStore, ctx context.Context, key, token string) error {
			if ctx.Err() != nil {
				return fmt.Errorf("release: %v", ctx.Err())
			}
			return s.Release(ctx, key, token)
		},
	}, "context-ended"),
	over("a reservation ends with its context", overrides{
		reserve: func(s *refStore, ctx context.Context, key, fp string, lease time.Duration) (string, *idemmail.Record, error) {
			token, held, err := s.Reserve(ctx, key, fp, lease)
			if token != "" {
				context.AfterFunc(ctx, func() { _ = s.Release(context.WithoutCancel(ctx), key, token) })
			}
			return token, held, err
		},
	}, "context-ends-later"),

	// renewal
	over("Renew does nothing", overrides{
		renew: func(s *refStore, ctx context.Context, key, token string, lease time.Duration) error { return ctx.Err() },
	}, "renew"),
	over("Renew only prolongs", overrides{
		renew: func(s *refStore, ctx context.Context, key, token string, lease time.Duration) error {
			s.mu.Lock()
			old := s.rows[key]
			s.mu.Unlock()
			err := s.Renew(ctx, key, token, lease)
			s.mu.Lock()
			defer s.mu.Unlock()
			if r := s.rows[key]; err == nil && (old.end.IsZero() || old.end.After(r.end) && !r.end.IsZero()) {
				r.end = old.end
				s.rows[key] = r
			}
			return err
		},
	}, "renew-ends"),
	over("Renew leaves the age", overrides{
		renew: func(s *refStore, ctx context.Context, key, token string, lease time.Duration) error {
			s.mu.Lock()
			old := s.rows[key]
			s.mu.Unlock()
			err := s.Renew(ctx, key, token, lease)
			s.mu.Lock()
			defer s.mu.Unlock()
			if r := s.rows[key]; err == nil {
				r.born = old.born
				s.rows[key] = r
			}
			return err
		},
	}, "renew-age"),
	over("Renew loses the fingerprint", overrides{
		renew: func(s *refStore, ctx context.Context, key, token string, lease time.Duration) error {
			err := s.Renew(ctx, key, token, lease)
			s.mu.Lock()
			defer s.mu.Unlock()
			if r := s.rows[key]; err == nil {
				r.record.Fingerprint = ""
				s.rows[key] = r
			}
			return err
		},
	}, "renew-keeps"),
	over("Renew goes by the key alone", overrides{
		renew: func(s *refStore, ctx context.Context, key, token string, lease time.Duration) error {
			s.mu.Lock()
			r := s.rows[key]
			s.mu.Unlock()
			return s.Renew(ctx, key, r.token, lease)
		},
	}, "renew-lost"),
	over("Renew of nothing is no error", overrides{
		renew: func(s *refStore, ctx context.Context, key, token string, lease time.Duration) error {
			s.mu.Lock()
			_, there := s.rows[key]
			s.mu.Unlock()
			if !there {
				return ctx.Err()
			}
			return s.Renew(ctx, key, token, lease)
		},
	}, "renew-lost"),
	over("Renew revives what has ended", overrides{
		renew: func(s *refStore, ctx context.Context, key, token string, lease time.Duration) error {
			s.mu.Lock()
			if r, there := s.rows[key]; there && r.token == token && r.record.State == idemmail.StatePending {
				r.end = time.Time{}
				s.rows[key] = r
			}
			s.mu.Unlock()
			return s.Renew(ctx, key, token, lease)
		},
	}, "renew-ended", "renew-refused"),
	over("Renew of a done key prolongs it", overrides{
		renew: func(s *refStore, ctx context.Context, key, token string, lease time.Duration) error {
			s.mu.Lock()
			if r, held := s.find(key, ""); held && r.record.State == idemmail.StateDone {
				r.end = r.end.Add(lease)
				s.rows[key] = r
			}
			s.mu.Unlock()
			return s.Renew(ctx, key, token, lease)
		},
	}, "renew-done-ttl"),
	over("Renew does not know NoExpiry", overrides{
		renew: func(s *refStore, ctx context.Context, key, token string, lease time.Duration) error {
			if lease == idemmail.NoExpiry {
				lease = time.Millisecond
			}
			return s.Renew(ctx, key, token, lease)
		},
	}, "renew-no-expiry"),
	over("Renew rounds down and refuses what is left", overrides{
		renew: func(s *refStore, ctx context.Context, key, token string, lease time.Duration) error {
			if lease > 0 {
				lease = lease.Truncate(time.Millisecond)
			}
			return s.Renew(ctx, key, token, lease)
		},
	}, "renew-durations"),
	over("Renew tidies up what had ended when it looked", overrides{
		renew: func(s *refStore, ctx context.Context, key, token string, lease time.Duration) error {
			s.mu.Lock()
			_, held := s.find(key, "")
			_, there := s.rows[key]
			s.mu.Unlock()
			if there && !held {
				runtime.Gosched()
				s.mu.Lock()
				s.drop(key)
				s.mu.Unlock()
			}
			return s.Renew(ctx, key, token, lease)
		},
	}, "race-renew-expired"),
	{"calls share what they work on", func(s *refStore) idemmail.Store {
		var key atomic.Pointer[string]
		return &overrides{refStore: s, complete: func(s *refStore, ctx context.Context, k, token string, rec idemmail.Record, ttl time.Duration) error {
			key.Store(&k)
			runtime.Gosched()
			return s.Complete(ctx, *key.Load(), token, rec, ttl)
		}}
	}, []string{"concurrent-keys"}},
	over("Renew takes a lease of zero", overrides{
		renew: func(s *refStore, ctx context.Context, key, token string, lease time.Duration) error {
			if lease == 0 {
				lease = idemmail.NoExpiry
			}
			return s.Renew(ctx, key, token, lease)
		},
	}, "renew-refused"),
	over("Renew does not look at its context", overrides{
		renew: func(s *refStore, ctx context.Context, key, token string, lease time.Duration) error {
			return s.Renew(context.WithoutCancel(ctx), key, token, lease)
		},
	}, "renew-context"),
	set("Renew compares, then writes", func(s *refStore) { s.hesitates = "Renew" }, "race-renew-settle"),

	// worse
	over("Complete panics", overrides{
		complete: func(*refStore, context.Context, string, string, idemmail.Record, time.Duration) error {
			panic(errBroken)
		},
	}, "complete"),
	over("Release ends the goroutine", overrides{
		release: func(*refStore, context.Context, string, string) error { runtime.Goexit(); return nil },
	}, "release"),
	over("Reserve fails", overrides{
		reserve: func(*refStore, context.Context, string, string, time.Duration) (string, *idemmail.Record, error) {
			return "", nil, errBroken
		},
	}, "reserve"),
}
