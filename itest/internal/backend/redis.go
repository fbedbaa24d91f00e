package backend

import (
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/idemmail/idemmail/internal/testserver"
	"github.com/idemmail/idemmail/redisstore"
)

// startMiniredis starts a Redis within this process, and drives the clock by
// which its keys end: by itself it stands still.
func startMiniredis(t testing.TB) *Server {
	m := miniredis.RunT(t)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		ticker := time.NewTicker(5 * time.Millisecond)
		defer ticker.Stop()
		last := time.Now()
		for {
			select {
			case <-stop:
				return
			case now := <-ticker.C:
				m.FastForward(now.Sub(last))
				last = now
			}
		}
	}()
	t.Cleanup(func() {
		close(stop)
		<-stopped
	})
	return &Server{URL: "redis://" + m.Addr(), Addr: m.Addr()}
}

// startRedis starts one that writes each command to its disk before it answers.
func startRedis(t testing.TB) *Server {
	testserver.Require(t)
	r := testserver.StartRedis(t, "--appendonly", "yes", "--appendfsync", "always")
	return &Server{
		URL:      "redis://" + r.Addr,
		Addr:     r.Addr,
		Hold:     r.Stop,
		Continue: r.Continue,
		Kill:     func(testing.TB) { r.Kill() },
		Restart:  r.Start,
	}
}

// dialRedis opens a store on a client with the defaults of its makers.
func dialRedis(url string) (Store, func(), error) {
	opts, err := redis.ParseURL(url)
	if err != nil {
		return nil, nil, err
	}
	client := redis.NewClient(opts)
	return redisstore.New(client, redisstore.Options{}), func() { client.Close() }, nil
}
