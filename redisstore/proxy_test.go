package redisstore_test

import (
	"bytes"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A proxy stands between a client and a server and loses answers.
type proxy struct {
	addr   string
	server string

	mu   sync.Mutex
	lose func(request []byte) bool // whether the answer to a request is lost, and the connection with it
	lost atomic.Int64
}

func startProxy(t *testing.T, server string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &proxy{addr: l.Addr().String(), server: server}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() { p.serve(client) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		all.Wait() // the clients were closed before
	})
	return p
}

// loseNext loses the answer to the next request that holds all of words.
func (p *proxy) loseNext(words ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lose = func(request []byte) bool {
		for _, w := range words {
			if !bytes.Contains(request, []byte(w)) {
				return false
			}
		}
		p.lose = nil
		return true
	}
}

func (p *proxy) loses(request []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lose != nil && p.lose(request)
}

// drain reads until the server has answered all that it was asked: nothing of a
// pipeline is to happen after the client has learnt that its answer is lost.
func drain(server net.Conn, b []byte) {
	for server.SetReadDeadline(time.Now().Add(100*time.Millisecond)) == nil {
		if _, err := server.Read(b); err != nil {
			return
		}
	}
}

func (p *proxy) serve(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", p.server)
	if err != nil {
		return
	}
	defer server.Close()
	var losing atomic.Bool
	var both sync.WaitGroup
	defer both.Wait()
	both.Go(func() {
		defer client.Close()
		b := make([]byte, 1<<16)
		for {
			n, err := server.Read(b)
			if err != nil {
				return
			}
			if losing.Load() {
				p.lost.Add(1)
				drain(server, b)
				return
			}
			if _, err := client.Write(b[:n]); err != nil {
				return
			}
		}
	})
	defer server.Close()
	b := make([]byte, 1<<20)
	for {
		n, err := client.Read(b)
		if err != nil {
			return
		}
		if p.loses(b[:n]) {
			losing.Store(true)
		}
		if _, err := io.Copy(server, bytes.NewReader(b[:n])); err != nil {
			return
		}
	}
}
