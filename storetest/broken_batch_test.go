package storetest_test

import (
	"context"
	"iter"
	"path"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/idemmail/idemmail"
)

var brokenBatches = []broken{
	{"a BatchStore without Renew", func(s *refStore) idemmail.Store {
		return struct {
			idemmail.Store
			idemmail.BatchStore
		}{s, s}
	}, []string{"batch-renewer"}},
	over("a batch answers in another order", overrides{
		reserveMany: func(s *refStore, ctx context.Context, reqs []idemmail.ReserveRequest) []idemmail.ReserveResult {
			results := s.ReserveMany(ctx, reqs)
			slices.Reverse(results)
			return results
		},
	}, "batch"),
	over("a batch answers too few", overrides{
		completeMany: func(s *refStore, ctx context.Context, reqs []idemmail.CompleteRequest) []error {
			return s.CompleteMany(ctx, reqs)[:len(reqs)/2]
		},
	}, "batch"),
	over("an empty batch panics", overrides{
		releaseMany: func(s *refStore, ctx context.Context, reqs []idemmail.ReleaseRequest) []error {
			_ = reqs[0]
			return s.ReleaseMany(ctx, reqs)
		},
	}, "batch-empty"),
	over("an empty batch answers an error", overrides{
		releaseMany: func(s *refStore, ctx context.Context, reqs []idemmail.ReleaseRequest) []error {
			if len(reqs) == 0 {
				return []error{errBroken}
			}
			return s.ReleaseMany(ctx, reqs)
		},
	}, "batch-empty"),
	over("the first failure fails the batch", overrides{
		completeMany: func(s *refStore, ctx context.Context, reqs []idemmail.CompleteRequest) []error {
			errs := s.CompleteMany(ctx, reqs)
			for i := 1; i < len(errs); i++ {
				if errs[i] == nil {
					errs[i] = errs[i-1]
				}
			}
			return errs
		},
	}, "batch-mixed"),
	over("a batch ends at the first failure", overrides{
		releaseMany: func(s *refStore, ctx context.Context, reqs []idemmail.ReleaseRequest) []error {
			errs := make([]error, len(reqs))
			for i, r := range reqs {
				if errs[i] = s.Release(ctx, r.Key, r.Token); errs[i] != nil && ctx.Err() == nil {
					break
				}
			}
			return errs
		},
	}, "batch-mixed"),
	over("RenewMany does not look at tokens", overrides{
		renewMany: func(s *refStore, ctx context.Context, reqs []idemmail.RenewRequest) []error {
			errs := s.RenewMany(ctx, reqs)
			for i, r := range reqs {
				if r.Lease > 0 {
					errs[i] = ctx.Err()
				}
			}
			return errs
		},
	}, "batch-mixed"),
	over("a batch of more than 1,000 is cut", overrides{
		completeMany: func(s *refStore, ctx context.Context, reqs []idemmail.CompleteRequest) []error {
			errs := make([]error, len(reqs))
			copy(errs, s.CompleteMany(ctx, reqs[:min(len(reqs), 500)]))
			return errs
		},
	}, "batch-large"),
	over("a batch keeps the receipts it was given", overrides{
		completeMany: func(s *refStore, ctx context.Context, reqs []idemmail.CompleteRequest) []error {
			errs := s.CompleteMany(ctx, reqs)
			for i, req := range reqs {
				if errs[i] == nil {
					s.change(req.Key, func(r *row) { r.record.Receipt = req.Record.Receipt })
				}
			}
			return errs
		},
	}, "batch-aliasing"),
	over("a batch does not look at its context", overrides{
		reserveMany: func(s *refStore, ctx context.Context, reqs []idemmail.ReserveRequest) []idemmail.ReserveResult {
			return s.ReserveMany(context.WithoutCancel(ctx), reqs)
		},
	}, "batch-context"),
	over("ReserveMany gets, then sets", overrides{
		reserveMany: func(s *refStore, ctx context.Context, reqs []idemmail.ReserveRequest) []idemmail.ReserveResult {
			results := make([]idemmail.ReserveResult, len(reqs))
			for i, r := range reqs {
				s.mu.Lock()
				_, held := s.find(r.Key, "")
				s.mu.Unlock()
				runtime.Gosched()
				if !held && s.check(ctx, r.Lease) == nil {
					s.mu.Lock()
					s.drop(r.Key)
					s.mu.Unlock()
				}
				results[i].Token, results[i].Held, results[i].Err = s.Reserve(ctx, r.Key, r.Fingerprint, r.Lease)
			}
			return results
		},
	}, "race-batch"),
}

