package testserver

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// RedisSentinels are three sentinels that watch a master and its replica, of
// the test's own.
type RedisSentinels struct {
	Name      string // of the master
	Master    *Redis // as it was at the start
	Replica   *Redis
	Sentinels []*Redis
}

// Addrs answers the addresses of the sentinels.
func (s *RedisSentinels) Addrs() []string {
	addrs := make([]string, len(s.Sentinels))
	for i, r := range s.Sentinels {
		addrs[i] = r.Addr
	}
	return addrs
}

// StartRedisSentinels starts a master, a replica and three sentinels, which let
// the replica take over a second after the master is lost. They end with the
// test.
func StartRedisSentinels(t testing.TB) *RedisSentinels {
	t.Helper()
	s := &RedisSentinels{Name: "test"}
	s.Master = StartRedis(t, "--repl-diskless-sync-delay", "0")
	host, port, err := net.SplitHostPort(s.Master.Addr)
	if err != nil {
		t.Fatal(err)
	}
	s.Replica = StartRedis(t, "--replicaof", host+" "+port)
	wait(t, "the replica to follow", func() bool {
		info, err := s.Replica.Do("INFO", "replication")
		return err == nil && strings.Contains(info, "master_link_status:up")
	})
	settings := fmt.Sprintf(`sentinel monitor %[1]s %[2]s %[3]s 2
sentinel down-after-milliseconds %[1]s 1000
sentinel failover-timeout %[1]s 3000
`, s.Name, host, port)
	for range 3 {
		file := filepath.Join(t.TempDir(), "sentinel.conf") // the sentinel writes to it
		if err := os.WriteFile(file, []byte(settings), 0o600); err != nil {
			t.Fatal(err)
		}
		s.Sentinels = append(s.Sentinels, startRedis(t, "redis-server", FreePort(t), file, "--sentinel"))
	}
	for _, r := range s.Sentinels {
		wait(t, "the sentinels to know each other", func() bool {
			info, err := r.Do("INFO", "sentinel")
			return err == nil && strings.Contains(info, "status=ok,address="+s.Master.Addr+",slaves=1,sentinels=3")
		})
	}
	return s
}

// FailOver kills the master and waits until the sentinels name the replica.
func (s *RedisSentinels) FailOver(t testing.TB) {
	t.Helper()
	s.Master.Kill()
	for _, r := range s.Sentinels {
		wait(t, "the replica to take over", func() bool {
			info, err := r.Do("INFO", "sentinel")
			if err != nil || !strings.Contains(info, "address="+s.Replica.Addr+",") {
				return false
			}
			role, err := s.Replica.Do("INFO", "replication")
			return err == nil && strings.Contains(role, "role:master")
		})
	}
}
