package storetest_test

import (
	"context"
	"time"

	"github.com/idemmail/idemmail"
)

var brokenTimes = []broken{
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
			old, held := s.holder(key)
			err := s.Complete(ctx, key, token, rec, ttl)
			if err == nil && held {
				s.change(key, func(r *row) { r.end = old.end })
			}
			return err
		},
	}, "ttl-ends"),
	over("completing again only prolongs", overrides{
		complete: func(s *refStore, ctx context.Context, key, token string, rec idemmail.Record, ttl time.Duration) error {
			old, held := s.holder(key)
			err := s.Complete(ctx, key, token, rec, ttl)
			s.change(key, func(r *row) {
				if err == nil && held && old.record.State == idemmail.StateDone && !r.end.IsZero() && old.end.After(r.end) {
					r.end = old.end
				}
			})
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
	over("asking prolongs", overrides{
		reserve: func(s *refStore, ctx context.Context, key, fp string, lease time.Duration) (string, *idemmail.Record, error) {
			token, held, err := s.Reserve(ctx, key, fp, lease)
			if held != nil {
				s.change(key, func(r *row) {
					if end := s.now().Add(lease); end.After(r.end) && !r.end.IsZero() {
						r.end = end
					}
				})
			}
			return token, held, err
		},
	}, "held-ends"),
	over("asking restarts the age", overrides{
		reserve: func(s *refStore, ctx context.Context, key, fp string, lease time.Duration) (string, *idemmail.Record, error) {
			token, held, err := s.Reserve(ctx, key, fp, lease)
			if held != nil {
				s.change(key, func(r *row) { r.born = s.now() })
			}
			return token, held, err
		},
	}, "age"),
	set("the age is always zero", func(s *refStore) { s.age = func(time.Duration) time.Duration { return 0 } }, "age"),
	set("the age is in milliseconds", func(s *refStore) {
		s.age = func(d time.Duration) time.Duration { return d / time.Millisecond }
	}, "age"),
	over("the age is kept as it was given", overrides{
		complete: func(s *refStore, ctx context.Context, key, token string, rec idemmail.Record, ttl time.Duration) error {
			err := s.Complete(ctx, key, token, rec, ttl)
			if err == nil {
				s.change(key, func(r *row) { r.born = r.born.Add(-rec.Age) })
			}
			return err
		},
	}, "age"),
	over("completing again leaves the age", overrides{
		complete: func(s *refStore, ctx context.Context, key, token string, rec idemmail.Record, ttl time.Duration) error {
			old, held := s.holder(key)
			err := s.Complete(ctx, key, token, rec, ttl)
			if err == nil && held && old.record.State == idemmail.StateDone {
				s.change(key, func(r *row) { r.born = old.born })
			}
			return err
		},
	}, "age-restarts"),
}
