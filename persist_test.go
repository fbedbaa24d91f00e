package idemmail_test

import (
	"context"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
)

// TestTriesOfSettling has the moments at which each kind of store that cannot
// settle is asked to, and when its caller is answered.
func TestTriesOfSettling(t *testing.T) {
	const timeout = 2 * time.Second
	type hook = func(ctx context.Context, n int, next func() error) error
	lasts := func(d time.Duration) hook { // and heeds its context
		return func(ctx context.Context, _ int, next func() error) error {
			select {
			case <-time.After(d):
				return next()
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	ms := time.Millisecond
	for _, c := range []struct {
		name  string
		hook  hook
		tries []time.Duration // when they begin
		over  time.Duration
		kept  bool
	}{
		{name: "fails at once", // pauses of 10 ms, 20 ms and so on; one of 1 s would last too long
			hook:  func(context.Context, int, func() error) error { return errFlaky },
			tries: []time.Duration{0, 10 * ms, 30 * ms, 70 * ms, 150 * ms, 310 * ms, 630 * ms, 1270 * ms}, over: 1270 * ms},
		{name: "hangs", // each try has half of the time that is left, and no less than a sixteenth of all
			hook:  lasts(time.Hour),
			tries: []time.Duration{0, 1010 * ms, 1525 * ms, 1802500 * time.Microsecond}, over: 1927500 * time.Microsecond},
		{name: "hangs for longer than it may", // each takes a tenth of a second more
			hook:  func(context.Context, int, func() error) error { time.Sleep(time.Minute); return errFlaky },
			tries: []time.Duration{0, 1110 * ms, 1675 * ms, 1977500 * time.Microsecond}, over: timeout + 100*ms},
		{name: "is slow, and done within half of the time",
			hook: lasts(990 * ms), tries: []time.Duration{0}, over: 990 * ms, kept: true},
		{name: "is slow, and heeds no context",
			hook: func(_ context.Context, _ int, next func() error) error {
				err := next()
				time.Sleep(1090 * ms)
				return err
			},
			tries: []time.Duration{0}, over: 1090 * ms, kept: true},
		{name: "is slow once",
			hook: func(ctx context.Context, n int, next func() error) error {
				if n == 1 {
					return lasts(time.Hour)(ctx, n, next)
				}
				return lasts(490*ms)(ctx, n, next)
			},
			tries: []time.Duration{0, 1010 * ms}, over: 1500 * ms, kept: true},
	} {
		for outcome, work := range map[string]work{"sent": sendsWell, "failed": failsSurely} {
			t.Run(c.name+"/"+outcome, func(t *testing.T) {
				inBubble(t, func(t *testing.T, d door) {
					store := newHookedStore()
					began := time.Now()
					tries := make(chan time.Duration, 100)
					look := func(ctx context.Context, n int, next func() error) error {
						tries <- time.Since(began)
						return c.hook(ctx, n, next)
					}
					store.complete, store.release = look, look
					send := d.open(t, idemmail.Options{Store: store, StoreTimeout: timeout}, work)
					_, err := send(t.Context(), "k", "a")
					require.Equal(t, c.over, time.Since(began))
					require.Equal(t, outcome == "failed", err != nil)
					for _, want := range c.tries {
						require.Equal(t, want, <-tries)
					}
					require.Empty(t, tries)
					store.unhook()
					if state := store.state(t, "k"); !c.kept {
						require.Equal(t, idemmail.StatePending, state)
					} else {
						require.NotEqual(t, idemmail.StatePending, state)
					}
					time.Sleep(time.Hour) // let what was left behind end
				})
			})
		}
	}
}

// Settling never takes longer than StoreTimeout and the tenth of a second in
// which a store may return, whatever the store does when.
func TestSettlingIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for seed := range uint64(300) {
			timeout := 1 + time.Duration(rand.New(rand.NewPCG(seed, 0)).Int64N(int64(3*time.Second)))
			store := newHookedStore()
			store.complete = func(ctx context.Context, n int, _ func() error) error {
				random := rand.New(rand.NewPCG(seed, uint64(n)))
				last := time.Duration(random.Int64N(int64(timeout)))
				switch random.IntN(4) {
				case 0:
					return errFlaky
				case 1:
					time.Sleep(last / 10)
				case 2:
					time.Sleep(last)
				case 3:
					<-ctx.Done()
				}
				return errFlaky
			}
			send := openDo(t, idemmail.Options{Store: store, StoreTimeout: timeout, Lease: time.Hour}, sendsWell)
			began := time.Now()
			_, err := send(t.Context(), "k", "a")
			require.NoError(t, err)
			require.LessOrEqual(t, time.Since(began), timeout+100*time.Millisecond, "seed %d, StoreTimeout %v", seed, timeout)
			require.Positive(t, store.calls(&store.completed))
			time.Sleep(time.Minute) // let what was left behind end
		}
	})
}
