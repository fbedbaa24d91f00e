package redisstore_test

import (
	"testing"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail/redisstore"
)

func TestCheck(t *testing.T) {
	m := startMini(t) // which has none of the sections of INFO that are asked for
	holdsDeadlines := redisstore.New(newClient(t, m.Addr(), func(o *redis.Options) { o.ContextTimeoutEnabled = true }), redisstore.Options{})
	require.NoError(t, holdsDeadlines.Check(t.Context()), "what cannot be told is no error")
	ignoresDeadlines := redisstore.New(m.client, redisstore.Options{})
	require.ErrorContains(t, ignoresDeadlines.Check(t.Context()), "ContextTimeoutEnabled")
	require.Empty(t, m.Keys())

	info := func(text string) {
		refusing(m, func(c *server.Peer, cmd string, _ []string) bool {
			if cmd == "INFO" {
				c.WriteBulk(text)
			}
			return cmd == "INFO"
		})
	}
	info("# Server\r\nredis_version:7.2.4\r\nserver_name:valkey\r\nmaxmemory_policy:noeviction\r\n")
	require.NoError(t, holdsDeadlines.Check(t.Context()))
	info("# Server\r\nredis_version:6.2.14\r\n# Memory\r\nmaxmemory_policy:allkeys-lru\r\n")
	err := holdsDeadlines.Check(t.Context())
	require.ErrorContains(t, err, "6.2.14")
	require.ErrorContains(t, err, "allkeys-lru")
}
