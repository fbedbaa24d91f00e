package idemmail_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
)

// A hookedStore passes every call to a MemStore, unless a hook takes it.
// n counts the calls of each method from 1.
type hookedStore struct {
	*idemmail.MemStore
	mu                          sync.Mutex
	reserved, completed, closed int
	reserve                     func(ctx context.Context, n int, next func() (string, *idemmail.Record, error)) (string, *idemmail.Record, error)
	complete                    func(ctx context.Context, n int, next func() error) error
	release                     func(ctx context.Context, n int, next func() error) error
}

// count counts a call and returns the hook for it.
func count[F any](s *hookedStore, n *int, hook *F) (int, F) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*n++
	return *n, *hook
}

// unhook lets the store work again.
func (s *hookedStore) unhook() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reserve, s.complete, s.release = nil, nil, nil
}

func (s *hookedStore) calls(n *int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return *n
}

func (s *hookedStore) Reserve(ctx context.Context, key, fingerprint string, lease time.Duration) (string, *idemmail.Record, error) {
	n, hook := count(s, &s.reserved, &s.reserve)
	next := func() (string, *idemmail.Record, error) { return s.MemStore.Reserve(ctx, key, fingerprint, lease) }
	if hook == nil {
		return next()
	}
	return hook(ctx, n, next)
}

func (s *hookedStore) Complete(ctx context.Context, key, token string, rec idemmail.Record, ttl time.Duration) error {
	n, hook := count(s, &s.completed, &s.complete)
	next := func() error { return s.MemStore.Complete(ctx, key, token, rec, ttl) }
	if hook == nil {
		return next()
	}
	return hook(ctx, n, next)
}

func (s *hookedStore) Release(ctx context.Context, key, token string) error {
	n, hook := count(s, &s.closed, &s.release)
	next := func() error { return s.MemStore.Release(ctx, key, token) }
	if hook == nil {
		return next()
	}
	return hook(ctx, n, next)
}

func newHookedStore() *hookedStore {
	return &hookedStore{MemStore: idemmail.NewMemStore(idemmail.MemStoreOptions{})}
}

func (s *hookedStore) state(t testing.TB, key string) idemmail.State {
	t.Helper()
	e, err := s.Lookup(t.Context(), doorNamespace+":"+key)
	require.NoError(t, err)
	if e == nil {
		return ""
	}
	return e.Record.State
}

// observed collects events and log lines.
type observed struct {
	mu     sync.Mutex
	events []idemmail.Event
	log    bytes.Buffer
}

func (o *observed) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.log.Write(p)
}

func (o *observed) options(options idemmail.Options) idemmail.Options {
	options.Logger = slog.New(slog.NewTextHandler(o, &slog.HandlerOptions{Level: slog.LevelWarn}))
	options.Observe = func(_ context.Context, e idemmail.Event) {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.events = append(o.events, e)
	}
	return options
}

func (o *observed) kinds() (kinds []idemmail.EventKind) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, e := range o.events {
		kinds = append(kinds, e.Kind)
	}
	return kinds
}

func (o *observed) warnings() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return strings.Split(strings.TrimSuffix(o.log.String(), "\n"), "\n")
}

// inBubble runs a test through every door that sends one thing at a time, in a
// bubble of synctest.
func inBubble(t *testing.T, test func(*testing.T, door)) {
	for _, d := range doors {
		if d.name == "SendMany in turn" || d.name == "SendMany together" {
			continue
		}
		t.Run(d.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { test(t, d) })
		})
	}
}

var (
	errRefused = idemmail.NotSent(errors.New("refused"))
	errFlaky   = errors.New("store: connection reset")
)

func sendsWell(context.Context) (*idemmail.Receipt, error) {
	return &idemmail.Receipt{ProviderID: "id"}, nil
}

func failsSurely(context.Context) (*idemmail.Receipt, error) { return nil, errRefused }

