package idemmail_test

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
)

func TestMemStoreOneOfManyReserves(t *testing.T) {
	for _, lease := range []time.Duration{idemmail.NoExpiry, time.Hour} {
		s := idemmail.NewMemStore(idemmail.MemStoreOptions{})
		var wg sync.WaitGroup
		tokens := make([]string, 64)
		for i := range tokens {
			wg.Go(func() {
				token, held, err := s.Reserve(t.Context(), "k", "fp", lease)
				if err != nil || (token == "") == (held == nil) {
					t.Errorf("Reserve answered %q, %v, %v", token, held, err)
				}
				tokens[i] = token
			})
		}
		wg.Wait()
		require.Len(t, strings.Join(tokens, ""), len(lookup(t, s, "k").Token), "one token")
	}
}

// Callers own what they are answered, and keep what they give.
func TestMemStoreSharesNoMemory(t *testing.T) {
	s := idemmail.NewMemStore(idemmail.MemStoreOptions{})
	given := &idemmail.Receipt{
		Status:   idemmail.StatusUnknown,
		Accepted: []string{"a@example.org"},
		Rejected: []idemmail.Rejection{{Address: "b@example.org", Code: 550}},
	}
	want := *given
	want.Accepted = []string{"a@example.org"}
	want.Rejected = []idemmail.Rejection{{Address: "b@example.org", Code: 550}}
	spoil := func(r *idemmail.Receipt) {
		r.Status = idemmail.StatusSent
		r.Accepted[0] = "spoilt"
		r.Rejected[0].Code = 0
		r.Accepted = append(r.Accepted, "spoilt")
	}
	require.NoError(t, s.Complete(t.Context(), "k", "t", idemmail.Record{State: idemmail.StateDone, Receipt: given}, time.Hour))
	spoil(given)

	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 100 {
				_, held, err := s.Reserve(t.Context(), "k", "fp", time.Hour)
				if err != nil || held == nil {
					t.Errorf("Reserve answered %v, %v", held, err)
					return
				}
				spoil(held.Receipt)
				e, err := s.Lookup(t.Context(), "k")
				if err != nil || e == nil {
					t.Errorf("Lookup answered %v, %v", e, err)
					return
				}
				spoil(e.Record.Receipt)
				for e, err := range s.Unsettled(t.Context(), "", 0) {
					if err != nil {
						t.Errorf("Unsettled answered %v", err)
						return
					}
					spoil(e.Record.Receipt)
				}
			}
		})
	}
	wg.Wait()
	require.Equal(t, &want, lookup(t, s, "k").Record.Receipt)
}

// All of it at once, for the race detector.
func TestMemStoreConcurrentUse(t *testing.T) {
	const maxEntries = 50
	s := idemmail.NewMemStore(idemmail.MemStoreOptions{MaxEntries: maxEntries})
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 300 {
				key := fmt.Sprint("k", (g*31+i)%70)
				token, _, err := s.Reserve(t.Context(), key, "fp", time.Millisecond)
				if err != nil || token == "" {
					continue
				}
				switch i % 4 {
				case 0:
					_ = s.Release(t.Context(), key, token)
				case 1:
					_ = s.Renew(t.Context(), key, token, time.Hour)
				default:
					_ = s.Complete(t.Context(), key, token, memDone("fp", idemmail.StatusUnknown), time.Duration(i)*time.Millisecond)
				}
				for e := range s.Unsettled(t.Context(), "", 0) {
					if i%2 == 0 {
						_ = s.Resolve(t.Context(), e, &idemmail.Receipt{Status: idemmail.StatusSent}, time.Minute)
					} else {
						_ = s.Forget(t.Context(), e)
					}
					break
				}
				if n := s.Len(); n > maxEntries {
					t.Errorf("%d entries", n)
				}
			}
		})
	}
	wg.Wait()
}

func TestMemStoreRunsNoGoroutine(t *testing.T) {
	before := runtime.NumGoroutine()
	for range 1000 {
		s := idemmail.NewMemStore(idemmail.MemStoreOptions{})
		mustReserve(t, s, "k", "fp", time.Hour)
	}
	require.LessOrEqual(t, runtime.NumGoroutine(), before)
}
