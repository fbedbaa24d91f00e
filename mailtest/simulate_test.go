package mailtest_test

import (
	"context"
	"errors"
	"iter"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/mailtest"
)

// simulation is that of a sound pair: a MemStore with a clock of its own, and a
// provider.
func simulation() mailtest.Simulation {
	clock := new(mailtest.Clock)
	store := idemmail.NewMemStore(idemmail.MemStoreOptions{Now: clock.Now})
	return mailtest.Simulation{
		Open:    func() (idemmail.Store, error) { return store, nil },
		Advance: clock.Advance,
	}
}

// over has the simulation run over another store, made of the one before.
func over(s mailtest.Simulation, wrap func(*idemmail.MemStore) idemmail.Store) mailtest.Simulation {
	store, _ := s.Open()
	wrapped := wrap(store.(*idemmail.MemStore))
	s.Open = func() (idemmail.Store, error) { return wrapped, nil }
	return s
}

// through has the simulation run through a transport.
func through(s mailtest.Simulation, send func(ctx context.Context, provider idemmail.Transport, m *idemmail.Message) (*idemmail.Receipt, error)) mailtest.Simulation {
	s.Transport = func(provider idemmail.BatchTransport) (idemmail.Transport, error) {
		return idemmail.TransportFunc(func(ctx context.Context, m *idemmail.Message) (*idemmail.Receipt, error) {
			return send(ctx, provider, m)
		}), nil
	}
	return s
}

func TestSimulateAcceptsSoundPairs(t *testing.T) {
	messages := []*idemmail.Message{
		{Subject: "a", IdempotencyKey: "a"},
		{Subject: "without a key"},
		nil,
		{Subject: "b", IdempotencyKey: "b"},
		{Subject: "a", IdempotencyKey: "a"},
	}
	for _, test := range []struct {
		name   string
		change func(*mailtest.Simulation)
	}{
		{"zero options", func(*mailtest.Simulation) {}},
		{"at most once", func(s *mailtest.Simulation) { s.Options.AtMostOnce = true }},
		{"at most once for ever", func(s *mailtest.Simulation) {
			s.Options.AtMostOnce, s.Options.TTL = true, idemmail.NoExpiry
		}},
		{"a lease for ever", func(s *mailtest.Simulation) { s.Options.Lease = idemmail.NoExpiry }},
		{"a lease of a year", func(s *mailtest.Simulation) { s.Options.Lease = 365 * 24 * time.Hour }},
		{"a TTL shorter than the lease", func(s *mailtest.Simulation) { s.Options.TTL = time.Second }},
		{"duplicates rejected", func(s *mailtest.Simulation) { s.Options.RejectDuplicates = true }},
		{"fail open", func(s *mailtest.Simulation) { s.Options.FailOpen = true }},
		{"keys required", func(s *mailtest.Simulation) { s.Options.RequireKey = true }},
		{"waiting for what is in flight", func(s *mailtest.Simulation) { s.Options.WaitInFlight = time.Hour }},
		{"derived keys", func(s *mailtest.Simulation) {
			s.Options.Key = func(m *idemmail.Message) string { return m.Subject }
			s.Messages = []*idemmail.Message{{Subject: "order/1"}, {Subject: "order/2"}}
		}},
		{"messages of all sorts", func(s *mailtest.Simulation) { s.Messages = messages }},
		{"a store without further abilities", func(s *mailtest.Simulation) {
			*s = over(*s, func(m *idemmail.MemStore) idemmail.Store { return struct{ idemmail.Store }{m} })
		}},
		{"a store that renews", func(s *mailtest.Simulation) {
			*s = over(*s, func(m *idemmail.MemStore) idemmail.Store {
				return struct {
					idemmail.Store
					idemmail.Renewer
				}{m, m}
			})
		}},
		{"a transport that sends one at a time", func(s *mailtest.Simulation) {
			*s = through(*s, func(ctx context.Context, provider idemmail.Transport, m *idemmail.Message) (*idemmail.Receipt, error) {
				return provider.Send(ctx, m)
			})
		}},
		{"a transport that repeats what was not sent", func(s *mailtest.Simulation) {
			*s = through(*s, func(ctx context.Context, provider idemmail.Transport, m *idemmail.Message) (*idemmail.Receipt, error) {
				r, err := provider.Send(ctx, m)
				if err != nil && idemmail.ClassifyError(err) == idemmail.NotDelivered {
					return provider.Send(ctx, m)
				}
				return r, err
			})
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := simulation()
			test.change(&s)
			report, err := mailtest.Simulate(s)
			require.NoError(t, err)
			require.Empty(t, report.Faults)
			require.Positive(t, report.Crashes)
			require.Greater(t, report.Taken, report.Runs)
			t.Log(report)
		})
	}
}

