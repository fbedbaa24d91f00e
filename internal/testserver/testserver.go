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
	"net"
	"os"
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

// FreePort answers a TCP port on 127.0.0.1 that was free a moment ago.
func FreePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("no free loopback port: %v", err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}
