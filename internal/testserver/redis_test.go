package testserver_test

import (
	"testing"

	"github.com/idemmail/idemmail/internal/testserver"
)

func TestRedisServersStart(t *testing.T) {
	testserver.Require(t)
	t.Run("single", func(t *testing.T) {
		r := testserver.StartRedis(t)
		if _, err := r.Do("SET", "k", "a value"); err != nil {
			t.Fatal(err)
		}
		if v, err := r.Do("GET", "k"); err != nil || v != "a value" {
			t.Fatalf("GET answered %q, %v", v, err)
		}
		r.Kill()
		r.Start(t)
		if v, err := r.Do("GET", "k"); err != nil || v != "" {
			t.Fatalf("after the restart GET answered %q, %v", v, err)
		}
	})
	t.Run("cluster", func(t *testing.T) {
		if n := len(testserver.StartRedisCluster(t, 0).Addrs()); n != 3 {
			t.Fatalf("%d nodes", n)
		}
	})
	t.Run("cluster with replicas", func(t *testing.T) {
		if n := len(testserver.StartRedisCluster(t, 1).Addrs()); n != 6 {
			t.Fatalf("%d nodes", n)
		}
	})
	t.Run("sentinel", func(t *testing.T) {
		testserver.StartRedisSentinels(t).FailOver(t)
	})
}