// What a report counts is what the promise says.
func TestSimulateReport(t *testing.T) {
	report, err := mailtest.Simulate(simulation())
	require.NoError(t, err)
	require.Positive(t, report.Repeated, "at least once: a crash before the receipt is kept repeats the message")
	require.Positive(t, report.Waiting, "a lost answer leaves an unknown outcome")
	again, err := mailtest.Simulate(simulation())
	require.NoError(t, err)
	require.Equal(t, report, again, "the same simulation runs the same way")

	s := simulation()
	s.Options.AtMostOnce = true
	atMostOnce, err := mailtest.Simulate(s)
	require.NoError(t, err)
	require.Zero(t, atMostOnce.Repeated)
	require.Greater(t, atMostOnce.Waiting, report.Waiting)
}

func TestSimulateInRealTime(t *testing.T) {
	store := idemmail.NewMemStore(idemmail.MemStoreOptions{})
	s := mailtest.Simulation{
		Open:    func() (idemmail.Store, error) { return store, nil },
		Options: idemmail.Options{Lease: 20 * time.Millisecond},
	}
	synctest.Test(t, func(t *testing.T) {
		_, err := mailtest.Simulate(s)
		require.NoError(t, err)
	})
	synctest.Test(t, func(t *testing.T) {
		s.Options.Lease, s.Advance = 0, time.Sleep
		_, err := mailtest.Simulate(s)
		require.NoError(t, err)
	})
}

// brokenStore is a store without further abilities, one method of which is
// broken.
type brokenStore struct {
	idemmail.Store
	reserve  func(ctx context.Context, key, fingerprint string, lease time.Duration) (string, *idemmail.Record, error)
	complete func(ctx context.Context, key, token string, rec idemmail.Record, ttl time.Duration) error
	release  func(ctx context.Context, key, token string) error
}

func (s brokenStore) Reserve(ctx context.Context, key, fingerprint string, lease time.Duration) (string, *idemmail.Record, error) {
	if s.reserve != nil {
		return s.reserve(ctx, key, fingerprint, lease)
	}
	return s.Store.Reserve(ctx, key, fingerprint, lease)
}

func (s brokenStore) Complete(ctx context.Context, key, token string, rec idemmail.Record, ttl time.Duration) error {
	if s.complete != nil {
		return s.complete(ctx, key, token, rec, ttl)
	}
	return s.Store.Complete(ctx, key, token, rec, ttl)
}

func (s brokenStore) Release(ctx context.Context, key, token string) error {
	if s.release != nil {
		return s.release(ctx, key, token)
	}
	return s.Store.Release(ctx, key, token)
}

// readsFirst is a store whose Reserve reads first and writes after.
type readsFirst struct {
	idemmail.Store
	mu    sync.Mutex
	taken map[string]bool
}

func (s *readsFirst) Reserve(ctx context.Context, key, fingerprint string, lease time.Duration) (string, *idemmail.Record, error) {
	s.mu.Lock()
	taken := s.taken[key]
	s.mu.Unlock()
	if taken {
		return s.Store.Reserve(ctx, key, fingerprint, lease)
	}
	time.Sleep(time.Millisecond) // the way to a server and back
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken[key] = true
	if token, _, err := s.Store.Reserve(ctx, key, fingerprint, lease); token != "" || err != nil {
		return token, nil, err
	}
	return "overwritten", nil, nil
}

// listsNothing is a store that lists nothing.
type listsNothing struct{ *idemmail.MemStore }

func (listsNothing) Unsettled(context.Context, string, time.Duration) iter.Seq2[idemmail.Entry, error] {
	return func(func(idemmail.Entry, error) bool) {}
}

