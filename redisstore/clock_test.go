package redisstore

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const server = int64(1753000000000000) // far from the bubble's time
		ms := func(n int64) int64 { return n * 1000 }
		var c clock
		require.Equal(t, time.Now().UnixMicro(), c.now(), "before any answer")

		sent := time.Now()
		time.Sleep(10 * time.Millisecond)
		c.learn(server, sent)
		require.Equal(t, server+ms(5), c.now(), "the server answered midway")
		time.Sleep(time.Hour)
		require.Equal(t, server+ms(3_600_005), c.now())

		c.learn(server, time.Now())
		require.Equal(t, server, c.now(), "the newest answer counts")
		sent = time.Now()
		time.Sleep(3 * time.Second)
		c.learn(server+ms(60_000), sent)
		require.Equal(t, server+ms(3000), c.now(), "but for one that was long on its way")

		var fresh clock
		fresh.learn(server, sent)
		require.Equal(t, server+ms(1500), fresh.now(), "unless there is no other")

		require.Equal(t, 7*time.Microsecond, age(server, server+7))
		require.Zero(t, age(server, server-7))
	})
}
