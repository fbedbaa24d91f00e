package redisstore_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/internal/testserver"
	"github.com/idemmail/idemmail/redisstore"
)

func TestSingleServer(t *testing.T) {
	testserver.Require(t)
	server := testserver.StartRedis(t)
	client := newClient(t, server.Addr)

	t.Run("contract", func(t *testing.T) { testContract(t, client) })
	t.Run("lost answers", func(t *testing.T) { testLostAnswers(t, server.Addr) })
	t.Run("round trips", func(t *testing.T) { testRoundTrips(t, newClient(t, server.Addr)) })
	t.Run("life of a key", func(t *testing.T) { testLife(t, redisstore.New(client, redisstore.Options{}), 50) })
	t.Run("processes", func(t *testing.T) { testProcesses(t, []string{server.Addr}) })
	t.Run("scripts flushed between reserve and complete", func(t *testing.T) {
		s := redisstore.New(client, redisstore.Options{})
		token := reserve(t, s, "flushed:a")
		_, err := server.Do("SCRIPT", "FLUSH")
		require.NoError(t, err)
		require.NoError(t, s.Complete(t.Context(), "flushed:a", token, done(idemmail.StatusSent), time.Minute))
		require.Equal(t, idemmail.StateDone, holder(t, s, "flushed:a").State)
	})
	t.Run("foreign data", func(t *testing.T) {
		s := redisstore.New(client, redisstore.Options{KeyPrefix: "foreign:"})
		for _, value := range []string{"", "1", "null", `{"a":1}`, "idm2 p- 1753000000123456 1:a 1:b", "idm1 x- 1753000000123456 1:a 1:b", "\x00\xff"} {
			require.NoError(t, client.Set(t.Context(), "foreign:mail:a", value, 0).Err())
			testBadRecord(t, s)
			require.Equal(t, value, client.Get(t.Context(), "foreign:mail:a").Val())
		}
		require.NoError(t, client.Del(t.Context(), "foreign:mail:a").Err())
		require.NoError(t, client.RPush(t.Context(), "foreign:mail:a", "x").Err())
		testBadRecord(t, s)
	})
	t.Run("durations", func(t *testing.T) {
		s := redisstore.New(client, redisstore.Options{})
		for i, d := range []time.Duration{1, 1500 * time.Microsecond, time.Hour, time.Hour + 1, 1<<63 - 1} {
			key := "duration:" + strconv.Itoa(i)
			token, held, err := s.Reserve(t.Context(), key, "1:f", d)
			require.NoError(t, err)
			require.Nil(t, held)
			if d >= time.Hour {
				require.NoError(t, s.Renew(t.Context(), key, token, d))
				require.NoError(t, s.Complete(t.Context(), key, token, done(idemmail.StatusSent), d))
				left := client.PTTL(t.Context(), key).Val()
				require.InDelta(t, float64(d), float64(left), float64(time.Minute))
			}
		}
	})
	t.Run("expiry", func(t *testing.T) {
		s := redisstore.New(client, redisstore.Options{})
		_, _, err := s.Reserve(t.Context(), "expiry:a", "1:f", time.Millisecond)
		require.NoError(t, err)
		require.Eventually(t, func() bool {
			token, _, err := s.Reserve(t.Context(), "expiry:a", "1:f", time.Minute)
			return err == nil && token != ""
		}, 10*time.Second, time.Millisecond)
	})
	t.Run("prefix taken literally", func(t *testing.T) {
		s := redisstore.New(client, redisstore.Options{KeyPrefix: `p[*?\]:`})
		names := []string{"a*", "a?", "a[bc]", `a\`, `a\*`, "a^", "a-", "a]", "ab", "a", "A", "aé"}
		for _, n := range names {
			reserve(t, s, n+":1")
		}
		for _, n := range names {
			keys, bad := listed(t, s, n+":", 0)
			require.Equal(t, []string{n + ":1"}, keys)
			require.Empty(t, bad)
		}
	})
}

// testLife takes n keys through all that can become of one.
func testLife(t *testing.T, s *redisstore.Store, n int) {
	ctx := t.Context()
	key := func(i int) string { return t.Name() + ":" + strconv.Itoa(i) }
	reqs := make([]idemmail.ReserveRequest, n)
	for i := range reqs {
		reqs[i] = idemmail.ReserveRequest{Key: key(i), Fingerprint: "1:f", Lease: time.Minute}
	}
	tokens := make([]string, n)
	for i, r := range s.ReserveMany(ctx, reqs) {
		require.NoError(t, r.Err)
		require.NotEmpty(t, r.Token)
		tokens[i] = r.Token
	}
	keys, bad := listed(t, s, t.Name()+":", 0)
	require.Len(t, keys, n)
	require.Empty(t, bad)

	renewals := make([]idemmail.RenewRequest, n)
	completions := make([]idemmail.CompleteRequest, n)
	for i := range n {
		renewals[i] = idemmail.RenewRequest{Key: key(i), Token: tokens[i], Lease: time.Minute}
		completions[i] = idemmail.CompleteRequest{Key: key(i), Token: tokens[i], Record: done(idemmail.StatusUnknown), TTL: time.Minute}
	}
	requireNone(t, s.RenewMany(ctx, renewals))
	for i := range n {
		require.NoError(t, s.Renew(ctx, key(i), tokens[i], time.Minute))
		require.ErrorIs(t, s.Release(ctx, key(i), "another"), idemmail.ErrLeaseLost)
		require.NoError(t, s.Release(ctx, key(i), tokens[i]))
		tokens[i] = reserve(t, s, key(i))
		completions[i].Token = tokens[i]
	}
	requireNone(t, s.CompleteMany(ctx, completions))
	for i, r := range s.ReserveMany(ctx, reqs) {
		require.NoError(t, r.Err)
		require.Equal(t, idemmail.StatusUnknown, r.Held.Receipt.Status)
		require.NoError(t, s.Complete(ctx, key(i), tokens[i], done(idemmail.StatusUnknown), time.Minute))
	}
	settled := 0
	for e, err := range s.Unsettled(ctx, t.Name()+":", 0) {
		require.NoError(t, err)
		if settled%2 == 0 {
			require.NoError(t, s.Resolve(ctx, e, nil, time.Minute))
		} else {
			require.NoError(t, s.Forget(ctx, e))
		}
		settled++
	}
	require.Equal(t, n, settled)
	keys, _ = listed(t, s, t.Name()+":", 0)
	require.Empty(t, keys)
}

func TestRestartedServer(t *testing.T) {
	testserver.Require(t)
	server := testserver.StartRedis(t)
	s := redisstore.New(newClient(t, server.Addr), redisstore.Options{})
	token := reserve(t, s, "mail:a")
	server.Kill()
	server.Start(t) // with neither keys nor scripts
	require.NoError(t, s.Complete(t.Context(), "mail:a", token, done(idemmail.StatusSent), time.Minute), "nothing holds the key")
	require.Equal(t, "q1", holder(t, s, "mail:a").Receipt.ProviderID)
	testLife(t, s, 10)
}

func TestHeldServer(t *testing.T) {
	testserver.Require(t)
	server := testserver.StartRedis(t)
	forever := func(o *redis.Options) { o.ReadTimeout = -1 }
	s := redisstore.New(newClient(t, server.Addr, forever), redisstore.Options{})
	reserve(t, s, "mail:first")
	fresh := redisstore.New(newClient(t, server.Addr, forever), redisstore.Options{})
	testEveryCallEnds(t, s, fresh, func() func() {
		server.Stop(t)
		return func() { server.Continue(t) }
	})

	server.Stop(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, _, err := s.Reserve(ctx, "mail:late", "1:f", idemmail.NoExpiry)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	server.Continue(t)
	require.Eventually(t, func() bool {
		token, _, err := s.Reserve(t.Context(), "mail:late", "1:f", time.Minute)
		return err == nil && token != ""
	}, 10*time.Second, 10*time.Millisecond, "what the server did late was undone")
}

func TestRights(t *testing.T) {
	testserver.Require(t)
	server := testserver.StartRedis(t)
	client := func(user string) *redis.Client {
		return newClient(t, server.Addr, func(o *redis.Options) {
			o.Username, o.Password, o.ContextTimeoutEnabled = user, "secret", true
		})
	}
	allow := func(user string, rules ...string) {
		_, err := server.Do(append([]string{"ACL", "SETUSER", user, "on", ">secret"}, rules...)...)
		require.NoError(t, err)
	}
	// Within a script Redis 7.0 says so in words, and not with NOPERM.
	for missing, says := range map[string]string{
		"set": "NOPERM", "eval": "NOPERM", "evalsha": "NOPERM", "get": "can't run", "del": "can't run", "time": "can't run", "pttl": "can't run",
	} {
		t.Run("without "+missing, func(t *testing.T) {
			allow("without-"+missing, "~*", "+@all", "-"+missing)
			s := redisstore.New(client("without-"+missing), redisstore.Options{})
			_, _, err := s.Reserve(t.Context(), "mail:a", "1:f", time.Minute)
			require.Regexp(t, "NOPERM|"+says, err.Error())
			require.Error(t, s.Check(t.Context()))
			n, err := server.Do("EXISTS", "mail:a")
			require.NoError(t, err)
			require.Equal(t, "0", n, "nothing was reserved")
		})
	}
	t.Run("those of the documentation", func(t *testing.T) {
		allow("sends", "~mail:*", "+set", "+get", "+del", "+pttl", "+time", "+eval", "+evalsha")
		s := redisstore.New(client("sends"), redisstore.Options{KeyPrefix: "mail:"})
		require.NoError(t, s.Check(t.Context()))
		token := reserve(t, s, "a")
		require.NoError(t, s.Renew(t.Context(), "a", token, time.Minute))
		require.NoError(t, s.Complete(t.Context(), "a", token, done(idemmail.StatusUnknown), time.Minute))
		e, err := s.Lookup(t.Context(), "a")
		require.NoError(t, err)
		require.NoError(t, s.Resolve(t.Context(), *e, nil, time.Minute))

		allow("reconciles", "~mail:*", "+set", "+get", "+del", "+pttl", "+time", "+eval", "+evalsha", "+scan", "+getrange", "+info")
		s = redisstore.New(client("reconciles"), redisstore.Options{KeyPrefix: "mail:"})
		require.NoError(t, s.Check(t.Context()))
		reserve(t, s, "b")
		keys, _ := listed(t, s, "", 0)
		require.Equal(t, []string{"b"}, keys)
	})
	t.Run("another's keys", func(t *testing.T) {
		allow("one", "~one:*", "+@all")
		s := redisstore.New(client("one"), redisstore.Options{})
		reserve(t, s, "one:a")
		_, _, err := s.Reserve(t.Context(), "two:a", "1:f", time.Minute)
		require.ErrorContains(t, err, "NOPERM")
	})
}

func TestServerOutOfMemory(t *testing.T) {
	testserver.Require(t)
	server := testserver.StartRedis(t, "--maxmemory", "3mb", "--maxmemory-policy", "noeviction")
	client := newClient(t, server.Addr)
	s := redisstore.New(client, redisstore.Options{})
	token := reserve(t, s, "mail:a")
	for size := 1 << 20; size >= 16; size /= 2 { // to the brim
		for i := 0; client.Set(t.Context(), "big:"+strconv.Itoa(size)+":"+strconv.Itoa(i), strings.Repeat("x", size), 0).Err() == nil; i++ {
		}
	}
	_, _, err := s.Reserve(t.Context(), "mail:b", "1:f", time.Minute)
	require.ErrorIs(t, err, idemmail.ErrStoreFull)
	require.Error(t, s.Complete(t.Context(), "mail:a", token, done(idemmail.StatusSent), time.Minute))
	require.NoError(t, client.Del(t.Context(), keysOf(t, client, "big:*")...).Err())
	require.NoError(t, s.Complete(t.Context(), "mail:a", token, done(idemmail.StatusSent), time.Minute))
}

func TestCheckOfServers(t *testing.T) {
	testserver.Require(t)
	server := testserver.StartRedis(t)
	s := redisstore.New(newClient(t, server.Addr, func(o *redis.Options) { o.ContextTimeoutEnabled = true }), redisstore.Options{})
	require.NoError(t, s.Check(t.Context()))
	for _, policy := range []string{"allkeys-lru", "volatile-lru", "volatile-ttl", "allkeys-random"} {
		_, err := server.Do("CONFIG", "SET", "maxmemory-policy", policy)
		require.NoError(t, err)
		require.ErrorContains(t, s.Check(t.Context()), policy)
	}

	cluster := testserver.StartRedisCluster(t, 0)
	client := newClusterClient(t, cluster.Addrs())
	s = redisstore.New(client, redisstore.Options{})
	require.NoError(t, s.Check(t.Context()))
	_, err := cluster.Nodes[2].Do("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
	require.NoError(t, err)
	require.ErrorContains(t, s.Check(t.Context()), "allkeys-lru", "every master is asked")
}

func newClusterClient(t *testing.T, addrs []string) *redis.ClusterClient {
	t.Helper()
	client := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs:                 addrs,
		DialTimeout:           time.Second,
		ReadTimeout:           3 * time.Second,
		ContextTimeoutEnabled: true,
		ReadOnly:              true, // reads may go to replicas: ours must not
	})
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func TestCluster(t *testing.T) {
	testserver.Require(t)
	cluster := testserver.StartRedisCluster(t, 0)
	client := newClusterClient(t, cluster.Addrs())
	t.Run("contract", func(t *testing.T) { testContract(t, client) })
	t.Run("life of keys", func(t *testing.T) { testLife(t, redisstore.New(client, redisstore.Options{}), 100) })
	t.Run("prefix with a hash tag", func(t *testing.T) {
		testLife(t, redisstore.New(client, redisstore.Options{KeyPrefix: "{one node}:"}), 20)
	})
	t.Run("more than one pipeline", func(t *testing.T) { testLife(t, redisstore.New(client, redisstore.Options{}), 600) })
	t.Run("processes", func(t *testing.T) { testProcesses(t, cluster.Addrs()) })
	t.Run("scripts flushed between reserve and complete", func(t *testing.T) {
		s := redisstore.New(client, redisstore.Options{})
		for i := range 20 {
			key := "flushed:" + strconv.Itoa(i)
			token := reserve(t, s, key)
			for _, n := range cluster.Nodes {
				_, err := n.Do("SCRIPT", "FLUSH")
				require.NoError(t, err)
			}
			require.NoError(t, s.Complete(t.Context(), key, token, done(idemmail.StatusSent), time.Minute))
		}
	})
	t.Run("round trips", func(t *testing.T) { testClusterRoundTrips(t, cluster.Addrs()) })
	t.Run("slots that move", func(t *testing.T) { testMovingSlot(t, cluster, client) })
}

// testClusterRoundTrips counts what goes to the nodes: a pipeline for each.
func testClusterRoundTrips(t *testing.T, addrs []string) {
	client := newClusterClient(t, addrs)
	c := &trips{}
	client.OnNewNode(func(node *redis.Client) { node.AddHook(c) })
	s := redisstore.New(client, redisstore.Options{})
	for batch := range 4 {
		var reqs []idemmail.ReserveRequest
		for i := range 500 {
			reqs = append(reqs, idemmail.ReserveRequest{Key: fmt.Sprintf("trips:%d:%d", batch, i), Fingerprint: "1:f", Lease: time.Minute})
		}
		c.took()
		var completions []idemmail.CompleteRequest
		for i, r := range s.ReserveMany(t.Context(), reqs) {
			require.NoError(t, r.Err)
			completions = append(completions, idemmail.CompleteRequest{Key: reqs[i].Key, Token: r.Token, Record: done(idemmail.StatusSent), TTL: time.Minute})
		}
		reservations := c.took()
		requireNone(t, s.CompleteMany(t.Context(), completions))
		if batch >= 2 { // by then all nodes have the scripts, and the newest preparation stands
			require.Equal(t, 3, reservations)
			require.Equal(t, 3, c.took())
		}
	}
	reserve(t, s, "trips:one")
	require.Equal(t, 1, c.took())
}

// testMovingSlot reserves keys of a slot that is on its way from one node to
// another: some are still on the first, others are on the second.
func testMovingSlot(t *testing.T, cluster *testserver.RedisCluster, client *redis.ClusterClient) {
	s := redisstore.New(client, redisstore.Options{})
	key := func(i int) string { return "{moving}:" + strconv.Itoa(i) }
	tokens := make([]string, 10)
	for i := range tokens {
		tokens[i] = reserve(t, s, key(i))
	}
	slot := client.ClusterKeySlot(t.Context(), key(0)).Val()
	from, err := client.MasterForKey(t.Context(), key(0))
	require.NoError(t, err)
	var source, target *testserver.Redis
	for _, n := range cluster.Nodes {
		if n.Addr == from.Options().Addr {
			source = n
		} else {
			target = n
		}
	}
	id := func(n *testserver.Redis) string {
		id, err := n.Do("CLUSTER", "MYID")
		require.NoError(t, err)
		return id
	}
	for _, step := range []struct {
		on   *testserver.Redis
		what []string
	}{
		{target, []string{"IMPORTING", id(source)}},
		{source, []string{"MIGRATING", id(target)}},
	} {
		_, err := step.on.Do(append([]string{"CLUSTER", "SETSLOT", strconv.FormatInt(slot, 10)}, step.what...)...)
		require.NoError(t, err)
	}
	host, port, _ := strings.Cut(target.Addr, ":")
	for i := range 5 {
		_, err := source.Do("MIGRATE", host, port, key(i), "0", "5000")
		require.NoError(t, err)
	}
	var reqs []idemmail.ReserveRequest
	for i := range 20 { // 0 to 4 on the target, 5 to 9 on the source, 10 to 19 on neither
		reqs = append(reqs, idemmail.ReserveRequest{Key: key(i), Fingerprint: "1:f", Lease: time.Minute})
	}
	check := func() {
		for i, r := range s.ReserveMany(t.Context(), reqs) {
			require.NoError(t, r.Err, i)
			require.Equal(t, i < len(tokens), r.Held != nil, i)
			if r.Held == nil {
				require.NoError(t, s.Release(t.Context(), key(i), r.Token))
			}
		}
		for i := range tokens {
			require.Equal(t, idemmail.StatePending, holder(t, s, key(i)).State)
			require.NoError(t, s.Renew(t.Context(), key(i), tokens[i], time.Minute))
		}
	}
	check()
	for i := 5; i < 10; i++ {
		_, err := source.Do("MIGRATE", host, port, key(i), "0", "5000")
		require.NoError(t, err)
	}
	for _, n := range []*testserver.Redis{target, source} {
		_, err := n.Do("CLUSTER", "SETSLOT", strconv.FormatInt(slot, 10), "NODE", id(target))
		require.NoError(t, err)
	}
	check()
	for i := range tokens {
		require.NoError(t, s.Complete(t.Context(), key(i), tokens[i], done(idemmail.StatusSent), time.Minute))
	}
}

func TestClusterAfterAFailover(t *testing.T) {
	testserver.Require(t)
	cluster := testserver.StartRedisCluster(t, 1)
	client := newClusterClient(t, cluster.Addrs())
	s := redisstore.New(client, redisstore.Options{})
	tokens := map[string]string{}
	for i := range 30 {
		key := "mail:" + strconv.Itoa(i)
		tokens[key] = reserve(t, s, key)
	}
	require.NoError(t, client.ForEachMaster(t.Context(), func(ctx context.Context, master *redis.Client) error {
		return master.Wait(ctx, 1, time.Second).Err() // the replicas have them
	}))
	cluster.Nodes[0].Kill()
	require.Eventually(t, func() bool {
		client.ReloadState(t.Context())
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		for key := range tokens {
			if _, err := s.Lookup(ctx, key); err != nil {
				return false
			}
		}
		return true
	}, 30*time.Second, 50*time.Millisecond)
	for key, token := range tokens {
		require.Equal(t, idemmail.StatePending, holder(t, s, key).State)
		require.NoError(t, s.Complete(t.Context(), key, token, done(idemmail.StatusSent), time.Minute))
	}
	testLife(t, s, 60)
	t.Run("contract", func(t *testing.T) { testContract(t, client) })
}

func TestSentinelAfterAFailover(t *testing.T) {
	testserver.Require(t)
	sentinels := testserver.StartRedisSentinels(t)
	client := redis.NewFailoverClient(&redis.FailoverOptions{
		MasterName:            sentinels.Name,
		SentinelAddrs:         sentinels.Addrs(),
		ReadTimeout:           3 * time.Second,
		ContextTimeoutEnabled: true,
	})
	t.Cleanup(func() { _ = client.Close() })
	s := redisstore.New(client, redisstore.Options{})
	require.NoError(t, s.Check(t.Context()))
	one, two := reserve(t, s, "mail:one"), reserve(t, s, "mail:two")
	require.NoError(t, s.Complete(t.Context(), "mail:two", two, done(idemmail.StatusSent), time.Minute))
	require.NoError(t, client.Wait(t.Context(), 1, time.Second).Err()) // the replica has them

	sentinels.FailOver(t)
	require.Eventually(t, func() bool {
		_, err := s.Lookup(t.Context(), "mail:one")
		return err == nil
	}, 30*time.Second, 50*time.Millisecond)
	require.Equal(t, idemmail.StatePending, holder(t, s, "mail:one").State)
	require.Equal(t, idemmail.StateDone, holder(t, s, "mail:two").State)
	require.NoError(t, s.Complete(t.Context(), "mail:one", one, done(idemmail.StatusSent), time.Minute))
	testLife(t, s, 20)
	t.Run("contract", func(t *testing.T) { testContract(t, client) })
}
