package smtptransport_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/smtptransport"
)

var errCut = errors.New("cut by the test")

// A cutter makes connections of which the kernel takes only so much: that of
// the Write numbered write, it takes all octets but the last short ones.
// Thereafter the connection is closed, by FIN or by RST.
type cutter struct {
	write int // from 1; 0: none
	short int
	reset bool

	mu     sync.Mutex
	writes int
	sizes  []int
}

func (c *cutter) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	return &cutConn{conn, c}, err
}

type cutConn struct {
	net.Conn
	cutter *cutter
}

func (c *cutConn) Write(p []byte) (int, error) {
	c.cutter.mu.Lock()
	defer c.cutter.mu.Unlock()
	c.cutter.writes++
	c.cutter.sizes = append(c.cutter.sizes, len(p))
	if c.cutter.writes != c.cutter.write {
		return c.Conn.Write(p)
	}
	n, err := c.Conn.Write(p[:len(p)-c.cutter.short])
	if err != nil {
		return n, err
	}
	if c.cutter.reset {
		c.Conn.(*net.TCPConn).SetLinger(0)
	}
	c.Conn.Close()
	return n, errCut
}

// The connection is cut after each octet of the final dot. What the server
// took is what is reported, or unknown.
func TestCutInTheFinalDot(t *testing.T) {
	for _, ending := range []string{"FIN", "RST"} {
		for taken := 0; taken <= len("\r\n.\r\n"); taken++ {
			t.Run(fmt.Sprintf("%s after %d of 5 octets", ending, taken), func(t *testing.T) {
				t.Parallel()
				s := newScriptedServer(t, nil)
				c := &cutter{write: writeOfTheDot, short: 5 - taken, reset: ending == "RST"}
				r, err := transport(t, s.addr, func(o *smtptransport.Options) { o.Dial = c.dial }).Send(background, letter())
				if taken < 5 {
					wantOutcome(t, idemmail.StatusFailed, r, err)
					require.Equal(t, idemmail.CategoryNetwork, r.Category)
					require.True(t, r.Retryable)
				} else {
					wantOutcome(t, idemmail.StatusUnknown, r, err)
				}
				require.Equal(t, smtptransport.PhaseDot, phaseOf(t, err))
				require.ErrorIs(t, err, errCut)
				s.wait()
				_, _, messages, whole := s.seen()
				if taken < 5 {
					require.Zero(t, whole)
				} else if ending == "FIN" {
					require.Equal(t, 1, whole)
					require.Len(t, messages, 1)
				}
			})
		}
	}
}

// Without TLS: EHLO, MAIL, RCPT, DATA, and the message with its dot, where it
// is small.
const writeOfTheDot = 5

// A body of many Writes is cut in each of them.
func TestCutInTheBody(t *testing.T) {
	m := letter()
	m.Text = strings.Repeat("All work and no play makes Jack a dull boy.\n", 400)
	whole := &cutter{}
	s := newScriptedServer(t, nil)
	_, err := transport(t, s.addr, func(o *smtptransport.Options) { o.Dial = whole.dial }).Send(background, m)
	require.NoError(t, err)
	dot := len(whole.sizes) - 1 // before QUIT
	require.Greater(t, dot, writeOfTheDot+2)
	for write := writeOfTheDot; write <= dot; write++ {
		for _, short := range []int{0, 1} {
			t.Run(fmt.Sprintf("write %d of %d, %d short", write, dot, short), func(t *testing.T) {
				t.Parallel()
				s := newScriptedServer(t, nil)
				c := &cutter{write: write, short: short}
				r, err := transport(t, s.addr, func(o *smtptransport.Options) { o.Dial = c.dial }).Send(background, m)
				if write == dot && short == 0 {
					wantOutcome(t, idemmail.StatusUnknown, r, err)
					return
				}
				wantOutcome(t, idemmail.StatusFailed, r, err)
				s.wait()
				_, _, _, whole := s.seen()
				require.Zero(t, whole)
			})
		}
	}
}

// Under TLS, it is the record with the dot that counts.
func TestCutInTheFinalRecord(t *testing.T) {
	whole := &cutter{}
	s := newTLSServer(t, false)
	_, err := secure(t, s, smtptransport.ImplicitTLS, func(o *smtptransport.Options) { o.Dial = whole.dial }).Send(background, letter())
	require.NoError(t, err)
	dot := len(whole.sizes) - 2 // before QUIT and close_notify
	for _, short := range []int{1, 16, 0} {
		t.Run(fmt.Sprintf("%d short", short), func(t *testing.T) {
			s := newTLSServer(t, false)
			c := &cutter{write: dot, short: short}
			r, err := secure(t, s, smtptransport.ImplicitTLS, func(o *smtptransport.Options) { o.Dial = c.dial }).Send(background, letter())
			s.close()
			if short == 0 {
				wantOutcome(t, idemmail.StatusUnknown, r, err)
				require.Len(t, s.messages(), 1)
				return
			}
			wantOutcome(t, idemmail.StatusFailed, r, err)
			require.Equal(t, smtptransport.PhaseDot, phaseOf(t, err))
			require.Empty(t, s.messages())
		})
	}
}