func TestSimulateCatchesBrokenStores(t *testing.T) {
	for _, test := range []struct {
		name string
		wrap func(m *idemmail.MemStore) idemmail.Store
		want mailtest.FaultKind
	}{
		{"reserve reads first and writes after", func(m *idemmail.MemStore) idemmail.Store {
			return &readsFirst{Store: m, taken: make(map[string]bool)}
		}, mailtest.FaultDoubled},
		{"reserve takes what is held", func(m *idemmail.MemStore) idemmail.Store {
			return brokenStore{Store: m, reserve: func(ctx context.Context, key, fingerprint string, lease time.Duration) (string, *idemmail.Record, error) {
				return "token", nil, nil
			}}
		}, mailtest.FaultDoubled},
		{"reserve fails", func(m *idemmail.MemStore) idemmail.Store {
			return brokenStore{Store: m, reserve: func(ctx context.Context, key, fingerprint string, lease time.Duration) (string, *idemmail.Record, error) {
				return "", nil, errors.New("connection refused")
			}}
		}, mailtest.FaultStoreFailed},
		{"reserve holds for ever", func(m *idemmail.MemStore) idemmail.Store {
			return brokenStore{Store: m, reserve: func(ctx context.Context, key, fingerprint string, _ time.Duration) (string, *idemmail.Record, error) {
				return m.Reserve(ctx, key, fingerprint, idemmail.NoExpiry)
			}}
		}, mailtest.FaultStuck},
		{"reserve does not hold", func(m *idemmail.MemStore) idemmail.Store {
			return brokenStore{Store: m, reserve: func(ctx context.Context, key, fingerprint string, lease time.Duration) (string, *idemmail.Record, error) {
				token, held, err := m.Reserve(ctx, key, fingerprint, lease)
				if token != "" {
					_ = m.Release(ctx, key, token)
				}
				return token, held, err
			}}
		}, mailtest.FaultDoubled},
		{"reserve takes all for done", func(m *idemmail.MemStore) idemmail.Store {
			return brokenStore{Store: m, reserve: func(ctx context.Context, key, fingerprint string, lease time.Duration) (string, *idemmail.Record, error) {
				return "", &idemmail.Record{State: idemmail.StateDone, Fingerprint: fingerprint, Receipt: &idemmail.Receipt{Status: idemmail.StatusSent}}, nil
			}}
		}, mailtest.FaultLost},
		{"complete does nothing", func(m *idemmail.MemStore) idemmail.Store {
			return brokenStore{Store: m, complete: func(context.Context, string, string, idemmail.Record, time.Duration) error { return nil }}
		}, mailtest.FaultDoubled},
		{"complete fails", func(m *idemmail.MemStore) idemmail.Store {
			return brokenStore{Store: m, complete: func(context.Context, string, string, idemmail.Record, time.Duration) error {
				return idemmail.ErrStoreFull
			}}
		}, mailtest.FaultStoreFailed},
		{"complete frees the key", func(m *idemmail.MemStore) idemmail.Store {
			return brokenStore{Store: m, complete: func(ctx context.Context, key, token string, _ idemmail.Record, _ time.Duration) error {
				return m.Release(ctx, key, token)
			}}
		}, mailtest.FaultDoubled},
		{"complete keeps for a lease", func(m *idemmail.MemStore) idemmail.Store {
			return brokenStore{Store: m, complete: func(ctx context.Context, key, token string, rec idemmail.Record, _ time.Duration) error {
				return m.Complete(ctx, key, token, rec, 10*time.Minute)
			}}
		}, mailtest.FaultDoubled},
		{"complete keeps all as failed", func(m *idemmail.MemStore) idemmail.Store {
			return brokenStore{Store: m, complete: func(ctx context.Context, key, token string, rec idemmail.Record, ttl time.Duration) error {
				rec.Receipt = &idemmail.Receipt{Status: idemmail.StatusFailed}
				return m.Complete(ctx, key, token, rec, ttl)
			}}
		}, mailtest.FaultMisreported},
		{"release does nothing", func(m *idemmail.MemStore) idemmail.Store {
			return brokenStore{Store: m, release: func(context.Context, string, string) error { return nil }}
		}, mailtest.FaultStuck},
		{"it lists nothing", func(m *idemmail.MemStore) idemmail.Store { return listsNothing{m} }, mailtest.FaultUnlisted},
	} {
		t.Run(test.name, func(t *testing.T) {
			report, err := mailtest.Simulate(over(simulation(), test.wrap))
			requireFault(t, report, err, test.want)
		})
	}
	t.Run("each process has its own", func(t *testing.T) {
		s := simulation()
		s.Open = func() (idemmail.Store, error) { return idemmail.NewMemStore(idemmail.MemStoreOptions{}), nil }
		report, err := mailtest.Simulate(s)
		requireFault(t, report, err, mailtest.FaultDoubled)
	})
}

