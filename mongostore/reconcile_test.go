package mongostore_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/mongostore"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// list answers the keys that Unsettled lists, and those that are no records.
func list(t *testing.T, s *mongostore.Store, prefix string, olderThan time.Duration) (keys, bad []string) {
	t.Helper()
	for e, err := range s.Unsettled(t.Context(), prefix, olderThan) {
		if errors.Is(err, idemmail.ErrBadRecord) {
			require.ErrorContains(t, err, e.Key)
			require.Equal(t, idemmail.Entry{Key: e.Key}, e)
			bad = append(bad, e.Key)
			continue
		}
		require.NoError(t, err)
		require.NotEmpty(t, e.Token)
		keys = append(keys, e.Key)
	}
	return keys, bad
}

func complete(t *testing.T, s *mongostore.Store, key string, rec idemmail.Record, ttl time.Duration) {
	t.Helper()
	require.NoError(t, s.Complete(t.Context(), key, reserve(t, s, key, time.Minute), rec, ttl))
}

func TestUnsettled(t *testing.T) {
	coll := collection(t, server(t).URI)
	s := newStore(coll)
	complete(t, s, "list:expired unknown", unknown("x"), time.Minute)
	reserve(t, s, "list:expired pending", time.Minute)
	reserve(t, s, "list:old pending", idemmail.NoExpiry)
	s.Advance(time.Hour)
	complete(t, s, "list:sent", sent("x"), time.Hour)
	complete(t, s, "list:unknown", unknown("x"), time.Hour)
	complete(t, s, "list:unknown for ever", unknown("x"), idemmail.NoExpiry)
	reserve(t, s, "list:young pending", time.Minute)
	complete(t, s, "lisu:unknown", unknown("x"), time.Hour)
	complete(t, s, "list", unknown("x"), time.Hour)
	_, err := coll.InsertMany(t.Context(), []bson.D{
		{{Key: "_id", Value: "list:foreign"}},
		{{Key: "_id", Value: "list:later"}, {Key: "idemmail", Value: int32(2)}, {Key: "state", Value: "done"}, {Key: "receipt", Value: bson.D{{Key: "status", Value: "sent"}}}},
		{{Key: "_id", Value: "list:without receipt"}, {Key: "idemmail", Value: int32(1)}, {Key: "state", Value: "done"}, {Key: "token", Value: "t"},
			{Key: "fingerprint", Value: ""}, {Key: "at", Value: time.Now()}},
		{{Key: "_id", Value: "other:foreign"}},
		{{Key: "_id", Value: bson.NewObjectID()}},
	})
	require.NoError(t, err)

	keys, bad := list(t, s, "list:", 30*time.Minute)
	require.ElementsMatch(t, []string{"list:old pending", "list:unknown", "list:unknown for ever"}, keys)
	require.ElementsMatch(t, []string{"list:foreign", "list:later", "list:without receipt"}, bad)
	keys, _ = list(t, s, "list:", 0)
	require.ElementsMatch(t, []string{"list:old pending", "list:unknown", "list:unknown for ever", "list:young pending"}, keys)
	keys, _ = list(t, s, "list:", 2*time.Hour)
	require.ElementsMatch(t, []string{"list:unknown", "list:unknown for ever"}, keys)
	keys, bad = list(t, s, "", 0)
	require.Len(t, keys, 6)
	require.Len(t, bad, 4)
	keys, bad = list(t, s, "none:", 0)
	require.Empty(t, keys)
	require.Empty(t, bad)
}

func TestUnsettledTakesThePrefixLiterally(t *testing.T) {
	s := newStore(collection(t, server(t).URI))
	for _, key := range []string{"a.b:1", "axb:1", "a*:1", "ab:1", "[a]:1", "a:1", "^a:1", "A:1", "$set:1", "\U0001F600:1", "\U0001F600"} {
		complete(t, s, key, unknown("x"), time.Hour)
	}
	for _, prefix := range []string{"a.b:", "a*:", "[a]:", "^a:", "A:", "$set:", "\U0001F600:"} {
		keys, _ := list(t, s, prefix, 0)
		require.Equal(t, []string{prefix + "1"}, keys)
	}
	keys, _ := list(t, s, "\U0001F600", 0)
	require.Len(t, keys, 2)
}

