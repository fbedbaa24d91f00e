package soak_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/redisstore"
)

// work is one of the senders' processes. It answers its exit status, and prints
// its figures.
func work() int {
	var p plan
	err := json.Unmarshal([]byte(os.Getenv(planEnv)), &p)
	if err == nil {
		err = p.run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "sender:", err)
		return 1
	}
	return 0
}

// A sender is what the goroutines of a process share.
type sender struct {
	guard  *idemmail.Guard
	ledger ledger
	counts [9]atomic.Int64
}

// Places in sender.counts.
const (
	sends = iota
	sent
	replayed
	unknown
	failed
	inFlight
	storeFailed
	panics
	networkFaults
)

func (p plan) run() error {
	l, err := openLedger(p.Ledger)
	if err != nil {
		return err
	}
	s := &sender{ledger: l}
	client := redis.NewClient(&redis.Options{Addr: p.Addr, Dialer: s.dial, PoolSize: goroutines})
	defer client.Close()
	s.guard, err = idemmail.NewGuard(idemmail.Options{
		Store:     redisstore.New(client, redisstore.Options{}),
		Namespace: "soak",
		Lease:     lease,
		Logger:    slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	jobs := make(chan int)
	var all sync.WaitGroup
	for range goroutines {
		all.Go(func() {
			for key := range jobs {
				s.settle(key)
			}
		})
	}
	for key := range p.jobs {
		jobs <- key
	}
	close(jobs)
	all.Wait()
	c := func(i int) int64 { return s.counts[i].Load() }
	return json.NewEncoder(os.Stdout).Encode(figures{
		c(sends), c(sent), c(replayed), c(unknown), c(failed), c(inFlight), c(storeFailed), c(panics), c(networkFaults),
	})
}

// settle sends a key as a queue does: again until it is told what became of it.
func (s *sender) settle(key int) {
	s.counts[sends].Add(1)
	for pause := time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		r, err := s.send(key)
		switch {
		case r == nil:
			s.counts[panics].Add(1) // it is asked again, and told what is kept
		case r.Replayed:
			s.counts[replayed].Add(1)
		case err == nil:
			s.counts[sent].Add(1)
		case r.Code == idemmail.CodeInFlight:
			s.counts[inFlight].Add(1)
		case r.Code == idemmail.CodeStoreFailed:
			s.counts[storeFailed].Add(1)
		case r.Status == idemmail.StatusUnknown:
			s.counts[unknown].Add(1)
		default:
			s.counts[failed].Add(1)
		}
		switch {
		case r == nil:
		case err == nil:
			s.ledger.note(answeredSent, key)
			return
		case r.Status == idemmail.StatusUnknown && !r.Retryable:
			s.ledger.note(answeredUnknown, key)
			return
		case !r.Retryable:
			panic(fmt.Sprintf("key %d: %v", key, err))
		}
		time.Sleep(pause)
	}
}

var (
	errRefused = errors.New("refused for now")
	errLost    = errors.New("connection lost")
)

// send sends a key once. The receipt is nil where the transport panicked.
func (s *sender) send(key int) (r *idemmail.Receipt, err error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	defer func() { _ = recover() }()
	return s.guard.Do(ctx, fmt.Sprintf("order/%d", key), "f", func(ctx context.Context) (*idemmail.Receipt, error) {
		if rand.IntN(transportFault) > 0 {
			s.ledger.note(delivered, key)
			return &idemmail.Receipt{Status: idemmail.StatusSent, ProviderID: fmt.Sprintf("%x", key)}, nil
		}
		switch rand.IntN(6) {
		case 0:
			return nil, idemmail.NotSent(errRefused)
		case 1:
			return &idemmail.Receipt{Status: idemmail.StatusFailed, Code: "421", Retryable: true}, nil
		case 2:
			return nil, idemmail.MayBeSent(errLost)
		case 3:
			s.ledger.note(delivered, key)
			return nil, idemmail.MayBeSent(errLost)
		case 4:
			cancel() // the caller goes
			s.ledger.note(delivered, key)
			return nil, ctx.Err()
		}
		s.ledger.note(delivered, key)
		panic("the transport panics")
	})
}

// dial makes a connection to Redis by way of a bad network.
func (s *sender) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &badConn{Conn: c, faults: &s.counts[networkFaults]}, nil
}

// A badConn fails now and then: before a command has left, in the middle of it,
// or when the server has acted and before its answer is read.
type badConn struct {
	net.Conn
	faults *atomic.Int64
	mute   bool // the next answer is lost, and the connection with it
}

func (c *badConn) Write(b []byte) (int, error) {
	if rand.IntN(networkFault) > 0 {
		return c.Conn.Write(b)
	}
	c.faults.Add(1)
	switch rand.IntN(4) {
	case 0:
		c.Conn.Close()
	case 1:
		_, _ = c.Conn.Write(b[:len(b)/2])
		c.Conn.Close()
	default:
		c.mute = true
	}
	return c.Conn.Write(b)
}

func (c *badConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.mute && err == nil {
		c.Conn.Close()
		return 0, io.ErrUnexpectedEOF
	}
	return n, err
}
