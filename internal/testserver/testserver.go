// Package testserver starts the real servers that the tests of this project's
// modules talk to: on free loopback ports, in the test's own temporary folder,
// stopped by pid when the test ends.
//
// Plain "go test ./..." starts no server: tests that need one are skipped and
// say so. "make test" sets IDEMMAIL_TEST_SERVERS=1; a server that is missing
// then is a failure under CI=true, and elsewhere is noted in the file that
// IDEMMAIL_TEST_NOT_RUN names, which make test prints at its end.
package testserver

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"testing"
)

// Require ends the test unless the real servers are wanted here.
func Require(t testing.TB) {
	t.Helper()
	if os.Getenv("IDEMMAIL_TEST_SERVERS") != "1" {
		t.Skip("needs a real server: run by make test (IDEMMAIL_TEST_SERVERS=1)")
	}
}

// Missing ends the test because a server is not to be had here, saying which
// and why: a failure under CI=true, else a skip that make test reports.
func Missing(t testing.TB, server, why string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf("%s is missing: %s", server, why)
	}
	if name := os.Getenv("IDEMMAIL_TEST_NOT_RUN"); name != "" {
		f, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
		if err != nil {
			t.Fatalf("cannot note that %s is missing: %v", server, err)
		}
		defer f.Close()
		fmt.Fprintf(f, "%s: %s is missing: %s\n", t.Name(), server, why)
	}
	t.Skipf("%s is missing: %s", server, why)
}

// The ports that servers are given. They lie below those that a kernel hands to
// outgoing connections (Linux: from 32768, ip_local_port_range in ip(7)): one of
// them would now and then sit on the port of a server that is about to start, or
// was killed to be started again.
const (
	firstPort = 10000
	ports     = 10000
)

// FreePort answers a TCP port on 127.0.0.1 that is free and that no other test,
// in this process or another, is given before this one ends. The port 10000
// above it was free too: the nodes of a Redis Cluster talk on it.
func FreePort(t testing.TB) int {
	t.Helper()
	for range ports {
		port := firstPort + rand.IntN(ports)
		if reserve(t, port) && free(port) && free(port+ports) {
			return port
		}
	}
	t.Fatal("no free loopback port")
	return 0
}

// reserve takes the UDP port of that number, which no server here uses, as the
// sign that the TCP port is given away: the kernel keeps it between processes,
// and forgets it with a process that dies.
func reserve(t testing.TB, port int) bool {
	c, err := net.ListenPacket("udp4", loopback(port))
	if err != nil {
		return false
	}
	t.Cleanup(func() { c.Close() })
	return true
}

func free(port int) bool {
	l, err := net.Listen("tcp4", loopback(port))
	if err != nil {
		return false
	}
	l.Close()
	return true
}

func loopback(port int) string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
}
