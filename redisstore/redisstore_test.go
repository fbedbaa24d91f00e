package redisstore_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/redisstore"
)

func TestReserve(t *testing.T) {
	t.Run("nothing holds the key", func(t *testing.T) {
		s, m := newStore(t)
		one, two := reserve(t, s, "mail:a"), reserve(t, s, "mail:b")
		require.NotEqual(t, one, two)
		require.Equal(t, []string{"mail:a", "mail:b"}, m.Keys(), "the first Reserve must clear up after itself")
		require.Equal(t, time.Minute, m.TTL("mail:a"))
	})
	t.Run("pending", func(t *testing.T) {
		s, _ := newStore(t)
		reserve(t, s, "mail:a")
		held := holder(t, s, "mail:a")
		require.GreaterOrEqual(t, held.Age, time.Duration(0))
		held.Age = 0
		require.Equal(t, &idemmail.Record{State: idemmail.StatePending, Fingerprint: "1:f"}, held)
	})
	t.Run("a record whose time has passed", func(t *testing.T) {
		s, m := newStore(t)
		old := reserve(t, s, "mail:a")
		m.advance(time.Minute)
		token, held, err := s.Reserve(t.Context(), "mail:a", "1:other", time.Minute)
		require.NoError(t, err)
		require.Nil(t, held)
		require.NotEqual(t, old, token)
		require.Equal(t, "1:other", holder(t, s, "mail:a").Fingerprint)
	})
	t.Run("a context that has ended", func(t *testing.T) {
		s, m := newStore(t)
		_, _, err := s.Reserve(ended(t), "mail:a", "1:f", time.Minute)
		require.ErrorIs(t, err, context.Canceled)
		require.Empty(t, m.Keys())
	})
}

func TestComplete(t *testing.T) {
	t.Run("the token holds the key", func(t *testing.T) {
		s, m := newStore(t)
		token := reserve(t, s, "mail:a")
		require.NoError(t, s.Complete(t.Context(), "mail:a", token, done(idemmail.StatusSent), time.Hour))
		held := holder(t, s, "mail:a")
		held.Age = 0
		want := done(idemmail.StatusSent)
		require.Equal(t, &want, held)
		require.Equal(t, time.Hour, m.TTL("mail:a"))

		again := done(idemmail.StatusUnknown)
		require.NoError(t, s.Complete(t.Context(), "mail:a", token, again, idemmail.NoExpiry), "a done record keeps its token")
		require.Equal(t, idemmail.StatusUnknown, holder(t, s, "mail:a").Receipt.Status)
		require.Zero(t, m.TTL("mail:a"))
	})
	t.Run("nothing holds the key", func(t *testing.T) {
		s, _ := newStore(t)
		token := reserve(t, s, "mail:a")
		require.NoError(t, s.Release(t.Context(), "mail:a", token))
		require.NoError(t, s.Complete(t.Context(), "mail:a", token, done(idemmail.StatusSent), time.Hour))
		require.Equal(t, "1:f", holder(t, s, "mail:a").Fingerprint)
		require.NoError(t, s.Complete(t.Context(), "mail:a", token, done(idemmail.StatusSent), time.Hour))
	})
	t.Run("another token holds the key", func(t *testing.T) {
		s, m := newStore(t)
		old := reserve(t, s, "mail:a")
		m.advance(time.Minute)
		reserve(t, s, "mail:a")
		before, err := m.Get("mail:a")
		require.NoError(t, err)
		require.ErrorIs(t, s.Complete(t.Context(), "mail:a", old, done(idemmail.StatusSent), time.Hour), idemmail.ErrLeaseLost)
		require.ErrorIs(t, s.Complete(t.Context(), "mail:a", old[:5], done(idemmail.StatusSent), time.Hour), idemmail.ErrLeaseLost)
		require.ErrorIs(t, s.Complete(t.Context(), "mail:a", "", done(idemmail.StatusSent), time.Hour), idemmail.ErrLeaseLost)
		after, err := m.Get("mail:a")
		require.NoError(t, err)
		require.Equal(t, before, after)
		require.Equal(t, time.Minute, m.TTL("mail:a"))
	})
	t.Run("what is no done record is refused", func(t *testing.T) {
		s, m := newStore(t)
		bare := done(idemmail.StatusSent)
		bare.Receipt = nil
		require.Error(t, s.Complete(t.Context(), "mail:a", "token", bare, time.Hour))
		pending := done(idemmail.StatusSent)
		pending.State = idemmail.StatePending
		require.Error(t, s.Complete(t.Context(), "mail:a", "token", pending, time.Hour))
		require.Empty(t, m.Keys())
	})
}

