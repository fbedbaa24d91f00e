package redisstore_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/redisstore"
)

func TestMain(m *testing.M) {
	if os.Getenv(workerEnv) != "" {
		os.Exit(work())
	}
	goleak.VerifyTestMain(m)
}

// start is what the clock of a mini shows first.
var start = time.Date(2025, 7, 20, 8, 26, 40, 123456000, time.UTC)

// A mini is a Redis in the test's process whose clock stands still.
type mini struct {
	*miniredis.Miniredis
	client *redis.Client
	now    time.Time
}

func startMini(t *testing.T) *mini {
	t.Helper()
	m := &mini{Miniredis: miniredis.RunT(t), now: start}
	m.SetTime(m.now)
	m.client = newClient(t, m.Addr())
	return m
}

// advance moves the server's clock.
func (m *mini) advance(d time.Duration) {
	m.now = m.now.Add(d)
	m.SetTime(m.now)
	m.FastForward(d)
}

// newClient has patience with a busy machine.
func newClient(t *testing.T, addr string, change ...func(*redis.Options)) *redis.Client {
	t.Helper()
	opts := &redis.Options{
		Addr:            addr,
		DialTimeout:     time.Second,
		ReadTimeout:     10 * time.Second,
		MinRetryBackoff: time.Millisecond,
		MaxRetryBackoff: 10 * time.Millisecond,
	}
	for _, c := range change {
		c(opts)
	}
	client := redis.NewClient(opts)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func newStore(t *testing.T) (*redisstore.Store, *mini) {
	t.Helper()
	m := startMini(t)
	return redisstore.New(m.client, redisstore.Options{}), m
}

// reserve takes a key that must be free.
func reserve(t *testing.T, s idemmail.Store, key string) (token string) {
	t.Helper()
	token, held, err := s.Reserve(t.Context(), key, "1:f", time.Minute)
	require.NoError(t, err)
	require.Nil(t, held)
	require.NotEmpty(t, token)
	return token
}

// holder answers what holds a key that must be held.
func holder(t *testing.T, s idemmail.Store, key string) *idemmail.Record {
	t.Helper()
	token, held, err := s.Reserve(t.Context(), key, "1:another", time.Minute)
	require.NoError(t, err)
	require.Empty(t, token)
	require.NotNil(t, held)
	return held
}

func done(status idemmail.Status) idemmail.Record {
	return idemmail.Record{
		State:       idemmail.StateDone,
		Fingerprint: "1:f",
		Receipt:     &idemmail.Receipt{Status: status, Transport: "smtp", ProviderID: "q1"},
	}
}

// ended is a context that has ended.
func ended(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}
