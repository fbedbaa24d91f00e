package redisstore_test

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/redisstore"
)

// listed collects a listing that must end without another error than that of
// bad records.
func listed(t *testing.T, s *redisstore.Store, prefix string, olderThan time.Duration) (keys, bad []string) {
	t.Helper()
	for e, err := range s.Unsettled(t.Context(), prefix, olderThan) {
		if err != nil {
			require.ErrorIs(t, err, idemmail.ErrBadRecord)
			require.ErrorContains(t, err, strconv.Quote(e.Key))
			require.Equal(t, idemmail.Entry{Key: e.Key}, e)
			bad = append(bad, e.Key)
			continue
		}
		keys = append(keys, e.Key)
	}
	return keys, bad
}

func TestUnsettled(t *testing.T) {
	s, m := newStore(t)
	ctx := t.Context()
	complete := func(key string, status idemmail.Status, ttl time.Duration) {
		require.NoError(t, s.Complete(ctx, key, reserve(t, s, key), done(status), ttl))
	}
	reserve(t, s, "mail:old")
	m.advance(30 * time.Second)
	complete("mail:sent", idemmail.StatusSent, time.Hour)
	complete("mail:unknown", idemmail.StatusUnknown, idemmail.NoExpiry)
	complete("mail:unknown-expired", idemmail.StatusUnknown, time.Second)
	complete("mails:unknown", idemmail.StatusUnknown, time.Hour)
	complete("MAIL:unknown", idemmail.StatusUnknown, time.Hour)
	reserve(t, s, "mail:young") // after an answer that told the time
	require.NoError(t, m.Set("mail:foreign", "foreign"))
	m.HSet("mail:hash", "f", "v")
	require.NoError(t, m.Set("mail:x\x00idemmail-probe-ABC", golden(t, "pending"))) // another process prepares
	m.advance(2 * time.Second)

	keys, bad := listed(t, s, "mail:", 0)
	require.ElementsMatch(t, []string{"mail:old", "mail:young", "mail:unknown"}, keys)
	require.ElementsMatch(t, []string{"mail:foreign", "mail:hash"}, bad)
	keys, _ = listed(t, s, "mail:", 31*time.Second)
	require.ElementsMatch(t, []string{"mail:old", "mail:unknown"}, keys)
	keys, _ = listed(t, s, "mail:", time.Hour)
	require.ElementsMatch(t, []string{"mail:unknown"}, keys)
	keys, bad = listed(t, s, "", time.Hour)
	require.Len(t, keys, 3)
	require.Len(t, bad, 2)

	for e, err := range s.Unsettled(ctx, "mail:old", 0) {
		require.NoError(t, err)
		looked, err := s.Lookup(ctx, "mail:old")
		require.NoError(t, err)
		require.Equal(t, *looked, e)
		require.InDelta(t, 32*time.Second, e.Record.Age, float64(time.Second), "by the server's clock")
		require.Equal(t, m.now.Add(28*time.Second).Truncate(time.Millisecond), e.ExpiresAt.Truncate(time.Millisecond))
	}
}