func TestRelease(t *testing.T) {
	s, m := newStore(t)
	token := reserve(t, s, "mail:a")
	require.ErrorIs(t, s.Release(t.Context(), "mail:a", "another"), idemmail.ErrLeaseLost)
	require.NoError(t, s.Release(t.Context(), "mail:a", token))
	require.Empty(t, m.Keys())
	require.NoError(t, s.Release(t.Context(), "mail:a", token), "gone already is no error")

	token = reserve(t, s, "mail:a")
	require.NoError(t, s.Complete(t.Context(), "mail:a", token, done(idemmail.StatusSent), time.Hour))
	require.ErrorIs(t, s.Release(t.Context(), "mail:a", token), idemmail.ErrLeaseLost, "a done key stays")
	require.Equal(t, idemmail.StateDone, holder(t, s, "mail:a").State)
}

func TestRenew(t *testing.T) {
	s, m := newStore(t)
	token := reserve(t, s, "mail:a")
	m.advance(40 * time.Second)
	require.ErrorIs(t, s.Renew(t.Context(), "mail:a", "another", time.Minute), idemmail.ErrLeaseLost)
	require.Greater(t, holder(t, s, "mail:a").Age, 39*time.Second)
	require.NoError(t, s.Renew(t.Context(), "mail:a", token, time.Minute))
	m.advance(40 * time.Second)
	held := holder(t, s, "mail:a")
	require.Less(t, held.Age, 39*time.Second, "the age begins anew")
	require.Equal(t, "1:f", held.Fingerprint)
	require.NoError(t, s.Renew(t.Context(), "mail:a", token, idemmail.NoExpiry))
	require.Zero(t, m.TTL("mail:a"))
	require.NoError(t, s.Renew(t.Context(), "mail:a", token, time.Minute))

	m.advance(time.Minute)
	require.ErrorIs(t, s.Renew(t.Context(), "mail:a", token, time.Minute), idemmail.ErrLeaseLost, "expired")
	require.Empty(t, m.Keys())
	require.NoError(t, s.Complete(t.Context(), "mail:a", token, done(idemmail.StatusSent), time.Minute))
	require.ErrorIs(t, s.Renew(t.Context(), "mail:a", token, time.Hour), idemmail.ErrLeaseLost, "done")
	require.Equal(t, time.Minute, m.TTL("mail:a"))
}

func TestDurations(t *testing.T) {
	for name, c := range map[string]struct {
		given, kept time.Duration
	}{
		"less than the unit":        {1, time.Millisecond},
		"between two units":         {1500 * time.Microsecond, 2 * time.Millisecond},
		"whole seconds":             {2 * time.Second, 2 * time.Second},
		"between two seconds":       {2*time.Second + 1, 2*time.Second + time.Millisecond},
		"the longest there is":      {math.MaxInt64, math.MaxInt64 / time.Millisecond * time.Millisecond},
		"never":                     {idemmail.NoExpiry, 0},
		"the longest in whole ones": {math.MaxInt64 / time.Second * time.Second, math.MaxInt64 / time.Second * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			s, m := newStore(t)
			token, _, err := s.Reserve(t.Context(), "mail:a", "1:f", c.given)
			require.NoError(t, err)
			require.Equal(t, c.kept, m.TTL("mail:a"), "lease")
			require.NoError(t, s.Renew(t.Context(), "mail:a", token, c.given))
			require.Equal(t, c.kept, m.TTL("mail:a"), "renewed lease")
			require.NoError(t, s.Complete(t.Context(), "mail:a", token, done(idemmail.StatusUnknown), c.given))
			require.Equal(t, c.kept, m.TTL("mail:a"), "TTL")
			e, err := s.Lookup(t.Context(), "mail:a")
			require.NoError(t, err)
			if c.kept == 0 {
				require.True(t, e.ExpiresAt.IsZero())
			} else {
				require.WithinDuration(t, start.Add(c.kept), e.ExpiresAt, time.Millisecond)
			}
			require.NoError(t, s.Resolve(t.Context(), *e, nil, c.given))
			require.Equal(t, c.kept, m.TTL("mail:a"), "resolved")
		})
	}
	for _, d := range []time.Duration{0, -2, math.MinInt64} {
		s, m := newStore(t)
		_, _, err := s.Reserve(t.Context(), "mail:a", "1:f", d)
		require.Error(t, err)
		require.Error(t, s.Complete(t.Context(), "mail:a", "token", done(idemmail.StatusSent), d))
		require.Empty(t, m.Keys(), "nothing is written")
		token := reserve(t, s, "mail:a")
		require.Error(t, s.Renew(t.Context(), "mail:a", token, d))
		require.Equal(t, time.Minute, m.TTL("mail:a"))
	}
}

