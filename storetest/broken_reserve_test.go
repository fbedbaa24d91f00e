package storetest_test

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/idemmail/idemmail"
)

// sequence makes tokens that can be guessed.
var sequence atomic.Int64

var brokenReserves = []broken{
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
