package redisstore_test

import (
	"context"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/redisstore"
)

// trips counts round trips, as a hook of a client. What go-redis does when a
// connection begins is not counted.
type trips struct{ n atomic.Int64 }

func (c *trips) count(cmd redis.Cmder) {
	switch cmd.Name() {
	case "set", "eval", "evalsha":
		c.n.Add(1)
	}
}

func (c *trips) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (c *trips) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.count(cmd)
		return next(ctx, cmd)
	}
}

func (c *trips) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.count(cmds[0])
		return next(ctx, cmds)
	}
}

// took answers how many there were since it was asked last.
func (c *trips) took() int { return int(c.n.Swap(0)) }

func TestRoundTrips(t *testing.T) {
	m := startMini(t)
	testRoundTrips(t, m.client)
}

// testRoundTrips needs a client of a single server.
func testRoundTrips(t *testing.T, client redis.UniversalClient) {
	c := &trips{}
	client.AddHook(c)
	s := redisstore.New(client, redisstore.Options{KeyPrefix: t.Name()})
	expect := func(n int, what string) {
		t.Helper()
		require.Equal(t, n, c.took(), what)
	}
	ctx := t.Context()

	one := reserve(t, s, "mail:a")
	expect(2, "the first reserve of all prepares")
	require.NoError(t, s.Complete(ctx, "mail:a", one, done(idemmail.StatusSent), time.Hour))
	expect(1, "complete")
	two := reserve(t, s, "mail:b")
	expect(1, "reserve")
	require.NoError(t, s.Renew(ctx, "mail:b", two, time.Minute))
	expect(1, "renew")
	require.NoError(t, s.Release(ctx, "mail:b", two))
	expect(1, "release")
	holder(t, s, "mail:a")
	expect(1, "replay")
	e, err := s.Lookup(ctx, "mail:a")
	require.NoError(t, err)
	expect(1, "lookup")
	require.NoError(t, s.Resolve(ctx, *e, nil, time.Hour))
	expect(1, "resolve")

	for n, pipelines := range map[int]int{1: 1, 500: 1, 501: 2} {
		reqs := make([]idemmail.ReserveRequest, n)
		for i := range reqs {
			reqs[i] = idemmail.ReserveRequest{Key: "mail:" + string(rune(0x4E00+i)), Fingerprint: "1:f", Lease: time.Minute}
		}
		results := s.ReserveMany(ctx, reqs)
		expect(pipelines, "reserve many")
		renewals, releases := make([]idemmail.RenewRequest, n), make([]idemmail.ReleaseRequest, n)
		completions := make([]idemmail.CompleteRequest, n)
		for i, r := range results {
			require.NoError(t, r.Err)
			renewals[i] = idemmail.RenewRequest{Key: reqs[i].Key, Token: r.Token, Lease: time.Minute}
			releases[i] = idemmail.ReleaseRequest{Key: reqs[i].Key, Token: r.Token}
			completions[i] = idemmail.CompleteRequest{Key: reqs[i].Key, Token: r.Token, Record: done(idemmail.StatusSent), TTL: time.Minute}
		}
		requireNone(t, s.RenewMany(ctx, renewals))
		expect(pipelines, "renew many")
		requireNone(t, s.ReleaseMany(ctx, releases))
		expect(pipelines, "release many")
		requireNone(t, s.CompleteMany(ctx, completions))
		expect(pipelines, "complete many")
		require.NoError(t, client.Del(ctx, keysOf(t, client, t.Name()+"mail:[^a]*")...).Err())
		c.took()
	}

	one = reserve(t, s, "mail:b")
	c.took()
	require.NoError(t, client.ScriptFlush(ctx).Err())
	c.took()
	require.NoError(t, s.Complete(ctx, "mail:b", one, done(idemmail.StatusSent), time.Minute))
	expect(2, "complete where the server has lost the scripts")
	holder(t, s, "mail:b")
	expect(2, "reserve after that, which prepares anew")
	holder(t, s, "mail:b")
	expect(1, "and then not again")
	require.NoError(t, client.ScriptFlush(ctx).Err())
	requireNone(t, s.CompleteMany(ctx, []idemmail.CompleteRequest{{Key: "mail:b", Token: one, Record: done(idemmail.StatusSent), TTL: time.Minute}}))
	expect(2, "complete many where the server has lost the scripts")
	holder(t, s, "mail:b")
	expect(2, "reserve after that")
}

