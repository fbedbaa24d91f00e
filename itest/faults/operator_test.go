package faults_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/itest/internal/backend"
	"github.com/idemmail/idemmail/itest/internal/worker"
)

// A deed is what an operator does about a key.
type deed string

const (
	lookUp  deed = "look up"
	resolve deed = "resolve"
	forget  deed = "forget"
)

// An errand is a deed about a record in a state, and the fault that befalls it.
type errand struct {
	deed  deed
	state idemmail.State
	after int // requests of the errand that come through before the fault
	fault fault
	times int // how often the fault comes; negative: to the errand's end
}

func (e errand) String() string {
	lasts := "once"
	if e.times < 0 {
		lasts = "lasting"
	}
	return fmt.Sprintf("%s %s, request %d, %s, %s", e.deed, e.state, e.after+1, e.fault.name, lasts)
}

// errandsOf are all that can be run under the faults: what is pending is read
// before it is settled.
func errandsOf(faults []fault, times ...int) (errands []errand) {
	for _, f := range faults {
		for _, n := range times {
			errands = append(errands, errand{lookUp, idemmail.StatePending, 0, f, n}, errand{lookUp, idemmail.StateDone, 0, f, n})
			for _, d := range []deed{resolve, forget} {
				errands = append(errands, errand{d, idemmail.StateDone, 0, f, n}, errand{d, idemmail.StatePending, 0, f, n}, errand{d, idemmail.StatePending, 1, f, n})
			}
		}
	}
	return errands
}

// TestOperatorUnderNetworkFaults has each fault befall each request of an
// operator's once, and some for as long as the errand lasts.
func TestOperatorUnderNetworkFaults(t *testing.T) {
	t.Parallel()
	backend.EachShared(t, func(t *testing.T, s *backend.Server) {
		if s.Addr == "" {
			t.Skip("there is no network in between")
		}
		errands := append(errandsOf(faults, 1), errandsOf(lasting, -1)...)
		d := newDesk(t, s, errands)
		outcomes := d.runAll(errands, func(e errand) outcome {
			p, guard, hangUp := d.open(t, s)
			defer hangUp()
			r := p.spoilAfter(e.after, d.namespace+":"+e.String(), e.fault, e.times)
			o := d.run(t, e, guard)
			p.mend()
			o.hits = r.hits.Load()
			return o
		})
		failed := 0
		for e, o := range outcomes {
			if o.err != nil {
				failed++
			}
			t.Run(e.String(), func(t *testing.T) {
				require.NotZero(t, o.hits, "the fault must have come")
				if e.fault.name == "latency" {
					require.NoError(t, o.err)
				}
				d.assert(t, e, o)
			})
		}
		d.assertOthersUntouched(t)
		t.Logf("%d errands, of which %d were answered with an error", len(errands), failed)
	})
}

// TestOperatorDuringOutages has an operator at work while the server is held,
// and while it is dead.
func TestOperatorDuringOutages(t *testing.T) {
	t.Parallel()
	backend.EachShared(t, func(t *testing.T, s *backend.Server) {
		for _, outage := range []struct {
			name       string
			begin, end func(t testing.TB)
		}{
			{"held", func(t testing.TB) { hold(t, s) }, s.Continue},
			{"killed", s.Kill, s.Restart},
		} {
			t.Run(outage.name, func(t *testing.T) {
				if s.Hold == nil || outage.end == nil {
					t.Skip("this server cannot do that")
				}
				errands := errandsOf([]fault{{name: outage.name}}, -1)
				d := newDesk(t, s, errands)
				guard := d.guard(t, backend.Open(t, s.URL))
				warm(t, guard)
				outage.begin(t)
				outcomes := d.runAll(errands, func(e errand) outcome { return d.run(t, e, guard) })
				ctx, cancel := context.WithTimeout(t.Context(), listTimeout)
				began := time.Now()
				_, err := list(guard.Unsettled(ctx, 0))
				took := time.Since(began)
				cancel()
				outage.end(t)
				require.Error(t, err)
				require.Less(t, took, listTimeout+netGrace)
				warm(t, d.direct)
				for e, o := range outcomes {
					t.Run(e.String(), func(t *testing.T) {
						require.Error(t, o.err)
						d.assert(t, e, o)
					})
				}
				d.assertOthersUntouched(t)
			})
		}
	})
}