// C2: a caller who has gone does not leave the key pending.
func TestCallerWhoHasGoneLeavesNoKeyPending(t *testing.T) {
	inBubble(t, func(t *testing.T, d door) {
		store := newHookedStore()
		ctx, cancel := context.WithCancel(context.WithValue(t.Context(), ctxValue{}, "kept"))
		defer cancel()
		var settled int
		look := func(ctx context.Context, _ int, next func() error) error {
			settled++
			require.NoError(t, ctx.Err())
			deadline, ok := ctx.Deadline()
			require.True(t, ok)
			require.LessOrEqual(t, time.Until(deadline), time.Second)
			require.Equal(t, "kept", ctx.Value(ctxValue{}))
			return next()
		}
		store.complete, store.release = look, look
		var outcome error
		send := d.open(t, idemmail.Options{Store: store, StoreTimeout: time.Second}, func(context.Context) (*idemmail.Receipt, error) {
			cancel()
			return nil, outcome
		})
		r, err := send(ctx, "sent", "a")
		require.NoError(t, err)
		require.Equal(t, idemmail.StatusSent, r.Status)
		require.Equal(t, idemmail.StateDone, store.state(t, "sent"))

		outcome = errRefused
		ctx, again := context.WithCancel(context.WithValue(t.Context(), ctxValue{}, "kept"))
		defer again()
		cancel = again
		_, err = send(ctx, "failed", "a")
		require.ErrorIs(t, err, errRefused)
		require.Empty(t, store.state(t, "failed"))
		require.Equal(t, 2, settled)
	})
}

type ctxValue struct{}

// C2, C16, C17: whatever the store does, the caller gets the receipt or the
// send's own error, within StoreTimeout.
func TestStoreThatCannotSettle(t *testing.T) {
	const timeout = 2 * time.Second
	for _, fault := range []struct {
		name string
		hook func(ctx context.Context, n int, next func() error) error
	}{
		{"always fails", func(context.Context, int, func() error) error { return errFlaky }},
		{"blocks until its context ends", func(ctx context.Context, _ int, _ func() error) error {
			<-ctx.Done()
			return ctx.Err()
		}},
		{"blocks for longer than it may", func(context.Context, int, func() error) error {
			time.Sleep(time.Minute)
			return nil
		}},
		{"panics", func(context.Context, int, func() error) error { panic("store bug") }},
		{"ends its goroutine", func(context.Context, int, func() error) error {
			runtime.Goexit()
			return nil
		}},
	} {
		for _, outcome := range []struct {
			name string
			work work
			kind idemmail.EventKind
		}{
			{"sent", sendsWell, idemmail.EventSent},
			{"failed", failsSurely, idemmail.EventFailed},
		} {
			t.Run(fault.name+"/"+outcome.name, func(t *testing.T) {
				inBubble(t, func(t *testing.T, d door) {
					store, seen := newHookedStore(), new(observed)
					store.complete, store.release = fault.hook, fault.hook
					send := d.open(t, seen.options(idemmail.Options{Store: store, StoreTimeout: timeout}), outcome.work)
					began := time.Now()
					r, err := send(t.Context(), "k", "a")
					require.LessOrEqual(t, time.Since(began), timeout+200*time.Millisecond)
					if outcome.name == "sent" {
						require.NoError(t, err)
						require.Equal(t, "id", r.ProviderID)
					} else {
						require.ErrorIs(t, err, errRefused)
						require.NotErrorIs(t, err, idemmail.ErrStoreFailed)
					}
					require.Equal(t, []idemmail.EventKind{idemmail.EventStoreFailed, outcome.kind}, seen.kinds())
					require.Len(t, seen.warnings(), 1)
					require.Contains(t, seen.warnings()[0], "code=idempotency.store_failed")

					store.unhook()
					_, err = send(t.Context(), "k", "a")
					require.ErrorIs(t, err, idemmail.ErrInFlight, "inside the lease nothing goes")
					time.Sleep(2 * time.Minute) // let what was left behind end
				})
			})
		}
	}
}

func TestSettlingIsTriedAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, d door) {
		store, seen := newHookedStore(), new(observed)
		twice := func(_ context.Context, n int, next func() error) error {
			if n <= 2 {
				return errFlaky
			}
			return next()
		}
		store.complete, store.release = twice, twice
		outcome := sendsWell
		send := d.open(t, seen.options(idemmail.Options{Store: store}), func(ctx context.Context) (*idemmail.Receipt, error) { return outcome(ctx) })
		_, err := send(t.Context(), "sent", "a")
		require.NoError(t, err)
		require.Equal(t, idemmail.StateDone, store.state(t, "sent"))
		outcome = failsSurely
		_, err = send(t.Context(), "failed", "a")
		require.ErrorIs(t, err, errRefused)
		require.Empty(t, store.state(t, "failed"))
		require.Equal(t, []idemmail.EventKind{idemmail.EventSent, idemmail.EventFailed}, seen.kinds())
	})
}

// A call that hangs, on a connection that is dead without having been closed,
// leaves time for another.
func TestSettlingOutlivesACallThatHangs(t *testing.T) {
	for _, hung := range []int{1, 2, 3} {
		t.Run(strconv.Itoa(hung), func(t *testing.T) {
			inBubble(t, func(t *testing.T, d door) {
				store, seen := newHookedStore(), new(observed)
				hangs := func(ctx context.Context, n int, next func() error) error {
					if n <= hung {
						<-ctx.Done()
						return ctx.Err()
					}
					return next()
				}
				store.complete, store.release = hangs, hangs
				outcome := sendsWell
				send := d.open(t, seen.options(idemmail.Options{Store: store, StoreTimeout: time.Second}), func(ctx context.Context) (*idemmail.Receipt, error) { return outcome(ctx) })
				_, err := send(t.Context(), "sent", "a")
				require.NoError(t, err)
				require.Equal(t, idemmail.StateDone, store.state(t, "sent"))
				outcome = failsSurely
				_, err = send(t.Context(), "failed", "a")
				require.ErrorIs(t, err, errRefused)
				require.Empty(t, store.state(t, "failed"))
				require.Equal(t, []idemmail.EventKind{idemmail.EventSent, idemmail.EventFailed}, seen.kinds())
			})
		})
	}
}

// An answer that was lost is asked for again: the second complete under the
// token is no error.
func TestLostAnswerToCompleteDoesNoHarm(t *testing.T) {
	inBubble(t, func(t *testing.T, d door) {
		store, seen := newHookedStore(), new(observed)
		store.complete = func(_ context.Context, n int, next func() error) error {
			err := next()
			if n == 1 {
				return errFlaky
			}
			return err
		}
		send := d.open(t, seen.options(idemmail.Options{Store: store}), sendsWell)
		_, err := send(t.Context(), "k", "a")
		require.NoError(t, err)
		require.Equal(t, []idemmail.EventKind{idemmail.EventSent}, seen.kinds())
	})
}

func TestFinalAnswersOfStoresAreNotTriedAgain(t *testing.T) {
	for _, final := range []error{idemmail.ErrLeaseLost, idemmail.ErrBadRecord, idemmail.ErrStoreFull} {
		t.Run(final.Error(), func(t *testing.T) {
			inBubble(t, func(t *testing.T, d door) {
				store, seen := newHookedStore(), new(observed)
				answer := func(context.Context, int, func() error) error { return errors.Join(errFlaky, final) }
				store.complete, store.release = answer, answer
				outcome := sendsWell
				send := d.open(t, seen.options(idemmail.Options{Store: store}), func(ctx context.Context) (*idemmail.Receipt, error) { return outcome(ctx) })
				r, err := send(t.Context(), "sent", "a")
				require.NoError(t, err)
				require.Equal(t, "id", r.ProviderID)
				outcome = failsSurely
				_, err = send(t.Context(), "failed", "a")
				require.ErrorIs(t, err, errRefused)
				require.Equal(t, 1, store.calls(&store.completed))
				require.Equal(t, 1, store.calls(&store.closed))
				trouble := idemmail.EventStoreFailed
				if errors.Is(final, idemmail.ErrLeaseLost) {
					trouble = idemmail.EventLeaseLost
				}
				require.Equal(t, []idemmail.EventKind{trouble, idemmail.EventSent, trouble, idemmail.EventFailed}, seen.kinds())
			})
		})
	}
}

