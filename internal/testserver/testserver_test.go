package testserver_test

import (
	"net"
	"strconv"
	"testing"

	"github.com/idemmail/idemmail/internal/testserver"
)

func TestAPortIsGivenOnce(t *testing.T) {
	given := map[int]bool{}
	for range 500 {
		port := testserver.FreePort(t)
		if given[port] {
			t.Fatalf("port %d was given twice", port)
		}
		given[port] = true
		if port >= 32768 {
			t.Fatalf("port %d may be the local end of a connection", port)
		}
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			t.Fatalf("port %d is not free: %v", port, err)
		}
		l.Close()
	}
}
