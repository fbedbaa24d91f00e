package mongostore

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A fakeServer answers its time, ahead of this machine's, after a while.
type fakeServer struct {
	ahead time.Duration
	takes []time.Duration // of each answer; none after the last
	err   error
	asked atomic.Int32
}

func (s *fakeServer) ask(ctx context.Context) (time.Time, error) {
	n := int(s.asked.Add(1)) - 1
	if n < len(s.takes) {
		select {
		case <-time.After(s.takes[n]):
		case <-ctx.Done():
			return time.Time{}, ctx.Err()
		}
	}
	return time.Now().Add(s.ahead).Round(0), s.err
}

func TestClockTellsTheServersTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &fakeServer{ahead: 30 * time.Minute}
		c := newClock(time.Now, server.ask)
		for range 3 {
			now, err := c.now(t.Context())
			require.NoError(t, err)
			require.True(t, now.Equal(time.Now().Add(30*time.Minute)), now)
			time.Sleep(refreshAfter / 4)
		}
		require.EqualValues(t, 1, server.asked.Load(), "asked once")

		server.ahead = time.Hour // the server's clock was set
		time.Sleep(refreshAfter / 4)
		now, err := c.now(t.Context())
		require.NoError(t, err)
		require.True(t, now.Equal(time.Now().Add(time.Hour)), "a reading is used for %v at most", refreshAfter)
		require.EqualValues(t, 2, server.asked.Load())
	})
}

func TestClockGoesByTheNewestReadingEvenIfTheClientsClockJumps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, jump := range []time.Duration{-time.Hour, -time.Second, time.Minute, time.Hour} {
			var off time.Duration
			server := &fakeServer{}
			c := newClock(func() time.Time { return time.Now().Round(0).Add(off) }, server.ask)
			_, err := c.now(t.Context())
			require.NoError(t, err)
			off = jump
			now, err := c.now(t.Context())
			require.NoError(t, err)
			require.True(t, now.Equal(time.Now()), "jump of %v", jump)
			require.EqualValues(t, 2, server.asked.Load())
		}
	})
}

func TestClockAsksAgainWhenWallAndMonotonicTimeDisagree(t *testing.T) {
	now := time.Now()
	c := newClock(func() time.Time { return now }, nil)
	c.reading.Store(&reading{client: now, wall: now.Round(0), server: now})
	_, ok := c.known()
	require.True(t, ok)
	for _, d := range []time.Duration{-2 * time.Second, 2 * time.Second} {
		c.reading.Store(&reading{client: now, wall: now.Round(0).Add(d), server: now})
		_, ok = c.known()
		require.False(t, ok, "the machine slept, or its clock was set")
	}
}

func TestClockAsksOnceMoreAfterASlowAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &fakeServer{takes: []time.Duration{2 * time.Second, 10 * time.Millisecond}}
		c := newClock(time.Now, server.ask)
		_, err := c.now(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 2, server.asked.Load())

		server = &fakeServer{takes: []time.Duration{300 * time.Millisecond, 2 * time.Second}}
		c = newClock(time.Now, server.ask)
		_, err = c.now(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 2, server.asked.Load(), "twice at most")
		require.Equal(t, 2*time.Second, time.Since(c.reading.Load().client), "the quicker answer counts")
	})
}

func TestClockIsAskedByOneCallerAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &fakeServer{takes: []time.Duration{100 * time.Millisecond}}
		c := newClock(time.Now, server.ask)
		var group sync.WaitGroup
		for range 10 {
			group.Go(func() {
				_, err := c.now(t.Context())
				require.NoError(t, err)
			})
		}
		synctest.Wait() // one of them has asked
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_, err := c.now(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded, "nobody waits for another's question longer than his context")
		group.Wait()
		require.EqualValues(t, 1, server.asked.Load())
	})
}

func TestClockFailsWithTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &fakeServer{}
		c := newClock(time.Now, server.ask)
		_, err := c.now(t.Context())
		require.NoError(t, err)

		server.err = errors.New("down")
		time.Sleep(refreshAfter)
		_, err = c.now(t.Context())
		require.ErrorIs(t, err, server.err, "an old reading is never used")

		server.err = nil
		_, err = c.now(t.Context())
		require.NoError(t, err)

		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = c.now(ctx)
		require.ErrorIs(t, err, context.Canceled, "also where the time is known")
	})
}
