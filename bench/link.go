package main

import (
	"net"
	"sync"
	"testing"
	"time"
)

// linkDelay is that of the link to a server that is not in the same place: of
// one round trip.
const linkDelay = 2500 * time.Microsecond

// startLink starts a proxy before a server and answers its address. It delays
// what the server says, each byte by as much, however many are on their way.
func startLink(t testing.TB, server string, delay time.Duration) (addr string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			go link(client, server, delay)
		}
	}()
	return l.Addr().String()
}

// link carries one connection, until either side ends it.
func link(client net.Conn, server string, delay time.Duration) {
	defer client.Close()
	conn, err := net.Dial("tcp", server)
	if err != nil {
		return
	}
	defer conn.Close()

	type parcel struct {
		due   time.Time
		bytes []byte
	}
	parcels := make(chan parcel, 1024)
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() { // out of the server
		defer close(parcels)
		for b := make([]byte, 1<<16); ; {
			n, err := conn.Read(b)
			if err != nil {
				return
			}
			parcels <- parcel{time.Now().Add(delay), append([]byte(nil), b[:n]...)}
		}
	})
	all.Go(func() { // and into the client
		defer client.Close()
		for p := range parcels {
			time.Sleep(time.Until(p.due))
			client.Write(p.bytes)
		}
	})
	defer conn.Close()
	for b := make([]byte, 1<<16); ; {
		n, err := client.Read(b)
		if err != nil {
			return
		}
		if _, err := conn.Write(b[:n]); err != nil {
			return
		}
	}
}