// A reserve that errs, or answers neither exactly a token nor exactly a
// record, fails that message alone.
func TestReserveThatFails(t *testing.T) {
	held := &idemmail.Record{State: idemmail.StatePending}
	type answer = func(ctx context.Context, n int, next func() (string, *idemmail.Record, error)) (string, *idemmail.Record, error)
	for _, fault := range []struct {
		name    string
		hook    answer
		cause   error
		bad     bool // not even FailOpen goes past it
		takes   bool // the reservation was made: it is freed
		lease   time.Duration
		elapsed time.Duration
	}{
		{name: "errs", cause: errFlaky, hook: func(context.Context, int, func() (string, *idemmail.Record, error)) (string, *idemmail.Record, error) {
			return "", nil, errFlaky
		}},
		{name: "errs beside a token", cause: errFlaky, takes: true, hook: func(_ context.Context, _ int, next func() (string, *idemmail.Record, error)) (string, *idemmail.Record, error) {
			token, _, _ := next()
			return token, nil, errFlaky
		}},
		{name: "is full", cause: idemmail.ErrStoreFull, hook: func(context.Context, int, func() (string, *idemmail.Record, error)) (string, *idemmail.Record, error) {
			return "", nil, idemmail.ErrStoreFull
		}},
		{name: "answers nothing", hook: func(context.Context, int, func() (string, *idemmail.Record, error)) (string, *idemmail.Record, error) {
			return "", nil, nil
		}},
		{name: "answers a token and a record", takes: true, hook: func(_ context.Context, _ int, next func() (string, *idemmail.Record, error)) (string, *idemmail.Record, error) {
			token, _, _ := next()
			return token, held, nil
		}},
		{name: "meets a bad record", cause: idemmail.ErrBadRecord, bad: true, hook: func(context.Context, int, func() (string, *idemmail.Record, error)) (string, *idemmail.Record, error) {
			return "", nil, errors.Join(errFlaky, idemmail.ErrBadRecord)
		}},
		{name: "panics", hook: func(context.Context, int, func() (string, *idemmail.Record, error)) (string, *idemmail.Record, error) {
			panic("store bug")
		}},
		{name: "blocks until its context ends", cause: context.DeadlineExceeded, elapsed: 2 * time.Second, hook: func(ctx context.Context, _ int, _ func() (string, *idemmail.Record, error)) (string, *idemmail.Record, error) {
			<-ctx.Done()
			return "", nil, ctx.Err()
		}},
		{name: "takes the key, but too late", cause: context.DeadlineExceeded, takes: true, elapsed: 2*time.Second + 100*time.Millisecond, hook: func(_ context.Context, n int, next func() (string, *idemmail.Record, error)) (string, *idemmail.Record, error) {
			token, held, err := next()
			time.Sleep(time.Minute)
			return token, held, err
		}},
		{name: "answers as the lease ends", cause: idemmail.ErrLeaseLost, bad: true, takes: true, lease: time.Second, elapsed: time.Second, hook: func(_ context.Context, n int, next func() (string, *idemmail.Record, error)) (string, *idemmail.Record, error) {
			token, held, err := next()
			time.Sleep(time.Second)
			return token, held, err
		}},
	} {
		t.Run(fault.name, func(t *testing.T) {
			for _, open := range []bool{false, true} {
				t.Run(map[bool]string{false: "closed", true: "FailOpen"}[open], func(t *testing.T) {
					inBubble(t, func(t *testing.T, d door) {
						store, seen := newHookedStore(), new(observed)
						store.reserve = fault.hook
						sends := 0
						send := d.open(t, seen.options(idemmail.Options{Store: store, Lease: fault.lease, StoreTimeout: 2 * time.Second, FailOpen: open}), func(ctx context.Context) (*idemmail.Receipt, error) {
							sends++
							return sendsWell(ctx)
						})
						began := time.Now()
						r, err := send(t.Context(), "k", "a")
						require.Equal(t, fault.elapsed, time.Since(began))
						if open && !fault.bad {
							require.NoError(t, err)
							require.Equal(t, "id", r.ProviderID)
							require.Equal(t, 1, sends)
							require.Equal(t, []idemmail.EventKind{idemmail.EventStoreFailed, idemmail.EventSent}, seen.kinds())
							require.Zero(t, store.calls(&store.completed), "nothing was reserved")
						} else {
							require.ErrorIs(t, err, idemmail.ErrStoreFailed)
							if fault.cause != nil {
								require.ErrorIs(t, err, fault.cause)
							}
							require.Equal(t, idemmail.StatusFailed, r.Status)
							require.Equal(t, idemmail.CodeStoreFailed, r.Code)
							require.Equal(t, idemmail.CategoryUnknown, r.Category)
							require.True(t, r.Retryable)
							require.Zero(t, sends)
							require.Equal(t, []idemmail.EventKind{idemmail.EventStoreFailed, idemmail.EventFailed}, seen.kinds())
						}
						require.Len(t, seen.warnings(), 1)
						require.Contains(t, seen.warnings()[0], "code=idempotency.store_failed")
						time.Sleep(2 * time.Minute) // let what was left behind end
						if fault.takes {
							require.Empty(t, store.state(t, "k"), "the key is free")
						}
					})
				})
			}
		})
	}
}