func TestAgesAreReckonedInTheServersTime(t *testing.T) {
	m := startMini(t) // whose clock is far from this process's
	one := redisstore.New(m.client, redisstore.Options{})
	token := reserve(t, one, "mail:a")
	m.advance(30 * time.Second)
	two := redisstore.New(m.client, redisstore.Options{}) // which learns the time now
	reserve(t, two, "mail:b")
	require.InDelta(t, 30*time.Second, holder(t, two, "mail:a").Age, float64(2*time.Second))
	require.Less(t, holder(t, two, "mail:b").Age, 2*time.Second)

	require.NoError(t, one.Complete(t.Context(), "mail:a", token, done(idemmail.StatusSent), time.Hour))
	require.Less(t, holder(t, two, "mail:a").Age, 2*time.Second)
	require.InDelta(t, 0, holder(t, one, "mail:b").Age, float64(2*time.Second), "the answer to Complete told the first one the time")
}

func TestForeignDataIsABadRecord(t *testing.T) {
	long := strings.Repeat("x", 1<<16)
	for name, value := range map[string]string{
		"empty":           "",
		"one byte":        "1",
		"null":            "null",
		"JSON":            `{"state":"pending","token":"x"}`,
		"truncated JSON":  `{"state":`,
		"long":            long,
		"not UTF-8":       "\xff\xfe\x00",
		"another version": "idm2 p- 1753000000123456 26:ABCDEFGHIJKLMNOPQRSTUVWXYZ 3:1:f",
		"another state":   "idm1 x- 1753000000123456 26:ABCDEFGHIJKLMNOPQRSTUVWXYZ 3:1:f",
		"head alone":      "idm1 p- 1753000000123456 ",
		"short time":      "idm1 p- 175300000012345 26:ABCDEFGHIJKLMNOPQRSTUVWXYZ 3:1:f",
		"no time":         "idm1 p- 17530000001234XX 26:ABCDEFGHIJKLMNOPQRSTUVWXYZ 3:1:f",
		"signed time":     "idm1 p- -753000000123456 26:ABCDEFGHIJKLMNOPQRSTUVWXYZ 3:1:f",
		"no token":        "idm1 p- 1753000000123456 ABCDEFGHIJKLMNOPQRSTUVWXYZ",
	} {
		t.Run(name, func(t *testing.T) {
			s, m := newStore(t)
			require.NoError(t, m.Set("mail:a", value))
			testBadRecord(t, s)
			kept, err := m.Get("mail:a")
			require.NoError(t, err)
			require.Equal(t, value, kept, "it must be left as it is")
		})
	}
	t.Run("another type", func(t *testing.T) {
		s, m := newStore(t)
		m.HSet("mail:a", "f", "v")
		testBadRecord(t, s)
		require.Equal(t, "v", m.HGet("mail:a", "f"))
	})
}

