package idemmail_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
)

// waitStore counts what a store is asked, and can be made to fail.
type waitStore struct {
	idemmail.Store
	reserved atomic.Int64
	down     atomic.Bool
}

var errStoreDown = errors.New("store is down")

func (s *waitStore) Reserve(ctx context.Context, key, fingerprint string, lease time.Duration) (string, *idemmail.Record, error) {
	s.reserved.Add(1)
	if s.down.Load() {
		return "", nil, errStoreDown
	}
	return s.Store.Reserve(ctx, key, fingerprint, lease)
}

func newWaitStore() *waitStore {
	return &waitStore{Store: idemmail.NewMemStore(idemmail.MemStoreOptions{})}
}

type waitAnswer struct {
	receipt *idemmail.Receipt
	err     error
	after   time.Duration // since it was asked
}

// waiters starts n sends of the same under one key and returns their answers.
func waiters(ctx context.Context, n int, send knock, key, about string) <-chan waitAnswer {
	answers := make(chan waitAnswer, n)
	for range n {
		go func() {
			began := time.Now()
			r, err := send(ctx, key, about)
			answers <- waitAnswer{r, err, time.Since(began)}
		}()
	}
	return answers
}

func TestWaitersAreWokenByTheFirstSendOfTheGuard(t *testing.T) {
	inBubble(t, func(t *testing.T, d door) {
		store := newWaitStore()
		var sends atomic.Int64
		send := d.open(t, idemmail.Options{Store: store, WaitInFlight: time.Hour}, func(context.Context) (*idemmail.Receipt, error) {
			sends.Add(1)
			time.Sleep(1900*time.Millisecond + 7)
			return &idemmail.Receipt{ProviderID: "first"}, nil
		})
		first := waiters(t.Context(), 1, send, "k", "a")
		synctest.Wait()
		second := waiters(t.Context(), 5, send, "k", "a")
		require.NoError(t, (<-first).err)
		for range 5 {
			a := <-second
			require.NoError(t, a.err)
			require.True(t, a.receipt.Replayed)
			require.Equal(t, "first", a.receipt.ProviderID)
			require.Equal(t, 1900*time.Millisecond+7, a.after, "woken at once, not at the next question")
		}
		require.EqualValues(t, 1, sends.Load())
	})
}

func TestHundredWaitersDoNotMultiplyStoreCalls(t *testing.T) {
	inBubble(t, func(t *testing.T, d door) {
		ask := func(n int) int64 {
			store := newWaitStore()
			send := d.open(t, idemmail.Options{Store: store, WaitInFlight: time.Hour}, func(context.Context) (*idemmail.Receipt, error) {
				time.Sleep(time.Minute)
				return nil, nil
			})
			first := waiters(t.Context(), 1, send, "k", "a")
			synctest.Wait()
			others := waiters(t.Context(), n, send, "k", "a")
			synctest.Wait()
			asked := store.reserved.Load() // once each, to be told that it is in flight
			for range n {
				require.NoError(t, (<-others).err)
			}
			<-first
			return store.reserved.Load() - asked
		}
		require.Equal(t, ask(1), ask(100))
	})
}

func TestAnotherProcessIsAskedWithGrowingPauses(t *testing.T) {
	inBubble(t, func(t *testing.T, d door) {
		store := newWaitStore()
		options := idemmail.Options{Store: store, WaitInFlight: time.Hour}
		first := d.open(t, options, func(context.Context) (*idemmail.Receipt, error) {
			time.Sleep(time.Minute)
			return &idemmail.Receipt{ProviderID: "first"}, nil
		})
		second := d.open(t, options, func(context.Context) (*idemmail.Receipt, error) {
			t.Error("sent twice")
			return nil, nil
		})
		done := waiters(t.Context(), 1, first, "k", "a")
		synctest.Wait()
		a := <-waiters(t.Context(), 1, second, "k", "a")
		require.NoError(t, a.err)
		require.Equal(t, "first", a.receipt.ProviderID)
		require.Less(t, a.after, 62*time.Second, "asked once a second in the end")
		require.Less(t, store.reserved.Load(), int64(75))
		<-done
	})
}

func TestWaitEndsInFlight(t *testing.T) {
	inBubble(t, func(t *testing.T, d door) {
		send := d.open(t, idemmail.Options{WaitInFlight: 3 * time.Second}, func(context.Context) (*idemmail.Receipt, error) {
			time.Sleep(time.Minute)
			return nil, nil
		})
		first := waiters(t.Context(), 1, send, "k", "a")
		synctest.Wait()
		a := <-waiters(t.Context(), 1, send, "k", "a")
		require.ErrorIs(t, a.err, idemmail.ErrInFlight)
		require.True(t, a.receipt.Retryable)
		require.Equal(t, 3*time.Second, a.after)
		<-first
	})
}