func TestSimulateCatchesBrokenTransports(t *testing.T) {
	type send = func(ctx context.Context, provider idemmail.Transport, m *idemmail.Message) (*idemmail.Receipt, error)
	for _, test := range []struct {
		name string
		send send
		want mailtest.FaultKind
	}{
		{"it reports failed what the provider took", func(ctx context.Context, provider idemmail.Transport, m *idemmail.Message) (*idemmail.Receipt, error) {
			if _, err := provider.Send(ctx, m); err != nil {
				return nil, idemmail.NotSent(err)
			}
			return nil, nil
		}, mailtest.FaultMisreported},
		{"so that it goes again", func(ctx context.Context, provider idemmail.Transport, m *idemmail.Message) (*idemmail.Receipt, error) {
			if _, err := provider.Send(ctx, m); err != nil {
				return nil, idemmail.NotSent(err)
			}
			return nil, nil
		}, mailtest.FaultDoubled},
		{"it reports sent what the provider refused", func(ctx context.Context, provider idemmail.Transport, m *idemmail.Message) (*idemmail.Receipt, error) {
			_, _ = provider.Send(ctx, m)
			return nil, nil
		}, mailtest.FaultLost},
		{"it sends nothing", func(context.Context, idemmail.Transport, *idemmail.Message) (*idemmail.Receipt, error) {
			return nil, nil
		}, mailtest.FaultLost},
		{"it repeats what may have gone", func(ctx context.Context, provider idemmail.Transport, m *idemmail.Message) (*idemmail.Receipt, error) {
			r, err := provider.Send(ctx, m)
			if err != nil {
				return provider.Send(ctx, m)
			}
			return r, nil
		}, mailtest.FaultDoubled},
	} {
		t.Run(test.name, func(t *testing.T) {
			report, err := mailtest.Simulate(through(simulation(), test.send))
			requireFault(t, report, err, test.want)
		})
	}
	t.Run("its fingerprints change", func(t *testing.T) {
		s := simulation()
		var n atomic.Int64
		s.Options.Fingerprint = func(*idemmail.Message) string { return strconv.FormatInt(n.Add(1), 10) }
		report, err := mailtest.Simulate(s)
		requireFault(t, report, err, mailtest.FaultRefused)
	})
	t.Run("at most once, by a classifier that takes all for failed", func(t *testing.T) {
		s := simulation()
		s.Options.AtMostOnce = true
		s.Options.Classify = func(error) idemmail.Delivery { return idemmail.NotDelivered }
		report, err := mailtest.Simulate(s)
		requireFault(t, report, err, mailtest.FaultDoubled)
	})
}

// requireFault: there is a fault of the kind, and the error has it with all
// that led to it.
func requireFault(t *testing.T, report *mailtest.Report, err error, want mailtest.FaultKind) {
	t.Helper()
	require.Error(t, err)
	var fault *mailtest.Fault
	require.ErrorAs(t, err, &fault)
	for _, f := range report.Faults {
		if f.Kind == want {
			require.Contains(t, []string{"simulated/1", "simulated/2"}, f.Key)
			require.NotEmpty(t, f.Run)
			require.NotEmpty(t, f.What)
			require.NotEmpty(t, f.Trace)
			require.Contains(t, err.Error(), string(want)+`: key "simulated/`)
			return
		}
	}
	require.Fail(t, "not caught", "wanted %s, got %v", want, err)
}

func TestSimulateRefusesWhatCannotBeRun(t *testing.T) {
	errOpen := errors.New("no connection")
	for _, test := range []struct {
		name   string
		change func(*mailtest.Simulation)
		want   string
	}{
		{"no store", func(s *mailtest.Simulation) { s.Open = nil }, "Simulation.Open is nil"},
		{"no key", func(s *mailtest.Simulation) { s.Messages = []*idemmail.Message{nil, {Subject: "a"}} }, "idempotency key"},
		{"a long lease in real time", func(s *mailtest.Simulation) { s.Advance = nil }, "Simulation.Advance"},
		{"a bad option", func(s *mailtest.Simulation) { s.Options.MaxSend = -1 }, "MaxSend"},
		{"a lease beyond a year", func(s *mailtest.Simulation) { s.Options.Lease = 10000 * time.Hour }, "Options.Lease"},
		{"a bad lease", func(s *mailtest.Simulation) { s.Options.Lease = -7 }, "Lease"},
		{"a store that does not open", func(s *mailtest.Simulation) {
			s.Open = func() (idemmail.Store, error) { return nil, errOpen }
		}, "no connection"},
		{"a transport that is not made", func(s *mailtest.Simulation) {
			s.Transport = func(idemmail.BatchTransport) (idemmail.Transport, error) { return nil, errOpen }
		}, "no connection"},
		{"a transport that panics", func(s *mailtest.Simulation) {
			*s = through(*s, func(context.Context, idemmail.Transport, *idemmail.Message) (*idemmail.Receipt, error) { panic("oh") })
		}, "panicked: oh"},
		{"a transport that drops the key", func(s *mailtest.Simulation) {
			*s = through(*s, func(ctx context.Context, provider idemmail.Transport, m *idemmail.Message) (*idemmail.Receipt, error) {
				return provider.Send(ctx, &idemmail.Message{Subject: m.Subject})
			})
		}, "IdempotencyKey"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := simulation()
			test.change(&s)
			report, err := mailtest.Simulate(s)
			require.ErrorContains(t, err, test.want)
			require.Nil(t, report)
		})
	}
}