// A reserve that fails while the context is done is not the store's failure.
func TestReserveThatFailsAsTheContextEnds(t *testing.T) {
	inBubble(t, func(t *testing.T, d door) {
		store, seen := newHookedStore(), new(observed)
		ctx, cancel := context.WithCancel(t.Context())
		store.reserve = func(ctx context.Context, _ int, _ func() (string, *idemmail.Record, error)) (string, *idemmail.Record, error) {
			cancel()
			return "", nil, ctx.Err()
		}
		for _, open := range []bool{false, true} {
			send := d.open(t, seen.options(idemmail.Options{Store: store, FailOpen: open}), func(context.Context) (*idemmail.Receipt, error) {
				t.Error("was sent")
				return nil, nil
			})
			_, err := send(ctx, "k", "a")
			require.ErrorIs(t, err, idemmail.ErrNotBegun)
			require.ErrorIs(t, err, context.Canceled)
			require.NotErrorIs(t, err, idemmail.ErrStoreFailed)
		}
		require.Equal(t, []idemmail.EventKind{idemmail.EventFailed, idemmail.EventFailed}, seen.kinds())
	})
}

// A store that does not return holds up nobody whose context ends.
func TestCancelledCallerIsNotHeldUpByTheStore(t *testing.T) {
	inBubble(t, func(t *testing.T, d door) {
		store := newHookedStore()
		store.reserve = func(_ context.Context, n int, next func() (string, *idemmail.Record, error)) (string, *idemmail.Record, error) {
			time.Sleep(time.Minute)
			return next()
		}
		send := d.open(t, idemmail.Options{Store: store, StoreTimeout: time.Hour}, sendsWell)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		_, err := send(ctx, "k", "a")
		require.ErrorIs(t, err, idemmail.ErrNotBegun)
		require.Less(t, time.Since(began), 2*time.Second)
		time.Sleep(2 * time.Minute)
		require.Empty(t, store.state(t, "k"))
	})
}
