package redisstore_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/redisstore"
)

func neverRepeats(o *redis.Options) { o.MaxRetries = -1 }

// TestLostAnswers: a proxy has the server carry out a command and loses its
// answer. testLostAnswers runs it on a real server too.
func TestLostAnswers(t *testing.T) { testLostAnswers(t, startMini(t).Addr()) }

func testLostAnswers(t *testing.T, server string) {
	direct := newClient(t, server)
	open := func(t *testing.T, change ...func(*redis.Options)) (*redisstore.Store, *proxy) {
		p := startProxy(t, server)
		s := redisstore.New(newClient(t, p.addr, change...), redisstore.Options{})
		t.Cleanup(func() { require.Equal(t, int64(1), p.lost.Load(), "one answer must have been lost") })
		token := reserve(t, s, t.Name()+" warm") // all is prepared
		require.NoError(t, s.Release(t.Context(), t.Name()+" warm", token))
		return s, p
	}

	t.Run("reserve, repeated by the client", func(t *testing.T) {
		s, p := open(t)
		key := t.Name()
		p.loseNext(key, "NX")
		token := reserve(t, s, key) // it meets its own token
		require.Equal(t, idemmail.StatePending, holder(t, s, key).State)
		require.NoError(t, s.Complete(t.Context(), key, token, done(idemmail.StatusSent), time.Minute))
	})
	t.Run("reserve, not repeated", func(t *testing.T) {
		s, p := open(t, neverRepeats)
		key := t.Name()
		p.loseNext(key, "NX")
		_, _, err := s.Reserve(t.Context(), key, "1:f", idemmail.NoExpiry)
		require.Error(t, err)
		reserve(t, s, key) // it was freed
	})
	t.Run("reserve of a key that another holds", func(t *testing.T) {
		s, p := open(t, neverRepeats)
		key := t.Name()
		token := reserve(t, s, key)
		p.loseNext(key, "NX")
		_, _, err := s.Reserve(t.Context(), key, "1:f", time.Minute)
		require.Error(t, err)
		require.NoError(t, s.Renew(t.Context(), key, token, time.Minute), "the holder keeps it")
	})
	t.Run("reserve many, repeated by the client", func(t *testing.T) {
		s, p := open(t)
		reqs := reserveRequests(t.Name(), 10)
		p.loseNext(reqs[9].Key, "NX")
		for _, r := range s.ReserveMany(t.Context(), reqs) {
			require.NoError(t, r.Err)
			require.NotEmpty(t, r.Token)
		}
	})
	t.Run("reserve many, not repeated", func(t *testing.T) {
		s, p := open(t, neverRepeats)
		reqs := reserveRequests(t.Name(), 10)
		p.loseNext(reqs[9].Key, "NX")
		for _, r := range s.ReserveMany(t.Context(), reqs) {
			require.Error(t, r.Err)
			require.NotErrorIs(t, r.Err, idemmail.ErrBadRecord)
		}
		for _, r := range reqs {
			reserve(t, s, r.Key)
		}
	})
	for name, change := range map[string]func(*redis.Options){
		"repeated by the client": func(*redis.Options) {},
		"repeated by the caller": neverRepeats,
	} {
		t.Run("complete, "+name, func(t *testing.T) {
			s, p := open(t, change)
			key := t.Name()
			token := reserve(t, s, key)
			p.loseNext(key, "q1")
			if s.Complete(t.Context(), key, token, done(idemmail.StatusSent), time.Minute) != nil {
				require.NoError(t, s.Complete(t.Context(), key, token, done(idemmail.StatusSent), time.Minute))
			}
			require.Equal(t, "q1", holder(t, s, key).Receipt.ProviderID)
		})
	}
	t.Run("release, repeated by the client", func(t *testing.T) {
		s, p := open(t)
		key := t.Name()
		token := reserve(t, s, key)
		p.loseNext(key, token)
		require.NoError(t, s.Release(t.Context(), key, token))
		reserve(t, s, key)
	})
	t.Run("resolve, repeated by the client", func(t *testing.T) {
		s, p := open(t)
		key := t.Name()
		reserve(t, s, key)
		e, err := s.Lookup(t.Context(), key)
		require.NoError(t, err)
		p.loseNext(key, e.Token)
		require.NoError(t, s.Resolve(t.Context(), *e, nil, time.Minute))
		require.Equal(t, idemmail.StatusSent, holder(t, s, key).Receipt.Status)
	})
	for name, c := range map[string]struct {
		change func(*redis.Options)
		lose   []string
		first  error // of the first Do
	}{
		"reserve, repeated by the client":  {func(*redis.Options) {}, []string{"NX"}, nil},
		"reserve, not repeated":            {neverRepeats, []string{"NX"}, idemmail.ErrStoreFailed},
		"complete, repeated by the client": {func(*redis.Options) {}, []string{"smtp"}, nil},
		"complete, repeated by the guard":  {neverRepeats, []string{"smtp"}, nil},
	} {
		t.Run("one send: "+name, func(t *testing.T) {
			s, p := open(t, c.change)
			guard, err := idemmail.NewGuard(idemmail.Options{Store: s, Namespace: "lost", Logger: slog.New(slog.DiscardHandler)})
			require.NoError(t, err)
			key, sends := t.Name(), 0
			do := func() (*idemmail.Receipt, error) {
				return guard.Do(t.Context(), key, "", func(context.Context) (*idemmail.Receipt, error) {
					sends++
					return &idemmail.Receipt{Status: idemmail.StatusSent, Response: "smtp"}, nil
				})
			}
			p.loseNext(append(c.lose, key)...)
			_, err = do()
			require.ErrorIs(t, err, c.first)
			r, err := do()
			require.NoError(t, err)
			require.Equal(t, "smtp", r.Response)
			require.Equal(t, 1, sends)
			require.Equal(t, c.first == nil, r.Replayed)
		})
	}
	t.Run("the first reserve of all", func(t *testing.T) {
		p := startProxy(t, server)
		s := redisstore.New(newClient(t, p.addr), redisstore.Options{})
		p.loseNext("NX")
		reserve(t, s, t.Name())
		require.Equal(t, int64(1), p.lost.Load())
	})
	left, err := direct.Keys(t.Context(), "*probe*").Result()
	require.NoError(t, err)
	require.Empty(t, left)
}