func TestUnsettledTakesThePrefixLiterally(t *testing.T) {
	s, _ := newStore(t)
	names := []string{"a*", "a?", "a[bc]", `a\`, `a\*`, "a^", "a-", "a]", "ab", "a", "A", "aé"}
	for _, n := range names {
		reserve(t, s, n+":1")
	}
	for _, n := range names {
		keys, bad := listed(t, s, n+":", 0)
		require.Equal(t, []string{n + ":1"}, keys)
		require.Empty(t, bad)
	}
}

func TestUnsettledStreams(t *testing.T) {
	s, m := newStore(t)
	for i := range 600 {
		reserve(t, s, "mail:"+strconv.Itoa(i))
	}
	n := 0
	for range s.Unsettled(t.Context(), "mail:", 0) {
		if n++; n == 3 {
			break
		}
	}
	require.Equal(t, 3, n)

	seen := map[string]bool{}
	for e, err := range s.Unsettled(t.Context(), "mail:", 0) {
		require.NoError(t, err)
		require.NoError(t, s.Forget(t.Context(), e), "it may be settled at once")
		seen[e.Key] = true
	}
	require.Len(t, seen, 600)
	require.Empty(t, m.Keys())

	reserve(t, s, "mail:a")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var last error
	for _, err := range s.Unsettled(ctx, "mail:", 0) {
		last = err
		cancel()
	}
	require.NoError(t, last, "one entry, and then the listing was over")
	for _, err := range s.Unsettled(ctx, "mail:", 0) {
		last = err
	}
	require.ErrorIs(t, last, context.Canceled)
}

// whole notes which values are read whole.
type whole struct {
	trips
	keys []string
}

func (w *whole) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, c := range cmds {
			switch c.Name() {
			case "getrange":
				if c.Args()[3].(int64) > 64 {
					w.keys = append(w.keys, c.Args()[1].(string))
				}
			case "evalsha", "eval":
				w.keys = append(w.keys, c.Args()[3].(string))
			}
		}
		return next(ctx, cmds)
	}
}

func TestUnsettledReadsNoMoreThanItLists(t *testing.T) {
	s, m := newStore(t)
	for i := range 50 {
		key := "mail:" + strconv.Itoa(i)
		require.NoError(t, s.Complete(t.Context(), key, reserve(t, s, key), done(idemmail.StatusSent), time.Hour))
	}
	key := "mail:unknown"
	require.NoError(t, s.Complete(t.Context(), key, reserve(t, s, key), done(idemmail.StatusUnknown), time.Hour))
	w := &whole{}
	m.client.AddHook(w)
	keys, _ := listed(t, s, "mail:", 0)
	require.Equal(t, []string{key}, keys)
	require.Equal(t, []string{key}, w.keys)
}

// TestUnsettledLeavesOutWhatIsSettledMeanwhile settles a key between the look at
// its first bytes and that at the whole.
func TestUnsettledLeavesOutWhatIsSettledMeanwhile(t *testing.T) {
	s, m := newStore(t)
	reserve(t, s, "mail:a")
	reserve(t, s, "mail:gone")
	var looked atomic.Bool
	refusing(m, func(_ *server.Peer, cmd string, _ []string) bool {
		if cmd == "TIME" && looked.CompareAndSwap(false, true) { // the last of the commands that look at heads
			_ = m.Set("mail:a", golden(t, "sent"))
			m.Del("mail:gone")
		}
		return false
	})
	keys, bad := listed(t, s, "mail:", 0)
	require.True(t, looked.Load())
	require.Empty(t, keys)
	require.Empty(t, bad)
}

func TestLookup(t *testing.T) {
	s, m := newStore(t)
	e, err := s.Lookup(t.Context(), "mail:a")
	require.NoError(t, err)
	require.Nil(t, e)
	token := reserve(t, s, "mail:a")
	m.advance(time.Second)
	e, err = s.Lookup(t.Context(), "mail:a")
	require.NoError(t, err)
	require.InDelta(t, time.Second, e.Record.Age, float64(900*time.Millisecond))
	e.Record.Age = 0
	require.WithinDuration(t, m.now.Add(59*time.Second), e.ExpiresAt, time.Millisecond)
	e.ExpiresAt = time.Time{}
	require.Equal(t, &idemmail.Entry{Key: "mail:a", Token: token, Record: idemmail.Record{State: idemmail.StatePending, Fingerprint: "1:f"}}, e)
}

func TestResolveAndForgetAreFenced(t *testing.T) {
	receipt := &idemmail.Receipt{Status: idemmail.StatusSent, ProviderID: "q7"}
	for name, settle := range map[string]func(context.Context, *redisstore.Store, idemmail.Entry) error{
		"resolve": func(ctx context.Context, s *redisstore.Store, e idemmail.Entry) error {
			return s.Resolve(ctx, e, receipt, time.Hour)
		},
		"forget": func(ctx context.Context, s *redisstore.Store, e idemmail.Entry) error { return s.Forget(ctx, e) },
	} {
		t.Run(name, func(t *testing.T) {
			s, m := newStore(t)
			ctx := t.Context()
			token := reserve(t, s, "mail:a")
			pending, err := s.Lookup(ctx, "mail:a")
			require.NoError(t, err)
			require.NoError(t, s.Complete(ctx, "mail:a", token, done(idemmail.StatusUnknown), time.Minute))
			before, err := m.Get("mail:a")
			require.NoError(t, err)

			require.ErrorIs(t, settle(ctx, s, *pending), idemmail.ErrChanged, "the same token, another state")
			another := *pending
			another.Token, another.Record.State = "another", idemmail.StateDone
			require.ErrorIs(t, settle(ctx, s, another), idemmail.ErrChanged, "another token")
			another.Token, another.Record.State = token, "odd"
			require.ErrorIs(t, settle(ctx, s, another), idemmail.ErrChanged, "a state that no record has")
			after, err := m.Get("mail:a")
			require.NoError(t, err)
			require.Equal(t, before, after)

			e, err := s.Lookup(ctx, "mail:a")
			require.NoError(t, err)
			require.NoError(t, settle(ctx, s, *e))
			require.ErrorIs(t, settle(ctx, s, *e), idemmail.ErrChanged, "settled before")
			if name == "forget" {
				require.Empty(t, m.Keys())
				return
			}
			held := holder(t, s, "mail:a")
			held.Age = 0
			require.Equal(t, &idemmail.Record{State: idemmail.StateDone, Fingerprint: "1:f", Receipt: receipt}, held)
			require.Equal(t, time.Hour, m.TTL("mail:a"))
			require.ErrorIs(t, s.Complete(ctx, "mail:a", token, done(idemmail.StatusSent), time.Hour), idemmail.ErrLeaseLost, "under a new token")
			m.advance(time.Hour)
			require.ErrorIs(t, settle(ctx, s, *e), idemmail.ErrChanged, "expired")
			require.Empty(t, m.Keys())
		})
	}
}

func TestResolve(t *testing.T) {
	s, _ := newStore(t)
	ctx := t.Context()
	reserve(t, s, "mail:a")
	e, err := s.Lookup(ctx, "mail:a")
	require.NoError(t, err)
	require.Error(t, s.Resolve(ctx, *e, nil, 0))
	require.NoError(t, s.Resolve(ctx, *e, nil, time.Hour))
	require.Equal(t, &idemmail.Receipt{Status: idemmail.StatusSent}, holder(t, s, "mail:a").Receipt)
	for i, fingerprint := range []string{"", "1:f", "c:1:f {} 3:x", "c:\x00\n\xff", fmt.Sprintf("c:%01000d", 7)} {
		key := "mail:" + strconv.Itoa(i)
		_, _, err := s.Reserve(ctx, key, fingerprint, time.Minute)
		require.NoError(t, err)
		e, err := s.Lookup(ctx, key)
		require.NoError(t, err)
		e.Record.Fingerprint = "ignored"
		require.NoError(t, s.Resolve(ctx, *e, nil, time.Hour))
		require.Equal(t, fingerprint, holder(t, s, key).Fingerprint)
	}
}