func TestOneWaiterSendsAfterTheFirstFailed(t *testing.T) {
	inBubble(t, func(t *testing.T, d door) {
		var sends atomic.Int64
		refused := idemmail.NotSent(errors.New("refused"))
		send := d.open(t, idemmail.Options{WaitInFlight: time.Hour}, func(context.Context) (*idemmail.Receipt, error) {
			n := sends.Add(1)
			time.Sleep(time.Second)
			if n == 1 {
				return nil, refused
			}
			return &idemmail.Receipt{ProviderID: "second"}, nil
		})
		first := waiters(t.Context(), 1, send, "k", "a")
		synctest.Wait()
		others := waiters(t.Context(), 10, send, "k", "a")
		require.ErrorIs(t, (<-first).err, refused)
		var replayed int
		for range 10 {
			a := <-others
			require.NoError(t, a.err)
			require.Equal(t, "second", a.receipt.ProviderID)
			require.Equal(t, 2*time.Second, a.after)
			if a.receipt.Replayed {
				replayed++
			}
		}
		require.Equal(t, 9, replayed)
		require.EqualValues(t, 2, sends.Load())
	})
}

func TestOwnContextEndsTheWaitAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, d door) {
		store := newWaitStore()
		send := d.open(t, idemmail.Options{Store: store, WaitInFlight: time.Hour}, func(context.Context) (*idemmail.Receipt, error) {
			time.Sleep(time.Minute)
			return nil, nil
		})
		first := waiters(t.Context(), 1, send, "k", "a")
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		others := waiters(ctx, 3, send, "k", "a") // the one that asks, and two behind it
		time.Sleep(1500 * time.Millisecond)
		cancel()
		for range 3 {
			a := <-others
			require.Equal(t, 1500*time.Millisecond, a.after)
			require.ErrorIs(t, a.err, idemmail.ErrInFlight)
			require.ErrorIs(t, a.err, context.Canceled)
			require.NotErrorIs(t, a.err, idemmail.ErrNotBegun)
		}
		require.NoError(t, (<-first).err)
	})
}

// A waiter whose context ends just as it takes the freed key gives it back.
func TestWaiterThatIsCancelledWithTheKeyFreesIt(t *testing.T) {
	inBubble(t, func(t *testing.T, d door) {
		ctx, cancel := context.WithCancel(t.Context())
		store := &cancellingStore{Store: idemmail.NewMemStore(idemmail.MemStoreOptions{})}
		var sends atomic.Int64
		send := d.open(t, idemmail.Options{Store: store, WaitInFlight: time.Hour}, func(context.Context) (*idemmail.Receipt, error) {
			sends.Add(1)
			time.Sleep(time.Minute)
			return nil, idemmail.NotSent(errors.New("refused"))
		})
		first := waiters(t.Context(), 1, send, "k", "a")
		synctest.Wait()
		second := waiters(ctx, 1, send, "k", "a")
		synctest.Wait()
		store.won.Store(&cancel)
		require.Error(t, (<-first).err)
		require.ErrorIs(t, (<-second).err, idemmail.ErrInFlight)
		require.EqualValues(t, 1, sends.Load())
		store.won.Store(nil)
		third := <-waiters(t.Context(), 1, send, "k", "a")
		require.NotErrorIs(t, third.err, idemmail.ErrInFlight)
		require.EqualValues(t, 2, sends.Load())
		require.Equal(t, time.Minute, third.after, "the key was free at once, not after its lease")
	})
}

// cancellingStore calls won when a reservation succeeds.
type cancellingStore struct {
	idemmail.Store
	won atomic.Pointer[context.CancelFunc]
}

func (s *cancellingStore) Reserve(ctx context.Context, key, fingerprint string, lease time.Duration) (string, *idemmail.Record, error) {
	token, held, err := s.Store.Reserve(ctx, key, fingerprint, lease)
	if won := s.won.Load(); token != "" && won != nil {
		(*won)()
	}
	return token, held, err
}