func reserveRequests(prefix string, n int) []idemmail.ReserveRequest {
	reqs := make([]idemmail.ReserveRequest, n)
	for i := range reqs {
		reqs[i] = idemmail.ReserveRequest{Key: prefix + "/" + string(rune('a'+i/26)) + string(rune('a'+i%26)), Fingerprint: "1:f", Lease: time.Minute}
	}
	return reqs
}

// TestAnAbandonedReserveFreesWhatItTook: the server answers after the caller
// has gone.
func TestAnAbandonedReserveFreesWhatItTook(t *testing.T) {
	for name, reserveOn := range map[string]func(context.Context, *redisstore.Store) error{
		"one": func(ctx context.Context, s *redisstore.Store) error {
			_, _, err := s.Reserve(ctx, "mail:late", "1:f", idemmail.NoExpiry)
			return err
		},
		"many": func(ctx context.Context, s *redisstore.Store) error {
			return s.ReserveMany(ctx, []idemmail.ReserveRequest{{Key: "mail:late", Fingerprint: "1:f", Lease: idemmail.NoExpiry}})[0].Err
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := startMini(t)
			s := redisstore.New(newClient(t, m.Addr(), func(o *redis.Options) { o.ReadTimeout = -1 }), redisstore.Options{})
			reserve(t, s, "mail:first") // all is prepared

			arrived, goOn := make(chan struct{}), make(chan struct{})
			var taken, freed atomic.Bool
			m.Server().SetPreHook(func(_ *server.Peer, cmd string, args ...string) bool {
				switch {
				case cmd == "SET" && args[0] == "mail:late":
					close(arrived)
					<-goOn
					taken.Store(true)
				case cmd == "EVALSHA" && slices.Contains(args, "mail:late"):
					freed.Store(taken.Load())
				}
				return false
			})
			ctx, cancel := context.WithCancel(t.Context())
			returned := make(chan error)
			go func() { returned <- reserveOn(ctx, s) }()
			<-arrived
			cancel()
			require.ErrorIs(t, <-returned, context.Canceled, "it returns though the server does not answer")
			close(goOn)
			require.Eventually(t, func() bool { return freed.Load() && !m.Exists("mail:late") }, 10*time.Second, time.Millisecond)
		})
	}
}

// meddler is a hook that acts before the caller hears of the answer.
type meddler struct {
	trips
	after func(cmd redis.Cmder, err error) error
}

func (m *meddler) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error { return m.after(cmd, next(ctx, cmd)) }
}

