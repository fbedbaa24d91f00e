package storetest_test

import (
	"context"
	"errors"
	"time"

	"github.com/idemmail/idemmail"
)

var brokenFences = []broken{
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
				s.mu.Unlock()
				return ctx.Err()
			}
			s.mu.Unlock()
			return s.Release(ctx, key, token)
		},
	}, "release-done"),
	over("Release deletes a done key and says that it didn't", overrides{
		release: func(s *refStore, ctx context.Context, key, token string) error {
			err := s.Release(ctx, key, token)
			s.mu.Lock()
			defer s.mu.Unlock()
			if r := s.rows[key]; r.token == token && r.record.State == idemmail.StateDone {
				s.drop(key)
			}
			return err
		},
	}, "release-done"),
	over("Release of nothing is ErrLeaseLost", overrides{
		release: func(s *refStore, ctx context.Context, key, token string) error {
			_, held := s.holder(key)
			if !held {
				return errors.Join(ctx.Err(), idemmail.ErrLeaseLost)
			}
			return s.Release(ctx, key, token)
		},
	}, "release-nothing"),
	over("Release after the own lease is ErrLeaseLost", overrides{
		release: func(s *refStore, ctx context.Context, key, token string) error {
			_, held := s.holder(key)
			_, there := s.row(key)
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
			r, held := s.holder(key)
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
			_, held := s.holder(key)
			if !held {
				return errors.Join(ctx.Err(), idemmail.ErrLeaseLost)
			}
			return s.Complete(ctx, key, token, rec, ttl)
		},
	}, "complete-free"),
	over("a Complete after the own lease is refused", overrides{
		complete: func(s *refStore, ctx context.Context, key, token string, rec idemmail.Record, ttl time.Duration) error {
			_, held := s.holder(key)
			_, there := s.row(key)
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
			old, _ := s.row(key)
			token, held, err := s.Reserve(ctx, key, fp, lease)
			if token != "" && lease == idemmail.NoExpiry && !old.end.IsZero() {
				s.change(key, func(r *row) { r.end = s.now().Add(time.Millisecond) })
			}
			return token, held, err
		},
	}, "takeover-clean"),
}

// A loyal store lets the token of a reservation that was taken over stand for
// the new one, in Complete or else in Release.
type loyal struct {
	*refStore
	complete bool
	heirs    map[string]string // old token to new
}

func (l *loyal) Reserve(ctx context.Context, key, fingerprint string, lease time.Duration) (string, *idemmail.Record, error) {
	_, holds := l.holder(key)
	old, there := l.row(key)
	token, held, err := l.refStore.Reserve(ctx, key, fingerprint, lease)
	l.mu.Lock()
	defer l.mu.Unlock()
	if token != "" && there && !holds {
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
