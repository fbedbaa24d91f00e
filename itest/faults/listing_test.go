package faults_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/itest/internal/backend"
	"github.com/idemmail/idemmail/itest/internal/worker"
)

const (
	listTimeout = 3 * time.Second // a listing has no bound but that of its context
	listSize    = 350             // keys: several pages of every store
)

// list answers what is listed, without ages, and the error that ended it.
func list(listing iter.Seq2[idemmail.Entry, error]) (found map[string]idemmail.Entry, err error) {
	found = map[string]idemmail.Entry{}
	for e, failed := range listing {
		if err != nil {
			return found, fmt.Errorf("the listing went on after %w", err)
		}
		if err = failed; err == nil {
			found[e.Key] = *ageless(&e)
		}
	}
	return found, err
}

// A reading is a listing and the fault that befalls it.
type reading struct {
	after int // requests of the listing that come through before the fault
	fault fault
	times int // how often the fault comes; negative: to the listing's end
}

func (r reading) String() string {
	lasts := "once"
	if r.times < 0 {
		lasts = "lasting"
	}
	return fmt.Sprintf("request %d, %s, %s", r.after+1, r.fault.name, lasts)
}

// TestListingUnderNetworkFaults has each fault befall the first requests of a
// listing, one in its middle and its last: what is not all of it ends in an
// error.
func TestListingUnderNetworkFaults(t *testing.T) {
	t.Parallel()
	backend.EachShared(t, func(t *testing.T, s *backend.Server) {
		if s.Addr == "" {
			t.Skip("there is no network in between")
		}
		d := desk{namespace: fmt.Sprintf("list%d", labs.Add(1))}
		direct := backend.Open(t, s.URL)
		states := map[string]idemmail.State{}
		for i := range listSize {
			states[fmt.Sprintf("key %d", i)] = []idemmail.State{idemmail.StatePending, idemmail.StateDone}[i%2]
		}
		leave(t, direct, d.namespace, states)
		leave(t, direct, d.namespace+"-strange", states)
		want := entries(t, d.guard(t, direct))
		require.Len(t, want, listSize)

		match := d.namespace + ":"
		if _, database, ok := strings.Cut(s.URL, "#"); ok {
			match = database // a getMore has no key in it
		}
		p, guard, hangUp := d.open(t, s)
		count := p.spoil(match, fault{}, -1) // spoils nothing
		require.Equal(t, want, entries(t, guard))
		hangUp()
		requests := int(count.hits.Load())
		require.GreaterOrEqual(t, requests, 4, "several pages")
		t.Logf("%d keys in %d requests", listSize, requests)

		var readings []reading
		for _, f := range faults {
			for _, after := range []int{0, 1, requests / 2, requests - 1} {
				readings = append(readings, reading{after, f, 1})
			}
		}
		for _, f := range lasting {
			for _, after := range []int{0, requests / 2} {
				readings = append(readings, reading{after, f, -1})
			}
		}
		var mu sync.Mutex // of what follows
		hits, failed, complete := 0, 0, 0
		var running sync.WaitGroup
		places := make(chan struct{}, netCells)
		for _, r := range readings {
			places <- struct{}{}
			running.Go(func() {
				defer func() { <-places }()
				p, guard, hangUp := d.open(t, s)
				defer hangUp()
				hit, err := r.run(t, p, guard, match, want)
				mu.Lock()
				defer mu.Unlock()
				if hit {
					hits++
				}
				if err == nil {
					complete++
				} else {
					failed++
				}
			})
		}
		running.Wait()
		t.Logf("%d listings, of which %d met their fault: %d were complete, %d ended in an error", len(readings), hits, complete, failed)
		require.Greater(t, hits, len(readings)/2) // not every walk of a Redis takes as many steps
		require.Equal(t, want, entries(t, d.guard(t, direct)), "a listing changes nothing")
	})
}

// run has a listing meet its fault. It answers whether it came so far, and the
// error that it ended in.
func (r reading) run(t *testing.T, p *proxy, guard *idemmail.Guard, match string, want map[string]idemmail.Entry) (hit bool, err error) {
	ctx, cancel := context.WithTimeout(t.Context(), listTimeout)
	if r.times < 0 { // a caller who goes
		ctx, cancel = context.WithCancel(t.Context())
		time.AfterFunc(listTimeout, cancel)
	}
	defer cancel()
	rule := p.spoilAfter(r.after, match, r.fault, r.times)
	began := time.Now()
	found, err := list(guard.Unsettled(ctx, 0))
	took := time.Since(began)
	p.mend()

	check := func(ok bool, what string) {
		if !ok {
			t.Errorf("%s: %s: %d of %d keys in %v, %v", r, what, len(found), len(want), took, err)
		}
	}
	check(took < listTimeout+netGrace, "the listing must end soon after its context")
	for key, e := range found {
		check(e.Token == want[key].Token && e.Record.State == want[key].Record.State, key+" is none of ours")
	}
	hit = rule.hits.Load() > 0
	if err == nil {
		check(len(found) == len(want), "ended as if it were complete")
		check(!hit || r.fault.end != hangs, "ended though it hung")
	} else if ended := ctx.Err(); ended != nil {
		check(errors.Is(err, ended), "does not tell the end of its context")
	} else {
		check(hit, "failed without a fault")
	}
	again := func() bool {
		found, err := list(guard.Unsettled(t.Context(), 0))
		return err == nil && len(found) == len(want)
	}
	for deadline := time.Now().Add(worker.Patience); !again(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			check(false, "cannot be done again")
			break
		}
	}
	return hit, err
}