// TestAReserveThatFailsAsItsContextEnds takes the key, fails, and has its
// context ended, at the same time: whichever it hears of first, it frees.
func TestAReserveThatFailsAsItsContextEnds(t *testing.T) {
	m := startMini(t)
	s := redisstore.New(m.client, redisstore.Options{})
	reserve(t, s, "mail:first")
	var cancel context.CancelFunc
	m.client.AddHook(&meddler{after: func(cmd redis.Cmder, err error) error {
		if cmd.Name() != "set" {
			return err
		}
		cancel()
		return errors.New("lost")
	}})
	for range 50 {
		ctx, end := context.WithCancel(t.Context())
		cancel = end
		_, _, err := s.Reserve(ctx, "mail:a", "1:f", idemmail.NoExpiry)
		end()
		require.Error(t, err)
		require.Eventually(t, func() bool { return !m.Exists("mail:a") }, 10*time.Second, time.Millisecond)
	}
}

// TestFreeingIsTriedAgain: the server is busy at first.
func TestFreeingIsTriedAgain(t *testing.T) {
	s, m := newStore(t)
	reserve(t, s, "mail:first")
	var tries atomic.Int64
	refusing(m, func(c *server.Peer, cmd string, args []string) bool {
		switch cmd {
		case "SET":
			c.WriteError("BUSY")
			return true
		case "EVALSHA":
			if tries.Add(1) <= 2 {
				c.WriteError("BUSY")
				return true
			}
		}
		return false
	})
	_, _, err := s.Reserve(t.Context(), "mail:a", "1:f", time.Minute)
	require.ErrorContains(t, err, "BUSY")
	require.Eventually(t, func() bool { return tries.Load() == 3 }, 10*time.Second, time.Millisecond)
}

// TestAHookThatPanics: hooks run where nobody but the store can recover.
func TestAHookThatPanics(t *testing.T) {
	m := startMini(t)
	s := redisstore.New(m.client, redisstore.Options{})
	token := reserve(t, s, "mail:a")
	m.client.AddHook(&meddler{after: func(redis.Cmder, error) error { panic("oh no") }})
	for _, ctx := range []context.Context{t.Context(), context.Background()} {
		_, _, err := s.Reserve(ctx, "mail:b", "1:f", time.Minute)
		require.ErrorContains(t, err, "oh no")
		require.ErrorContains(t, s.Complete(ctx, "mail:a", token, done(idemmail.StatusSent), time.Minute), "oh no")
	}
}

// TestEveryCallEndsWithItsContext: the server answers nothing at all, and the
// client knows no deadlines.
func TestEveryCallEndsWithItsContext(t *testing.T) {
	m := startMini(t)
	s := redisstore.New(newClient(t, m.Addr(), func(o *redis.Options) { o.ReadTimeout = -1 }), redisstore.Options{})
	reserve(t, s, "mail:first")
	fresh := redisstore.New(newClient(t, m.Addr(), func(o *redis.Options) { o.ReadTimeout = -1 }), redisstore.Options{})
	testEveryCallEnds(t, s, fresh, func() func() {
		goOn := make(chan struct{})
		m.Server().SetPreHook(func(*server.Peer, string, ...string) bool { <-goOn; return false })
		return func() { close(goOn) }
	})
}

