package faults_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/internal/testserver"
	"github.com/idemmail/idemmail/itest/internal/backend"
	"github.com/idemmail/idemmail/itest/internal/worker"
	"github.com/idemmail/idemmail/redisstore"
)

// An outage is longer than StoreTimeout, so that calls do fail in it.
const outage = loadTimeout * 3 / 2

// TestServerOutages lets two senders work on the same messages while the server
// of their store goes away and comes back.
func TestServerOutages(t *testing.T) {
	t.Parallel()
	backend.EachShared(t, func(t *testing.T, s *backend.Server) {
		if s.Addr == "" {
			t.Skip("there is no server")
		}
		p := startProxy(t, s.Addr)
		two := []idemmail.Store{backend.Open(t, s.Through(p.addr)), backend.Open(t, s.Through(p.addr))}
		run := func(name string, possible bool, fault func(t testing.TB)) {
			t.Run(name, func(t *testing.T) {
				if !possible {
					t.Skip("this server cannot do that")
				}
				l := newLoad(t, two...)
				l.run(t, fault)
				l.assertOnce(t)
			})
		}
		run("slow", true, func(testing.TB) {
			p.spoil("", fault{delay: loadTimeout / 4}, -1)
			time.Sleep(outage)
			p.mend()
		})
		run("cut off", true, func(testing.TB) {
			p.sever()
			time.Sleep(outage)
			p.mend()
		})
		run("unreachable, connections stay", true, func(testing.TB) {
			p.spoil("", fault{request: none, end: hangs}, -1)
			time.Sleep(outage)
			p.mend()
		})
		run("held", s.Hold != nil, func(t testing.TB) {
			hold(t, s)
			time.Sleep(outage)
			s.Continue(t)
		})
		run("killed and restarted", s.Kill != nil && s.Restart != nil, func(t testing.TB) {
			s.Kill(t)
			time.Sleep(outage)
			s.Restart(t)
		})
		run("killed and restarted at once", s.Kill != nil && s.Restart != nil, func(t testing.TB) {
			s.Kill(t)
			s.Restart(t)
		})
		if s.Kill != nil && s.Restart == nil {
			t.Run("killed", func(t *testing.T) {
				l := newLoad(t, two...)
				l.giveUp, l.keys = true, l.keys[:100]
				l.run(t, s.Kill)
				l.assertReported(t)
			})
		}
	})
}

// hold holds a server and waits until it answers nothing any more: a process
// does not stop at once.
func hold(t testing.TB, s *backend.Server) {
	probe := backend.Open(t, s.URL)
	s.Hold(t)
	require.Eventually(t, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err := probe.Lookup(ctx, "probe")
		return err != nil
	}, worker.Patience, time.Millisecond)
}

// TestFailover has a replica take over that has not heard of the newest
// reservations and receipts, although they were confirmed: their messages may
// go twice, which is counted, but none is lost and no key is stuck.
func TestFailover(t *testing.T) {
	testserver.Require(t)
	t.Parallel()
	sentinels := testserver.StartRedisSentinels(t)
	open := func() idemmail.Store {
		client := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: sentinels.Name, SentinelAddrs: sentinels.Addrs()})
		t.Cleanup(func() { client.Close() })
		return redisstore.New(client, redisstore.Options{})
	}
	l := newLoad(t, open(), open())
	l.run(t, func(t testing.TB) {
		sentinels.Replica.Stop(t)
		_, err := sentinels.Master.Do("CLIENT", "KILL", "TYPE", "replica")
		require.NoError(t, err)
		l.await(t, len(l.keys)/2) // confirmed by the master alone
		sentinels.Master.Kill()
		sentinels.Replica.Continue(t)
		sentinels.FailOver(t)
	})
	l.assertNoneLost(t)
	t.Logf("%d messages, %d delivered twice within a live lease: their reservations or receipts were lost", len(l.keys), len(l.doubles()))
}

// TestClusterFailover has the replica of a Redis Cluster's master take over
// that has not heard of the newest reservations and receipts: what holds for
// TestFailover holds for the keys of that master, and those of the others are
// sent once.
func TestClusterFailover(t *testing.T) {
	testserver.Require(t)
	t.Parallel()
	cluster := testserver.StartRedisCluster(t, 1)
	open := func() (idemmail.Store, *redis.ClusterClient) {
		client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: cluster.Addrs(), ContextTimeoutEnabled: true})
		stop := every(time.Second, func() { client.ReloadState(context.Background()) })
		t.Cleanup(func() {
			stop()
			client.Close()
		})
		return redisstore.New(client, redisstore.Options{}), client
	}
	one, client := open()
	two, _ := open()
	l := newLoad(t, one, two)
	master, replica := cluster.Nodes[0], replicaOf(t, cluster, cluster.Nodes[0])
	lost := map[string]bool{} // the keys of the master that is lost
	for _, key := range l.keys {
		node, err := client.MasterForKey(t.Context(), l.namespace+":"+key)
		require.NoError(t, err)
		lost[key] = node.Options().Addr == master.Addr
	}
	var began time.Time
	l.run(t, func(t testing.TB) {
		replica.Stop(t)
		_, err := master.Do("CLIENT", "KILL", "TYPE", "replica")
		require.NoError(t, err)
		l.await(t, len(l.keys)/2) // confirmed by the master alone
		master.Kill()
		began = time.Now()
		replica.Continue(t)
		require.Eventually(t, func() bool {
			role, err := replica.Do("INFO", "replication")
			return err == nil && strings.Contains(role, "role:master")
		}, worker.Patience, 20*time.Millisecond, "the replica must take over")
	})
	t.Logf("the job was done %v after the master had died", time.Since(began).Round(time.Millisecond))
	l.assertNoneLost(t)
	doubles := l.doubles()
	for _, key := range doubles {
		require.True(t, lost[key], "%s went twice within a live lease, and its master lives", key)
	}
	t.Logf("%d messages, %d delivered twice within a live lease: their reservations or receipts were lost", len(l.keys), len(doubles))
}

// every does something again and again until it is stopped: reloads a cluster's
// state, as ClusterStateReloadInterval does, which the oldest go-redis that is
// tested has not.
func every(interval time.Duration, do func()) (stop func()) {
	ticker := time.NewTicker(interval)
	end := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		for {
			select {
			case <-ticker.C:
				do()
			case <-end:
				return
			}
		}
	})
	return func() {
		ticker.Stop()
		close(end)
		running.Wait()
	}
}

// replicaOf answers the replica of a master.
func replicaOf(t *testing.T, cluster *testserver.RedisCluster, master *testserver.Redis) *testserver.Redis {
	_, port, _ := strings.Cut(master.Addr, ":")
	for _, n := range cluster.Nodes {
		role, err := n.Do("INFO", "replication")
		require.NoError(t, err)
		if strings.Contains(role, "master_port:"+port+"\r\n") {
			return n
		}
	}
	t.Fatal("the master has no replica")
	return nil
}
