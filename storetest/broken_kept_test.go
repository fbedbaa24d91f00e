package storetest_test

import (
	"context"
	"math"
	"path"
	"strings"
	"time"

	"github.com/idemmail/idemmail"
)

var brokenMemories = []broken{
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
			if err == nil {
				s.change(key, func(r *row) { r.record.Receipt.Accepted = rec.Receipt.Accepted })
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
}
