package testserver

import (
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

// A RedisCluster is a Redis Cluster of the test's own.
type RedisCluster struct {
	Nodes []*Redis // the masters first, as they were at the start
}

// Addrs answers the addresses of the nodes.
func (c *RedisCluster) Addrs() []string {
	addrs := make([]string, len(c.Nodes))
	for i, n := range c.Nodes {
		addrs[i] = n.Addr
	}
	return addrs
}

// StartRedisCluster starts a cluster of three masters, each with as many
// replicas. It ends with the test.
func StartRedisCluster(t testing.TB, replicas int) *RedisCluster {
	t.Helper()
	cli, err := exec.LookPath("redis-cli")
	if err != nil {
		Missing(t, "redis-cli", err.Error())
	}
	c := &RedisCluster{}
	for range 3 * (1 + replicas) {
		c.Nodes = append(c.Nodes, StartRedis(t,
			"--cluster-enabled", "yes", "--cluster-node-timeout", "1000", "--repl-diskless-sync-delay", "0"))
	}
	create := append([]string{"--cluster", "create"}, c.Addrs()...)
	create = append(create, "--cluster-replicas", strconv.Itoa(replicas), "--cluster-yes")
	if out, err := exec.Command(cli, create...).CombinedOutput(); err != nil {
		t.Fatalf("cannot create the cluster: %v\n%s", err, out)
	}
	for _, n := range c.Nodes {
		wait(t, "the cluster to be ready", func() bool {
			info, err := n.Do("CLUSTER", "INFO")
			if err != nil || !strings.Contains(info, "cluster_state:ok") || !strings.Contains(info, "cluster_slots_ok:16384") {
				return false
			}
			role, err := n.Do("INFO", "replication")
			if err != nil {
				return false
			}
			if strings.Contains(role, "role:slave") {
				return strings.Contains(role, "master_link_status:up")
			}
			return strings.Contains(role, "connected_slaves:"+strconv.Itoa(replicas))
		})
	}
	return c
}