// A desk is where an operator settles the keys of a namespace: one for each
// errand.
type desk struct {
	namespace string
	direct    *idemmail.Guard           // without any fault in between
	found     map[string]idemmail.Entry // by key: what holds it before
	others    *idemmail.Guard           // of another namespace with the same keys
	theirs    map[string]idemmail.Entry
}

// An outcome is what came of an errand.
type outcome struct {
	err   error
	entry *idemmail.Entry // looked up
	took  time.Duration
	hits  int64 // of the fault
}

// deskLease is so short that what is pending is abandoned.
const deskLease = time.Microsecond

func newDesk(t *testing.T, s *backend.Server, errands []errand) *desk {
	d := &desk{namespace: fmt.Sprintf("desk%d", labs.Add(1))}
	direct := backend.Open(t, s.URL)
	d.direct = d.guard(t, direct)
	strange := desk{namespace: d.namespace + "-strange"}
	d.others = strange.guard(t, direct)
	states := map[string]idemmail.State{}
	for _, e := range errands {
		states[e.String()] = e.state
	}
	leave(t, direct, d.namespace, states)
	leave(t, direct, strange.namespace, states)
	d.found, d.theirs = entries(t, d.direct), entries(t, d.others)
	require.Len(t, d.found, len(errands))
	return d
}

func (d *desk) guard(t *testing.T, store idemmail.Store) *idemmail.Guard {
	guard, err := idemmail.NewGuard(idemmail.Options{
		Store:        store,
		Namespace:    d.namespace,
		Lease:        deskLease,
		StoreTimeout: netTimeout,
		AtMostOnce:   true,
		Logger:       discard,
	})
	require.NoError(t, err)
	return guard
}

// open opens a guard whose store is behind a proxy.
func (d *desk) open(t *testing.T, s *backend.Server) (p *proxy, guard *idemmail.Guard, hangUp func()) {
	p = startProxy(t, s.Addr)
	store, hangUp, err := backend.Dial(s.Through(p.addr))
	require.NoError(t, err)
	guard = d.guard(t, store)
	warm(t, guard)
	return p, guard, hangUp
}

// warm waits until the guard's store answers: its client is connected then.
func warm(t *testing.T, guard *idemmail.Guard) {
	require.Eventually(t, func() bool {
		_, err := guard.Lookup(t.Context(), "warm")
		return err == nil
	}, worker.Patience, 50*time.Millisecond)
}

// leave leaves the keys of a namespace behind as sends do that went wrong:
// pending, or done with an unknown outcome.
func leave(t *testing.T, store backend.Store, namespace string, states map[string]idemmail.State) {
	var reserves []idemmail.ReserveRequest
	for key := range states {
		reserves = append(reserves, idemmail.ReserveRequest{Key: namespace + ":" + key, Fingerprint: "c:f", Lease: idemmail.NoExpiry})
	}
	var completes []idemmail.CompleteRequest
	for i, r := range store.ReserveMany(t.Context(), reserves) {
		require.NoError(t, r.Err)
		key := reserves[i].Key
		if states[key[len(namespace)+1:]] != idemmail.StateDone {
			continue
		}
		receipt := &idemmail.Receipt{Status: idemmail.StatusUnknown, Code: idemmail.CodeAborted}
		completes = append(completes, idemmail.CompleteRequest{Key: key, Token: r.Token, TTL: idemmail.NoExpiry,
			Record: idemmail.Record{State: idemmail.StateDone, Fingerprint: "c:f", Receipt: receipt}})
	}
	for _, err := range store.CompleteMany(t.Context(), completes) {
		require.NoError(t, err)
	}
}

// entries lists what is unsettled, without ages.
func entries(t *testing.T, guard *idemmail.Guard) map[string]idemmail.Entry {
	found, err := list(guard.Unsettled(t.Context(), 0))
	require.NoError(t, err)
	return found
}

