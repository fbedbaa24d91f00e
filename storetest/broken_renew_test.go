package storetest_test

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/idemmail/idemmail"
)

var brokenContexts = []broken{
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
}

var brokenRenewals = []broken{
	over("Renew does nothing", overrides{
		renew: func(s *refStore, ctx context.Context, key, token string, lease time.Duration) error { return ctx.Err() },
	}, "renew"),
	over("Renew only prolongs", overrides{
		renew: func(s *refStore, ctx context.Context, key, token string, lease time.Duration) error {
			old, _ := s.row(key)
			err := s.Renew(ctx, key, token, lease)
			s.change(key, func(r *row) {
				if err == nil && (old.end.IsZero() || old.end.After(r.end) && !r.end.IsZero()) {
					r.end = old.end
				}
			})
			return err
		},
	}, "renew-ends"),
	over("Renew leaves the age", overrides{
		renew: func(s *refStore, ctx context.Context, key, token string, lease time.Duration) error {
			old, _ := s.row(key)
			err := s.Renew(ctx, key, token, lease)
			if err == nil {
				s.change(key, func(r *row) { r.born = old.born })
			}
			return err
		},
	}, "renew-age"),
	over("Renew loses the fingerprint", overrides{
		renew: func(s *refStore, ctx context.Context, key, token string, lease time.Duration) error {
			err := s.Renew(ctx, key, token, lease)
			if err == nil {
				s.change(key, func(r *row) { r.record.Fingerprint = "" })
			}
			return err
		},
	}, "renew-keeps"),
	over("Renew goes by the key alone", overrides{
		renew: func(s *refStore, ctx context.Context, key, token string, lease time.Duration) error {
			r, _ := s.row(key)
			return s.Renew(ctx, key, r.token, lease)
		},
	}, "renew-lost"),
	over("Renew of nothing is no error", overrides{
		renew: func(s *refStore, ctx context.Context, key, token string, lease time.Duration) error {
			_, there := s.row(key)
			if !there {
				return ctx.Err()
			}
			return s.Renew(ctx, key, token, lease)
		},
	}, "renew-lost"),
	over("Renew revives what has ended", overrides{
		renew: func(s *refStore, ctx context.Context, key, token string, lease time.Duration) error {
			s.change(key, func(r *row) {
				if r.token == token && r.record.State == idemmail.StatePending {
					r.end = time.Time{}
				}
			})
			return s.Renew(ctx, key, token, lease)
		},
	}, "renew-ended", "renew-refused"),
	over("Renew of a done key prolongs it", overrides{
		renew: func(s *refStore, ctx context.Context, key, token string, lease time.Duration) error {
			s.change(key, func(r *row) {
				if r.record.State == idemmail.StateDone && r.end.After(s.now()) {
					r.end = r.end.Add(lease)
				}
			})
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
			_, held := s.holder(key)
			_, there := s.row(key)
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
}