func keysOf(t *testing.T, client redis.UniversalClient, pattern string) []string {
	t.Helper()
	keys, err := client.Keys(t.Context(), pattern).Result()
	require.NoError(t, err)
	require.NotEmpty(t, keys)
	return keys
}

func requireNone(t *testing.T, errs []error) {
	t.Helper()
	for i, err := range errs {
		require.NoError(t, err, i)
	}
}

// bulk is a transport that takes many messages at once.
type bulk struct{}

func (bulk) Send(context.Context, *idemmail.Message) (*idemmail.Receipt, error) { return nil, nil }

func (bulk) SendMany(_ context.Context, msgs []*idemmail.Message) []idemmail.Result {
	return make([]idemmail.Result, len(msgs))
}

func TestRoundTripsOfSends(t *testing.T) {
	m := startMini(t)
	c := &trips{}
	m.client.AddHook(c)
	transport, err := idemmail.New(bulk{}, idemmail.Options{Store: redisstore.New(m.client, redisstore.Options{}), Namespace: "mail"})
	require.NoError(t, err)
	send := func(key string) {
		_, err := transport.Send(t.Context(), &idemmail.Message{IdempotencyKey: key})
		require.NoError(t, err)
	}
	send("first")
	c.took()
	send("a")
	require.Equal(t, 2, c.took(), "a send")
	send("a")
	require.Equal(t, 1, c.took(), "a replay")
	msgs := make([]*idemmail.Message, 100)
	for i := range msgs {
		msgs[i] = &idemmail.Message{IdempotencyKey: "many" + strconv.Itoa(i)}
	}
	for trips := 2; trips > 0; trips-- {
		for _, r := range transport.SendMany(t.Context(), msgs) {
			require.NoError(t, r.Err)
		}
		require.Equal(t, trips, c.took(), "many sends, then their replays")
	}
}

func TestAnEndedContextSendsNothing(t *testing.T) {
	m := startMini(t)
	c := &trips{}
	m.client.AddHook(c)
	s := redisstore.New(m.client, redisstore.Options{})
	token := reserve(t, s, "mail:a")
	c.took()
	ctx := ended(t)
	for range 50 {
		require.ErrorIs(t, s.Complete(ctx, "mail:a", token, done(idemmail.StatusSent), time.Minute), context.Canceled)
		require.ErrorIs(t, s.ReleaseMany(ctx, []idemmail.ReleaseRequest{{Key: "mail:a", Token: token}})[0], context.Canceled)
		_, _, err := s.Reserve(ctx, "mail:b", "1:f", time.Minute)
		require.ErrorIs(t, err, context.Canceled)
	}
	require.Equal(t, idemmail.StatePending, holder(t, s, "mail:a").State)
	require.Equal(t, 1, c.took())
}

func TestFirstReservesPrepareOnce(t *testing.T) {
	m := startMini(t)
	c := &trips{}
	m.client.AddHook(c)
	s := redisstore.New(m.client, redisstore.Options{})
	require.Zero(t, c.took(), "New asks nothing")
	var all sync.WaitGroup
	for i := range 64 {
		all.Go(func() {
			token, _, err := s.Reserve(t.Context(), "mail:"+string(rune('a'+i)), "1:f", time.Minute)
			if err != nil || token == "" {
				t.Errorf("%q, %v", token, err)
			}
		})
	}
	all.Wait()
	require.Equal(t, 64+1, c.took())
	require.Len(t, m.Keys(), 64)
}