// testEveryCallEnds expects each call of the stores to end with its context
// while the server is held.
func testEveryCallEnds(t *testing.T, s, fresh *redisstore.Store, hold func() (goOn func())) {
	e := idemmail.Entry{Key: "mail:a", Token: "t", Record: idemmail.Record{State: idemmail.StatePending}}
	calls := map[string]func(context.Context) error{
		"first reserve": func(ctx context.Context) error {
			_, _, err := fresh.Reserve(ctx, "mail:a", "1:f", time.Minute)
			return err
		},
		"first reserve of many": func(ctx context.Context) error {
			return fresh.ReserveMany(ctx, []idemmail.ReserveRequest{{Key: "mail:a", Lease: time.Minute}})[0].Err
		},
		"reserve": func(ctx context.Context) error { _, _, err := s.Reserve(ctx, "mail:a", "1:f", time.Minute); return err },
		"complete": func(ctx context.Context) error {
			return s.Complete(ctx, "mail:a", "t", done(idemmail.StatusSent), time.Minute)
		},
		"release": func(ctx context.Context) error { return s.Release(ctx, "mail:a", "t") },
		"renew":   func(ctx context.Context) error { return s.Renew(ctx, "mail:a", "t", time.Minute) },
		"lookup":  func(ctx context.Context) error { _, err := s.Lookup(ctx, "mail:a"); return err },
		"resolve": func(ctx context.Context) error { return s.Resolve(ctx, e, nil, time.Minute) },
		"forget":  func(ctx context.Context) error { return s.Forget(ctx, e) },
		"check":   s.Check,
		"unsettled": func(ctx context.Context) (last error) {
			for _, err := range s.Unsettled(ctx, "mail:", 0) {
				last = err
			}
			return last
		},
		"reserve many": func(ctx context.Context) error {
			return s.ReserveMany(ctx, []idemmail.ReserveRequest{{Key: "mail:a", Lease: time.Minute}})[0].Err
		},
		"complete many": func(ctx context.Context) error {
			return s.CompleteMany(ctx, []idemmail.CompleteRequest{{Key: "mail:a", Token: "t", Record: done(idemmail.StatusSent), TTL: time.Minute}})[0]
		},
		"release many": func(ctx context.Context) error {
			return s.ReleaseMany(ctx, []idemmail.ReleaseRequest{{Key: "mail:a", Token: "t"}})[0]
		},
		"renew many": func(ctx context.Context) error {
			return s.RenewMany(ctx, []idemmail.RenewRequest{{Key: "mail:a", Token: "t", Lease: time.Minute}})[0]
		},
	}
	goOn := hold()
	defer goOn()
	for name, call := range calls {
		t.Run(name+", deadline", func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer cancel()
			require.ErrorIs(t, call(ctx), context.DeadlineExceeded)
		})
		t.Run(name+", cancelled", func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(20*time.Millisecond, cancel)
			require.ErrorIs(t, call(ctx), context.Canceled)
		})
		t.Run(name+", ended before", func(t *testing.T) {
			require.ErrorIs(t, call(ended(t)), context.Canceled)
		})
	}
}

// slowTimer is a context whose deadline has passed, and which has not noticed.
type slowTimer struct{ context.Context }

func (slowTimer) Deadline() (time.Time, bool) { return time.Now().Add(-time.Millisecond), true }
func (slowTimer) Done() <-chan struct{}       { return make(chan struct{}) }

// TestATimeoutOfTheConnectionIsTheContextsEnd: with ContextTimeoutEnabled the
// connection's timer may be faster than the context's.
func TestATimeoutOfTheConnectionIsTheContextsEnd(t *testing.T) {
	m := startMini(t)
	s := redisstore.New(newClient(t, m.Addr(), neverRepeats, func(o *redis.Options) { o.ContextTimeoutEnabled = true }), redisstore.Options{})
	token := reserve(t, s, "mail:a")
	require.ErrorIs(t, s.Release(slowTimer{t.Context()}, "mail:a", token), context.DeadlineExceeded)
	require.ErrorIs(t, s.ReleaseMany(slowTimer{t.Context()}, []idemmail.ReleaseRequest{{Key: "mail:a", Token: token}})[0], context.DeadlineExceeded)
	_, _, err := s.Reserve(slowTimer{t.Context()}, "mail:b", "1:f", time.Minute)
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

// TestAServerThatIsDown: go-redis tells of it in a pipeline's error alone, and
// leaves its commands as if they had been answered nothing.
func TestAServerThatIsDown(t *testing.T) {
	m := startMini(t)
	s := redisstore.New(newClient(t, m.Addr(), neverRepeats), redisstore.Options{})
	fresh := redisstore.New(newClient(t, m.Addr(), neverRepeats), redisstore.Options{})
	reserve(t, s, "mail:first")
	m.Close()
	for name, err := range map[string]error{
		"first reserve": func() error { _, _, err := fresh.Reserve(t.Context(), "mail:a", "1:f", time.Minute); return err }(),
		"reserve":       func() error { _, _, err := s.Reserve(t.Context(), "mail:a", "1:f", time.Minute); return err }(),
		"reserve many":  s.ReserveMany(t.Context(), reserveRequests("mail:", 3))[2].Err,
		"complete many": s.CompleteMany(t.Context(), []idemmail.CompleteRequest{{Key: "mail:a", Record: done(idemmail.StatusSent), TTL: 1}})[0],
		"release":       s.Release(t.Context(), "mail:a", "t"),
		"check":         s.Check(t.Context()),
	} {
		require.Error(t, err, name)
		require.NotErrorIs(t, err, idemmail.ErrBadRecord, name)
		require.NotErrorIs(t, err, idemmail.ErrLeaseLost, name)
		require.ErrorContains(t, err, "dial", name)
	}
	for _, err := range s.Unsettled(t.Context(), "mail:", 0) {
		require.ErrorContains(t, err, "dial")
	}
	require.NoError(t, m.Restart())
	reserve(t, fresh, "mail:a") // the preparation is tried again
}