// runAll runs the errands, several at a time.
func (d *desk) runAll(errands []errand, run func(errand) outcome) map[errand]outcome {
	outcomes := map[errand]outcome{}
	var mu sync.Mutex // of outcomes
	var running sync.WaitGroup
	places := make(chan struct{}, netCells)
	for _, e := range errands {
		places <- struct{}{}
		running.Go(func() {
			defer func() { <-places }()
			o := run(e)
			mu.Lock()
			defer mu.Unlock()
			outcomes[e] = o
		})
	}
	running.Wait()
	return outcomes
}

func (d *desk) run(t *testing.T, e errand, guard *idemmail.Guard) (o outcome) {
	began := time.Now()
	switch entry := d.found[e.String()]; e.deed {
	case lookUp:
		o.entry, o.err = guard.Lookup(t.Context(), e.String())
	case resolve:
		o.err = guard.Resolve(t.Context(), entry, resolvedBy("first"))
	case forget:
		o.err = guard.Forget(t.Context(), entry)
	}
	o.took = time.Since(began)
	return o
}

func resolvedBy(id string) *idemmail.Receipt {
	return &idemmail.Receipt{Status: idemmail.StatusSent, ProviderID: id}
}

// assert asserts that an errand came in time to an end that is true, and that
// it can be run again, without any fault.
func (d *desk) assert(t *testing.T, e errand, o outcome) {
	t.Logf("%v in %v", o.err, o.took.Round(time.Millisecond))
	calls := 1
	if e.state == idemmail.StatePending && e.deed != lookUp {
		calls = 2
	}
	require.Less(t, o.took, time.Duration(calls)*netTimeout+netGrace)
	if e.fault.end == hangs && e.times < 0 {
		require.ErrorIs(t, o.err, context.DeadlineExceeded)
	}
	for _, never := range []error{idemmail.ErrInFlight, idemmail.ErrBadRecord, idemmail.ErrInvalidKey} {
		require.NotErrorIs(t, o.err, never)
	}
	before := d.found[e.String()]
	now := d.look(t, e)
	switch e.deed {
	case lookUp:
		require.Equal(t, &before, now, "untouched")
		if o.err == nil {
			require.Equal(t, &before, ageless(o.entry))
		}
	case resolve:
		if o.err == nil || errors.Is(o.err, idemmail.ErrChanged) {
			requireResolved(t, before, now, "first")
		}
		switch err := d.direct.Resolve(t.Context(), before, resolvedBy("again")); {
		case err == nil:
			require.Error(t, o.err)
			require.Equal(t, &before, now, "neither resolved nor untouched")
			requireResolved(t, before, d.look(t, e), "again")
		default: // it had been done, if later than it was answered
			require.ErrorIs(t, err, idemmail.ErrChanged)
			requireResolved(t, before, d.look(t, e), "first")
		}
	case forget:
		if o.err == nil || errors.Is(o.err, idemmail.ErrChanged) {
			require.Nil(t, now)
		}
		switch err := d.direct.Forget(t.Context(), before); {
		case err == nil:
			require.Error(t, o.err)
			require.Equal(t, &before, now, "neither forgotten nor untouched")
		default:
			require.ErrorIs(t, err, idemmail.ErrChanged)
		}
		require.Nil(t, d.look(t, e))
	}
}

// look looks an errand's key up, without any fault.
func (d *desk) look(t *testing.T, e errand) *idemmail.Entry {
	entry, err := d.direct.Lookup(t.Context(), e.String())
	require.NoError(t, err)
	return ageless(entry)
}

func ageless(e *idemmail.Entry) *idemmail.Entry {
	if e != nil {
		e.Record.Age = 0
	}
	return e
}

// requireResolved requires that a key is resolved, by whom.
func requireResolved(t *testing.T, before idemmail.Entry, now *idemmail.Entry, by string) {
	t.Helper()
	require.NotNil(t, now)
	require.Equal(t, idemmail.StateDone, now.Record.State)
	require.Equal(t, idemmail.StatusSent, now.Record.Receipt.Status)
	require.Equal(t, by, now.Record.Receipt.ProviderID)
	require.Equal(t, before.Record.Fingerprint, now.Record.Fingerprint)
	require.NotEqual(t, before.Token, now.Token, "a late complete of the owner must not find its token")
}

// assertOthersUntouched asserts that no key of the other namespace is another
// than before.
func (d *desk) assertOthersUntouched(t *testing.T) {
	require.Equal(t, d.theirs, entries(t, d.others))
}