func TestContextOfTheFirstNeverEndsAWaiter(t *testing.T) {
	inBubble(t, func(t *testing.T, d door) {
		send := d.open(t, idemmail.Options{WaitInFlight: time.Hour}, func(ctx context.Context) (*idemmail.Receipt, error) {
			<-ctx.Done()
			time.Sleep(time.Second)
			return &idemmail.Receipt{ProviderID: "first"}, nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		first := waiters(ctx, 1, send, "k", "a")
		synctest.Wait()
		second := waiters(t.Context(), 1, send, "k", "a")
		synctest.Wait()
		cancel()
		a := <-second
		require.NoError(t, a.err)
		require.Equal(t, "first", a.receipt.ProviderID)
		require.NoError(t, (<-first).err)
	})
}

func TestFirstThatPanicsAnswersAllWithUnknown(t *testing.T) {
	inBubble(t, func(t *testing.T, d door) {
		send := d.open(t, idemmail.Options{WaitInFlight: time.Hour}, func(context.Context) (*idemmail.Receipt, error) {
			time.Sleep(time.Second)
			panic("boom")
		})
		var group sync.WaitGroup
		group.Go(func() {
			require.PanicsWithValue(t, "boom", func() { _, _ = send(t.Context(), "k", "a") })
		})
		synctest.Wait()
		others := waiters(t.Context(), 5, send, "k", "a")
		for range 5 {
			a := <-others
			require.ErrorIs(t, a.err, idemmail.ErrDeliveryUnknown)
			require.ErrorIs(t, a.err, idemmail.ErrPanicked)
			require.True(t, a.receipt.Replayed)
			require.Equal(t, time.Second, a.after)
		}
		group.Wait()
	})
}

func TestAnotherMessageUnderTheKeyNeverWaits(t *testing.T) {
	inBubble(t, func(t *testing.T, d door) {
		var sends atomic.Int64
		send := d.open(t, idemmail.Options{WaitInFlight: time.Hour}, func(context.Context) (*idemmail.Receipt, error) {
			time.Sleep(time.Second)
			if sends.Add(1) == 1 {
				return nil, idemmail.NotSent(errors.New("refused"))
			}
			return nil, nil
		})
		first := waiters(t.Context(), 1, send, "k", "a")
		synctest.Wait()
		same := waiters(t.Context(), 1, send, "k", "a")
		other := <-waiters(t.Context(), 1, send, "k", "b")
		require.ErrorIs(t, other.err, idemmail.ErrKeyReused)
		require.Zero(t, other.after)
		require.Error(t, (<-first).err)
		require.NoError(t, (<-same).err)
	})
}

// A waiter judges what it finds: the key that was freed may be taken by
// another message by then.
func TestWaiterThatFindsAnotherMessageIsRefused(t *testing.T) {
	inBubble(t, func(t *testing.T, d door) {
		store := newWaitStore()
		options := idemmail.Options{Store: store, WaitInFlight: time.Hour}
		send := d.open(t, options, func(context.Context) (*idemmail.Receipt, error) { return nil, nil })
		token, _, err := store.Store.Reserve(t.Context(), doorNamespace+":k", "", idemmail.NoExpiry) // no version: the same as any
		require.NoError(t, err)
		waiting := waiters(t.Context(), 3, send, "k", "a")
		time.Sleep(5 * time.Second)
		require.NoError(t, store.Store.Release(t.Context(), doorNamespace+":k", token))
		other := <-waiters(t.Context(), 1, send, "k", "b")
		require.NoError(t, other.err)
		for range 3 {
			require.ErrorIs(t, (<-waiting).err, idemmail.ErrKeyReused)
		}
	})
}

// The first send was alive a moment ago: a store that fails then is no reason
// to send beside it.
func TestFailingStoreSendsNothingBesideAWait(t *testing.T) {
	inBubble(t, func(t *testing.T, d door) {
		store := newWaitStore()
		var sends, failures atomic.Int64
		send := d.open(t, idemmail.Options{
			Store: store, WaitInFlight: 10 * time.Second, FailOpen: true,
			Observe: func(_ context.Context, e idemmail.Event) {
				if e.Kind == idemmail.EventStoreFailed {
					failures.Add(1)
				}
			},
		}, func(context.Context) (*idemmail.Receipt, error) {
			sends.Add(1)
			time.Sleep(time.Minute)
			return nil, nil
		})
		first := waiters(t.Context(), 1, send, "k", "a")
		synctest.Wait()
		second := waiters(t.Context(), 1, send, "k", "a")
		synctest.Wait()
		store.down.Store(true)
		a := <-second
		require.ErrorIs(t, a.err, idemmail.ErrInFlight)
		require.Equal(t, 10*time.Second, a.after)
		require.EqualValues(t, 1, sends.Load())
		require.Positive(t, failures.Load())
		store.down.Store(false)
		<-first
	})
}

func TestWaitEndsAbandonedUnderAtMostOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, d door) {
		store := newWaitStore()
		_, _, err := store.Store.Reserve(t.Context(), doorNamespace+":k", "", idemmail.NoExpiry)
		require.NoError(t, err)
		send := d.open(t, idemmail.Options{Store: store, WaitInFlight: time.Hour, AtMostOnce: true, Lease: time.Minute}, func(context.Context) (*idemmail.Receipt, error) {
			t.Error("was sent")
			return nil, nil
		})
		a := <-waiters(t.Context(), 1, send, "k", "a")
		require.ErrorIs(t, a.err, idemmail.ErrAbandoned)
		require.GreaterOrEqual(t, a.after, time.Minute)
		require.Less(t, a.after, 62*time.Second)
	})
}

func TestSendManyNeverWaits(t *testing.T) {
	for _, d := range doors {
		if d.name != "SendMany in turn" && d.name != "SendMany together" {
			continue
		}
		t.Run(d.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				send := d.open(t, idemmail.Options{WaitInFlight: time.Hour}, func(context.Context) (*idemmail.Receipt, error) {
					time.Sleep(time.Second)
					return nil, nil
				})
				first := waiters(t.Context(), 1, send, "k", "a")
				synctest.Wait()
				a := <-waiters(t.Context(), 1, send, "k", "a")
				require.ErrorIs(t, a.err, idemmail.ErrInFlight)
				require.Zero(t, a.after)
				<-first
			})
		})
	}
}
