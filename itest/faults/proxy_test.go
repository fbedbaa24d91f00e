package faults_test

import (
	"bytes"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A fault is what becomes of a request to a server and of the answer to it.
type fault struct {
	name    string
	delay   time.Duration // of the request, and of the answer
	late    time.Duration // further, of the answer
	request part          // that reaches the server
	answer  part          // that reaches the client, of an answer that the server has given
	end     ending        // of the connection
}

// A part is how much of some bytes gets through.
type part int

const (
	all part = iota
	none
	oneByte
	half
	allButOne
)

func (p part) of(b []byte) []byte {
	switch p {
	case none:
		return nil
	case oneByte:
		return b[:1]
	case half:
		return b[:len(b)/2]
	case allButOne:
		return b[:len(b)-1]
	}
	return b
}

// An ending is what becomes of a connection after a fault.
type ending int

const (
	passes ending = iota // nothing
	hangs                // it stays, and nothing ever comes through again
	closed               // FIN
	reset                // RST
)

// A proxy stands between clients and a server and spoils what they say.
type proxy struct {
	addr   string
	server string

	mu    sync.Mutex // of what follows
	rules []*rule
	cut   bool // nothing comes through, new connections neither
	conns map[*net.TCPConn]bool
}

// A rule spoils requests.
type rule struct {
	fault
	match  []byte // in the requests
	spared int    // how many requests come through before it
	forced int    // how many requests are yet to be spoilt; negative: all
	hits   atomic.Int64
}

func startProxy(t testing.TB, server string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &proxy{addr: l.Addr().String(), server: server, conns: map[*net.TCPConn]bool{}}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() { p.serve(c.(*net.TCPConn)) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		p.sever()
		all.Wait()
	})
	return p
}

// spoil spoils the next requests that have match in them: so many, or all.
func (p *proxy) spoil(match string, f fault, times int) *rule {
	return p.spoilAfter(0, match, f, times)
}

// spoilAfter is spoil from the request on that comes after so many.
func (p *proxy) spoilAfter(spared int, match string, f fault, times int) *rule {
	r := &rule{fault: f, match: []byte(match), spared: spared, forced: times}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rules = append(p.rules, r)
	return r
}

// mend lets everything through again.
func (p *proxy) mend() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rules, p.cut = nil, false
}

// sever resets all connections and lets none through, until mend.
func (p *proxy) sever() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = true
	for c := range p.conns {
		drop(c, reset)
	}
}

// rule answers the rule that a request falls under.
func (p *proxy) rule(request []byte) *rule {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.rules {
		if r.forced == 0 || !bytes.Contains(request, r.match) {
			continue
		}
		if r.spared--; r.spared < 0 {
			r.forced--
			r.hits.Add(1)
			return r
		}
	}
	return nil
}

// enter notes a connection, or answers false where none is let through.
func (p *proxy) enter(c *net.TCPConn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cut {
		return false
	}
	p.conns[c] = true
	return true
}

func (p *proxy) leave(c *net.TCPConn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
	c.Close()
}

func drop(c *net.TCPConn, e ending) {
	if e == reset {
		_ = c.SetLinger(0)
	}
	c.Close()
}

func (p *proxy) serve(client *net.TCPConn) {
	if !p.enter(client) {
		drop(client, reset)
		return
	}
	defer p.leave(client)
	c, err := net.DialTimeout("tcp", p.server, 5*time.Second)
	if err != nil {
		return
	}
	server := c.(*net.TCPConn)
	if !p.enter(server) {
		drop(server, reset)
		return
	}
	defer p.leave(server)
	w := &wire{proxy: p, client: client, server: server}
	var both sync.WaitGroup
	defer both.Wait()
	both.Go(w.answers)
	w.requests()
}

// A wire is one connection of a client through to the server.
type wire struct {
	proxy          *proxy
	client, server *net.TCPConn
	fault          atomic.Pointer[rule] // of the answer that is expected
	dead           atomic.Bool          // it hangs
}

func (w *wire) requests() {
	defer w.server.Close()
	for b := make([]byte, 1<<20); ; {
		n, err := w.client.Read(b)
		if err != nil {
			return
		}
		if w.dead.Load() {
			continue
		}
		r := w.proxy.rule(b[:n])
		if r == nil {
			if _, err := w.server.Write(b[:n]); err != nil {
				return
			}
			continue
		}
		time.Sleep(r.delay)
		if r.request == all {
			w.fault.Store(r)
		}
		if _, err := w.server.Write(r.request.of(b[:n])); err != nil {
			return
		}
		if r.request != all && w.ends(r.end) {
			return
		}
	}
}

func (w *wire) answers() {
	defer w.client.Close()
	for b := make([]byte, 1<<16); ; {
		n, err := w.server.Read(b)
		if err != nil {
			if w.dead.Load() {
				_, _ = w.client.Read(b) // until it goes
			}
			return
		}
		if w.dead.Load() {
			continue
		}
		r := w.fault.Swap(nil)
		if r == nil {
			if _, err := w.client.Write(b[:n]); err != nil {
				return
			}
			continue
		}
		time.Sleep(r.delay + r.late)
		if _, err := w.client.Write(r.answer.of(b[:n])); err != nil {
			return
		}
		if w.ends(r.end) {
			return
		}
	}
}

// ends ends the connection in a way, and reports whether it is over.
func (w *wire) ends(e ending) bool {
	switch e {
	case passes:
		return false
	case hangs:
		w.dead.Store(true)
		return false
	}
	drop(w.client, e)
	drop(w.server, e)
	return true
}