func TestUnsettledStreams(t *testing.T) {
	var r recorder
	s := newStore(collection(t, server(t).URI, options.Client().SetMonitor(r.monitor())))
	const n = 350
	var reqs []idemmail.CompleteRequest
	for i := range n {
		reqs = append(reqs, idemmail.CompleteRequest{Key: fmt.Sprintf("stream:%d", i), Token: "t", Record: unknown("x"), TTL: time.Hour})
	}
	noErrors(t, s.CompleteMany(t.Context(), reqs))
	r.take()

	keys, _ := list(t, s, "stream:", 0)
	require.Len(t, keys, n)
	require.Contains(t, names(r.take()), "getMore", "in several parts")

	for range s.Unsettled(t.Context(), "stream:", 0) {
		break
	}
	require.Equal(t, []string{"find", "killCursors"}, names(r.take()), "an early end fetches no more and leaves nothing open")

	// What a caller does with an entry does not disturb the listing.
	settled := 0
	for e, err := range s.Unsettled(t.Context(), "stream:", 0) {
		require.NoError(t, err)
		require.NoError(t, s.Forget(t.Context(), e))
		settled++
	}
	require.Equal(t, n, settled)

	noErrors(t, s.CompleteMany(t.Context(), reqs))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	seen := 0
	var end error
	for _, err := range s.Unsettled(ctx, "stream:", 0) {
		if err != nil {
			end = err
			break
		}
		seen++
		cancel()
	}
	require.ErrorIs(t, end, context.Canceled)
	require.Less(t, seen, n)
}

func TestResolveAndForgetAreFenced(t *testing.T) {
	coll := collection(t, server(t).URI)
	s := newStore(coll)
	ctx := t.Context()
	lookup := func(key string) idemmail.Entry {
		e, err := s.Lookup(ctx, key)
		require.NoError(t, err)
		require.NotNil(t, e)
		return *e
	}
	refused := func(e idemmail.Entry) {
		t.Helper()
		before := stored(t, coll, e.Key)
		require.ErrorIs(t, s.Resolve(ctx, e, sent("x").Receipt, time.Hour), idemmail.ErrChanged)
		require.ErrorIs(t, s.Forget(ctx, e), idemmail.ErrChanged)
		require.Equal(t, before, stored(t, coll, e.Key))
	}

	token := reserve(t, s, "fence:key", idemmail.NoExpiry)
	pending := lookup("fence:key")
	require.Equal(t, token, pending.Token)
	refused(idemmail.Entry{Key: "fence:key", Token: "another's", Record: pending.Record})
	refused(idemmail.Entry{Key: "fence:key", Token: token, Record: idemmail.Record{State: idemmail.StateDone}})
	refused(idemmail.Entry{Key: "fence:missing", Token: token, Record: pending.Record})

	require.NoError(t, s.Complete(ctx, "fence:key", token, unknown("x"), time.Hour))
	refused(pending) // it is done meanwhile
	done := lookup("fence:key")
	require.NoError(t, s.Resolve(ctx, done, sent("found").Receipt, time.Minute))
	resolved := lookup("fence:key")
	require.NotEqual(t, token, resolved.Token, "a new token")
	require.Equal(t, "1:x", resolved.Record.Fingerprint, "the record's fingerprint")
	require.Equal(t, "found", resolved.Record.Receipt.ProviderID)
	require.Equal(t, idemmail.StateDone, resolved.Record.State)
	require.WithinDuration(t, time.Now().Add(time.Minute), resolved.ExpiresAt, 30*time.Second)
	refused(done)
	require.ErrorIs(t, s.Complete(ctx, "fence:key", token, sent("x"), time.Hour), idemmail.ErrLeaseLost, "the first owner is late")

	require.NoError(t, s.Forget(ctx, resolved))
	require.Nil(t, stored(t, coll, "fence:key"))
	refused(resolved)

	reserve(t, s, "fence:expired", time.Minute)
	expired := lookup("fence:expired")
	s.Advance(time.Hour)
	refused(expired)
	gone, err := s.Lookup(ctx, "fence:expired")
	require.NoError(t, err)
	require.Nil(t, gone)

	reserve(t, s, "fence:pending", idemmail.NoExpiry)
	require.NoError(t, s.Resolve(ctx, lookup("fence:pending"), nil, idemmail.NoExpiry), "a bare receipt")
	bare := lookup("fence:pending")
	require.Equal(t, idemmail.StatusSent, bare.Record.Receipt.Status)
	require.Zero(t, bare.ExpiresAt)
}