// testBadRecord expects every call on the key mail:a to find a bad record.
func testBadRecord(t *testing.T, s *redisstore.Store) {
	t.Helper()
	ctx := t.Context()
	const token = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
	_, _, err := s.Reserve(ctx, "mail:a", "1:f", time.Minute)
	require.ErrorIs(t, err, idemmail.ErrBadRecord)
	require.NotErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorIs(t, s.Complete(ctx, "mail:a", token, done(idemmail.StatusSent), time.Hour), idemmail.ErrBadRecord)
	require.ErrorIs(t, s.Release(ctx, "mail:a", token), idemmail.ErrBadRecord)
	require.ErrorIs(t, s.Renew(ctx, "mail:a", token, time.Hour), idemmail.ErrBadRecord)
	_, err = s.Lookup(ctx, "mail:a")
	require.ErrorIs(t, err, idemmail.ErrBadRecord)
	for _, state := range []idemmail.State{idemmail.StatePending, idemmail.StateDone, "other"} {
		e := idemmail.Entry{Key: "mail:a", Token: token, Record: idemmail.Record{State: state}}
		require.ErrorIs(t, s.Resolve(ctx, e, nil, time.Hour), idemmail.ErrBadRecord)
		require.ErrorIs(t, s.Forget(ctx, e), idemmail.ErrBadRecord)
	}
	for _, r := range s.ReserveMany(ctx, []idemmail.ReserveRequest{{Key: "mail:a", Fingerprint: "1:f", Lease: time.Minute}}) {
		require.ErrorIs(t, r.Err, idemmail.ErrBadRecord)
	}
	var listed []error
	for e, err := range s.Unsettled(ctx, "mail:", 0) {
		require.Equal(t, idemmail.Entry{Key: "mail:a"}, e)
		require.ErrorContains(t, err, "mail:a")
		listed = append(listed, err)
	}
	require.Len(t, listed, 1)
	require.ErrorIs(t, listed[0], idemmail.ErrBadRecord)
}

func TestKeysAreKeptApart(t *testing.T) {
	s, m := newStore(t)
	keys := []string{
		"mail:a", "mail:A", "mail:", "mail:a ", "mail:{a}", "mail:{}a", "mail:*", "mail:?", "mail:[a]", `mail:\`,
		"mail:$.a", "mail:é", "mail:e\u0301", "mail:\U0001F4E7", "mail:" + strings.Repeat("k", 400),
	}
	tokens := map[string]string{}
	for _, k := range keys {
		tokens[k] = reserve(t, s, k)
	}
	require.Len(t, m.Keys(), len(keys))
	for _, k := range keys {
		require.NoError(t, s.Complete(t.Context(), k, tokens[k], done(idemmail.StatusSent), time.Hour))
	}
}

func TestKeyPrefix(t *testing.T) {
	m := startMini(t)
	s := redisstore.New(m.client, redisstore.Options{KeyPrefix: "{idem*}:"})
	token := reserve(t, s, "mail:a")
	require.Equal(t, []string{"{idem*}:mail:a"}, m.Keys())
	require.NoError(t, m.Set("idemX:mail:b", "foreign"))
	require.NoError(t, m.Set("{idem*}:mail:c", "foreign"))
	e, err := s.Lookup(t.Context(), "mail:a")
	require.NoError(t, err)
	require.Equal(t, "mail:a", e.Key)
	var listed []string
	for e := range s.Unsettled(t.Context(), "mail:", 0) {
		listed = append(listed, e.Key)
	}
	require.ElementsMatch(t, []string{"mail:a", "mail:c"}, listed)
	require.NoError(t, s.Release(t.Context(), "mail:a", token))
}

func TestClientsThatNoKeyCanBeEntrustedTo(t *testing.T) {
	m := startMini(t)
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"one": m.Addr()}})
	t.Cleanup(func() { _ = ring.Close() })
	for name, client := range map[string]redis.UniversalClient{"ring": ring, "nil": nil} {
		t.Run(name, func(t *testing.T) {
			s := redisstore.New(client, redisstore.Options{})
			ctx := t.Context()
			_, _, err := s.Reserve(ctx, "mail:a", "1:f", time.Minute)
			require.ErrorIs(t, err, errors.ErrUnsupported)
			require.ErrorIs(t, s.Complete(ctx, "mail:a", "token", done(idemmail.StatusSent), time.Minute), errors.ErrUnsupported)
			require.ErrorIs(t, s.Release(ctx, "mail:a", "token"), errors.ErrUnsupported)
			require.ErrorIs(t, s.Check(ctx), errors.ErrUnsupported)
			_, err = s.Lookup(ctx, "mail:a")
			require.ErrorIs(t, err, errors.ErrUnsupported)
			for _, err := range s.Unsettled(ctx, "", 0) {
				require.ErrorIs(t, err, errors.ErrUnsupported)
			}
			require.ErrorIs(t, s.ReserveMany(ctx, []idemmail.ReserveRequest{{Key: "mail:a", Lease: time.Minute}})[0].Err, errors.ErrUnsupported)
			require.ErrorIs(t, s.ReleaseMany(ctx, []idemmail.ReleaseRequest{{Key: "mail:a"}})[0], errors.ErrUnsupported)
			require.Empty(t, m.Keys())
		})
	}
}