// Where something between the two cuts the stream in the dot, the kernel took
// all of it: only the server knows.
func TestCutOnTheWay(t *testing.T) {
	for _, ending := range []string{"FIN", "RST"} {
		for taken := 0; taken <= len("\r\n.\r\n"); taken++ {
			t.Run(fmt.Sprintf("%s after %d of 5 octets", ending, taken), func(t *testing.T) {
				t.Parallel()
				s := newScriptedServer(t, map[string]step{"dot": says("250 2.0.0 ok")})
				p := newDotProxy(t, s.addr, taken, ending == "RST")
				r, err := transport(t, p).Send(background, letter())
				wantOutcome(t, idemmail.StatusUnknown, r, err)
				s.wait()
				_, _, _, whole := s.seen()
				if taken < 5 {
					require.Zero(t, whole)
				}
			})
		}
	}
}

// newDotProxy passes everything on up to so many octets of the final dot, and
// then cuts both sides.
func newDotProxy(t *testing.T, to string, taken int, reset bool) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var wg sync.WaitGroup
	t.Cleanup(func() { l.Close(); wg.Wait() })
	wg.Go(func() {
		client, err := l.Accept()
		if err != nil {
			return
		}
		defer client.Close()
		server, err := net.Dial("tcp", to)
		if err != nil {
			return
		}
		defer server.Close()
		wg.Go(func() { // the way back
			buf := make([]byte, 4096)
			for {
				n, err := server.Read(buf)
				if err != nil {
					return
				}
				if _, err := client.Write(buf[:n]); err != nil {
					return
				}
			}
		})
		const dot = "\r\n.\r\n"
		var seen []byte
		buf := make([]byte, 64<<10)
		for {
			n, err := client.Read(buf)
			if err != nil {
				return
			}
			before := len(seen)
			seen = append(seen, buf[:n]...)
			if i := strings.Index(string(seen), dot); i >= 0 {
				server.Write(seen[before : i+taken])
				if reset {
					server.(*net.TCPConn).SetLinger(0)
				}
				return
			}
			server.Write(buf[:n])
		}
	})
	return l.Addr().String()
}

// A context that ends while the body is being written keeps the dot from being
// written at all.
func TestCancelledBeforeTheDot(t *testing.T) {
	t.Parallel()
	m := letter()
	m.Text = strings.Repeat("All work and no play makes Jack a dull boy.\n", 400)
	for range 20 {
		ctx, cancel := context.WithCancel(background)
		s := newScriptedServer(t, nil)
		r, err := transport(t, s.addr, func(o *smtptransport.Options) {
			o.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
				conn, err := new(net.Dialer).DialContext(ctx, network, addr)
				return &stubbornConn{Conn: conn, cancel: cancel}, err
			}
		}).Send(ctx, m)
		cancel()
		wantOutcome(t, idemmail.StatusFailed, r, err)
		require.Equal(t, smtptransport.PhaseBody, phaseOf(t, err))
		s.wait()
		_, _, _, whole := s.seen()
		require.Zero(t, whole)
	}
}

// A stubbornConn ends the context within the first Write of the body. The Close
// that this leads to has no effect yet, as if its goroutine came late; the next
// has.
type stubbornConn struct {
	net.Conn
	cancel func()
	writes int
	closes atomic.Int32
}

func (c *stubbornConn) Write(p []byte) (int, error) {
	if c.writes++; c.writes == writeOfTheDot {
		c.cancel()
	}
	return c.Conn.Write(p)
}

func (c *stubbornConn) Close() error {
	if c.closes.Add(1) == 1 {
		return nil
	}
	return c.Conn.Close()
}

// A server that stops reading: the message does not fit into the buffers, so
// its dot never was with the kernel.
func TestServerStopsReading(t *testing.T) {
	m := letter()
	m.Attachments = []idemmail.Attachment{{Filename: "big.bin", Content: make([]byte, 8<<20)}}
	stops := func(done chan struct{}) map[string]step {
		return map[string]step{"body": func(c *peer) bool { <-done; return false }}
	}
	t.Run("timeout", func(t *testing.T) {
		t.Parallel()
		done := make(chan struct{})
		s := newScriptedServer(t, stops(done))
		tr := transport(t, s.addr, func(o *smtptransport.Options) { o.Timeout = 300 * time.Millisecond })
		r, err := tr.Send(background, m)
		close(done)
		wantOutcome(t, idemmail.StatusFailed, r, err)
		require.Equal(t, smtptransport.PhaseBody, phaseOf(t, err))
		require.Equal(t, idemmail.CategoryTimeout, r.Category)
		require.True(t, r.Retryable)
	})
	t.Run("cancelled", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(background)
		defer cancel()
		s := newScriptedServer(t, map[string]step{"body": func(c *peer) bool {
			c.in.ReadByte() // the client is at it
			cancel()
			<-ctx.Done()
			return false
		}})
		r, err := transport(t, s.addr).Send(ctx, m)
		wantOutcome(t, idemmail.StatusFailed, r, err)
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, smtptransport.PhaseBody, phaseOf(t, err))
	})
	t.Run("closes", func(t *testing.T) {
		t.Parallel()
		s := newScriptedServer(t, map[string]step{"body": cuts})
		r, err := transport(t, s.addr).Send(background, m)
		wantOutcome(t, idemmail.StatusFailed, r, err)
		require.Equal(t, idemmail.CategoryNetwork, r.Category)
	})
}