// like is SQL's LIKE, with its own case folding, where the prefix is not escaped.
func like(key, prefix string) bool {
	ok, _ := path.Match(strings.NewReplacer("%", "*", "_", "?", "[", `\[`, "*", `\*`, "?", `\?`, `\`, `\\`).Replace(prefix), key[:min(len(key), len(prefix))])
	return ok
}

var brokenReconcilers = []broken{
	over("Lookup of nothing is an error", overrides{
		lookup: func(s *refStore, ctx context.Context, key string) (*idemmail.Entry, error) {
			e, err := s.Lookup(ctx, key)
			if e == nil && err == nil {
				err = errBroken
			}
			return e, err
		},
	}, "lookup-nothing"),
	over("Lookup finds what has ended", overrides{
		lookup: func(s *refStore, ctx context.Context, key string) (*idemmail.Entry, error) {
			s.mu.Lock()
			r, there := s.rows[key]
			e := s.entry(key, r)
			s.mu.Unlock()
			if err := s.check(ctx); err != nil || !there {
				return nil, err
			}
			return &e, nil
		},
	}, "lookup-nothing"),
	over("Lookup leaves out the receipt", overrides{
		lookup: func(s *refStore, ctx context.Context, key string) (*idemmail.Entry, error) {
			e, err := s.Lookup(ctx, key)
			if e != nil {
				e.Record.Receipt = nil
			}
			return e, err
		},
	}, "lookup"),
	over("Lookup leaves out the token", overrides{
		lookup: func(s *refStore, ctx context.Context, key string) (*idemmail.Entry, error) {
			e, err := s.Lookup(ctx, key)
			if e != nil {
				e.Token = ""
			}
			return e, err
		},
	}, "lookup"),
	over("Lookup leaves out the age", overrides{
		lookup: func(s *refStore, ctx context.Context, key string) (*idemmail.Entry, error) {
			e, err := s.Lookup(ctx, key)
			if e != nil {
				e.Record.Age = 0
			}
			return e, err
		},
	}, "lookup-age"),
	over("what never ends has an end", overrides{
		lookup: func(s *refStore, ctx context.Context, key string) (*idemmail.Entry, error) {
			e, err := s.Lookup(ctx, key)
			if e != nil && e.ExpiresAt.IsZero() {
				e.ExpiresAt = time.Unix(0, 0)
			}
			return e, err
		},
	}, "lookup-expires"),
	over("ExpiresAt is the time of the call", overrides{
		lookup: func(s *refStore, ctx context.Context, key string) (*idemmail.Entry, error) {
			e, err := s.Lookup(ctx, key)
			if e != nil && !e.ExpiresAt.IsZero() {
				e.ExpiresAt = s.now()
			}
			return e, err
		},
	}, "lookup-expires"),
	over("Lookup takes the key for a prefix", overrides{
		lookup: func(s *refStore, ctx context.Context, key string) (*idemmail.Entry, error) {
			e, err := s.Lookup(ctx, key)
			if e != nil || err != nil {
				return e, err
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			for k, r := range s.rows {
				if strings.HasPrefix(k, key) && (r.end.IsZero() || r.end.After(s.now())) {
					e := s.entry(k, r)
					return &e, nil
				}
			}
			return nil, nil
		},
	}, "lookup-keys"),
	over("Forget takes the key for a pattern", overrides{
		forget: func(s *refStore, ctx context.Context, e idemmail.Entry) error {
			err := s.Forget(ctx, e)
			s.mu.Lock()
			defer s.mu.Unlock()
			for k := range s.rows {
				if ok, _ := path.Match(e.Key, k); ok && err == nil && k != e.Key {
					s.drop(k)
				}
			}
			return err
		},
	}, "settle-keys"),
	over("Unsettled leaves out the age", overrides{
		unsettled: func(s *refStore, ctx context.Context, prefix string, olderThan time.Duration) iter.Seq2[idemmail.Entry, error] {
			return func(yield func(idemmail.Entry, error) bool) {
				for e, err := range s.Unsettled(ctx, prefix, olderThan) {
					e.Record.Age = 0
					if !yield(e, err) {
						return
					}
				}
			}
		},
	}, "unsettled-age"),
	set("the prefix is a pattern", func(s *refStore) {
		s.under = func(key, prefix string) bool {
			ok, _ := path.Match(prefix, key[:min(len(key), len(prefix))])
			return ok
		}
	}, "unsettled-prefix"),
	set("the prefix is a LIKE", func(s *refStore) { s.under = like }, "unsettled-prefix"),
	set("the prefix is folded", func(s *refStore) {
		s.under = func(key, prefix string) bool { return strings.HasPrefix(strings.ToLower(key), strings.ToLower(prefix)) }
	}, "unsettled-prefix"),
	set("the prefix is a range that ends too early", func(s *refStore) {
		s.under = func(key, prefix string) bool { return key >= prefix && key < prefix+"\uffff" }
	}, "unsettled-prefix"),
	set("the prefix is looked for anywhere", func(s *refStore) { s.under = strings.Contains }, "unsettled-prefix"),
	set("what has ended is listed", func(s *refStore) { s.listsEnded = true }, "unsettled-expired"),
	set("what is young is listed", func(s *refStore) { s.listsYoung = true }, "unsettled-age"),
	over("only what is young is listed", overrides{
		unsettled: func(s *refStore, ctx context.Context, prefix string, olderThan time.Duration) iter.Seq2[idemmail.Entry, error] {
			return filtered(s.Unsettled(ctx, prefix, 0), func(e idemmail.Entry) bool {
				return olderThan == 0 || e.Record.State == idemmail.StateDone || e.Record.Age < olderThan
			})
		},
	}, "unsettled-age"),
	over("what is done is listed by its age", overrides{
		unsettled: func(s *refStore, ctx context.Context, prefix string, olderThan time.Duration) iter.Seq2[idemmail.Entry, error] {
			return filtered(s.Unsettled(ctx, prefix, olderThan), func(e idemmail.Entry) bool { return e.Record.Age >= olderThan })
		},
	}, "unsettled-age"),
	over("what is done is not listed", overrides{
		unsettled: func(s *refStore, ctx context.Context, prefix string, olderThan time.Duration) iter.Seq2[idemmail.Entry, error] {
			return filtered(s.Unsettled(ctx, prefix, olderThan), func(e idemmail.Entry) bool { return e.Record.State == idemmail.StatePending })
		},
	}, "unsettled"),
	over("the listing ends after 1,000", overrides{
		unsettled: func(s *refStore, ctx context.Context, prefix string, olderThan time.Duration) iter.Seq2[idemmail.Entry, error] {
			n := 0
			return filtered(s.Unsettled(ctx, prefix, olderThan), func(idemmail.Entry) bool { n++; return n <= 1000 })
		},
	}, "unsettled-many"),
	over("the listing does not end early", overrides{
		unsettled: func(s *refStore, ctx context.Context, prefix string, olderThan time.Duration) iter.Seq2[idemmail.Entry, error] {
			return func(yield func(idemmail.Entry, error) bool) {
				for e, err := range s.Unsettled(ctx, prefix, olderThan) {
					yield(e, err)
				}
			}
		},
	}, "unsettled-ends-early"),
	set("nothing else goes while a listing does", func(s *refStore) { s.busy = true }, "unsettled-settles"),
	over("Resolve loses the fingerprint", overrides{
		resolve: func(s *refStore, ctx context.Context, e idemmail.Entry, r *idemmail.Receipt, ttl time.Duration) error {
			err := s.Resolve(ctx, e, r, ttl)
			if err == nil {
				s.change(e.Key, func(r *row) { r.record.Fingerprint = e.Record.Fingerprint })
			}
			return err
		},
	}, "resolve"),
	over("Resolve keeps the token", overrides{
		resolve: func(s *refStore, ctx context.Context, e idemmail.Entry, r *idemmail.Receipt, ttl time.Duration) error {
			err := s.Resolve(ctx, e, r, ttl)
			if err == nil {
				s.change(e.Key, func(r *row) { r.token = e.Token })
			}
			return err
		},
	}, "resolve-token", "resolve-fenced", "forget-fenced"),
	over("Resolve leaves the end", overrides{
		resolve: func(s *refStore, ctx context.Context, e idemmail.Entry, r *idemmail.Receipt, ttl time.Duration) error {
			old, _ := s.row(e.Key)
			err := s.Resolve(ctx, e, r, ttl)
			if err == nil {
				s.change(e.Key, func(r *row) { r.end = old.end })
			}
			return err
		},
	}, "resolve-ttl"),
	over("Resolve takes a TTL of zero", overrides{
		resolve: func(s *refStore, ctx context.Context, e idemmail.Entry, r *idemmail.Receipt, ttl time.Duration) error {
			if ttl == 0 {
				ttl = idemmail.NoExpiry
			}
			return s.Resolve(ctx, e, r, ttl)
		},
	}, "resolve-refused"),
	set("entries are fenced by the token alone", func(s *refStore) { s.stateless = true }, "resolve-fenced", "forget-fenced"),
	set("entries are not fenced", func(s *refStore) { s.unfenced = true }, "resolve-token", "resolve-fenced", "forget-fenced", "settle-ended"),
	over("Forget is not fenced", overrides{
		forget: func(s *refStore, ctx context.Context, e idemmail.Entry) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.drop(e.Key)
			return ctx.Err()
		},
	}, "forget-fenced", "settle-ended"),
	over("Forget does nothing", overrides{
		forget: func(s *refStore, ctx context.Context, e idemmail.Entry) error { return ctx.Err() },
	}, "forget"),
	over("Resolve of what has ended", overrides{
		resolve: func(s *refStore, ctx context.Context, e idemmail.Entry, r *idemmail.Receipt, ttl time.Duration) error {
			s.change(e.Key, func(r *row) {
				if r.token == e.Token {
					r.end = time.Time{}
				}
			})
			return s.Resolve(ctx, e, r, ttl)
		},
	}, "settle-ended"),
	set("Resolve compares, then writes", func(s *refStore) { s.hesitates = "Resolve" }, "race-operators"),
	set("Forget compares, then deletes", func(s *refStore) { s.hesitates = "Forget" }, "race-operators"),
	over("Unsettled does not look at its context", overrides{
		unsettled: func(s *refStore, ctx context.Context, prefix string, olderThan time.Duration) iter.Seq2[idemmail.Entry, error] {
			return s.Unsettled(context.WithoutCancel(ctx), prefix, olderThan)
		},
	}, "reconcile-context"),
	over("Resolve keeps the receipt it was given", overrides{
		resolve: func(s *refStore, ctx context.Context, e idemmail.Entry, given *idemmail.Receipt, ttl time.Duration) error {
			err := s.Resolve(ctx, e, given, ttl)
			if err == nil {
				s.change(e.Key, func(r *row) { r.record.Receipt = given })
			}
			return err
		},
	}, "reconcile-aliasing"),
}

// filtered answers the entries that keep approves.
func filtered(seq iter.Seq2[idemmail.Entry, error], keep func(idemmail.Entry) bool) iter.Seq2[idemmail.Entry, error] {
	return func(yield func(idemmail.Entry, error) bool) {
		for e, err := range seq {
			if err == nil && !keep(e) {
				continue
			}
			if !yield(e, err) {
				return
			}
		}
	}
}
