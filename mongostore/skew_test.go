package mongostore_test

import (
	"testing"
	"time"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/mongostore"

	"github.com/stretchr/testify/require"
)

// Two stores whose clients' clocks differ by 30 minutes never both get a live
// key, and an expired one is free for both.
func TestClientsClocksNeedNotAgree(t *testing.T) {
	coll := collection(t, server(t).URI)
	skewed := func(d time.Duration, monotonic bool) *mongostore.Store {
		return mongostore.New(coll, mongostore.Options{Now: func() time.Time {
			now := time.Now()
			if !monotonic {
				now = now.Round(0)
			}
			return now.Add(d)
		}})
	}
	stores := map[string]*mongostore.Store{
		"right":  newStore(coll),
		"ahead":  skewed(15*time.Minute, true),
		"behind": skewed(-15*time.Minute, false),
	}
	for a, first := range stores {
		for b, second := range stores {
			key := "skew:" + a + "/" + b
			token := reserve(t, first, key, 10*time.Minute)
			_, held, err := second.Reserve(t.Context(), key, "1:x", 10*time.Minute)
			require.NoError(t, err)
			require.NotNil(t, held, key)
			require.Less(t, held.Age, time.Minute, key)
			require.NoError(t, second.Renew(t.Context(), key, token, 10*time.Minute))
			entry, err := second.Lookup(t.Context(), key)
			require.NoError(t, err)
			require.WithinDuration(t, time.Now().Add(10*time.Minute), entry.ExpiresAt, time.Minute, "by the server's clock")

			short := key + "/short"
			reserve(t, first, short, time.Millisecond)
			time.Sleep(20 * time.Millisecond)
			reserve(t, second, short, time.Minute)
		}
	}
}

// A client whose clock is set while it runs goes on by the server's.
func TestClientsClockIsSetMeanwhile(t *testing.T) {
	coll := collection(t, server(t).URI)
	var off time.Duration
	s := mongostore.New(coll, mongostore.Options{Now: func() time.Time { return time.Now().Round(0).Add(off) }})
	reserve(t, s, "set:key", 10*time.Minute)
	for _, off = range []time.Duration{30 * time.Minute, -30 * time.Minute, 0} {
		_, held, err := s.Reserve(t.Context(), "set:key", "1:x", time.Minute)
		require.NoError(t, err)
		require.NotNil(t, held, off)
	}
}

func TestAges(t *testing.T) {
	s := newStore(collection(t, server(t).URI))
	ctx := t.Context()
	age := func(least, most time.Duration) {
		t.Helper()
		entry, err := s.Lookup(ctx, "age:key")
		require.NoError(t, err)
		require.GreaterOrEqual(t, entry.Record.Age, least)
		require.Less(t, entry.Record.Age, most)
		require.WithinDuration(t, time.Now(), entry.ExpiresAt, 24*time.Hour)
	}
	token := reserve(t, s, "age:key", 10*time.Hour)
	age(0, time.Minute)
	s.Advance(time.Hour)
	age(time.Hour, time.Hour+time.Minute)
	require.NoError(t, s.Renew(ctx, "age:key", token, 10*time.Hour))
	age(0, time.Minute)
	s.Advance(time.Hour)
	require.NoError(t, s.Complete(ctx, "age:key", token, sent("age:key"), 10*time.Hour))
	age(0, time.Minute)
	s.Advance(time.Hour)
	_, held, err := s.Reserve(ctx, "age:key", "1:x", time.Minute)
	require.NoError(t, err)
	require.GreaterOrEqual(t, held.Age, time.Hour)
	require.Equal(t, idemmail.StateDone, held.State)
}
