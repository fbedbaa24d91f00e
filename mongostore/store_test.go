package mongostore_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/mongostore"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// touches calls everything that may write to the key, and answers the errors.
func touches(s *mongostore.Store, key, token string) map[string]error {
	ctx := context.Background()
	entry := idemmail.Entry{Key: key, Token: token, Record: idemmail.Record{State: idemmail.StatePending}}
	_, _, reserved := s.Reserve(ctx, key, "1:x", time.Hour)
	_, lookup := s.Lookup(ctx, key)
	many := s.ReserveMany(ctx, []idemmail.ReserveRequest{{Key: "bad:other", Fingerprint: "1:x", Lease: 1}, {Key: key, Fingerprint: "1:x", Lease: time.Hour}})
	return map[string]error{
		"reserve":      reserved,
		"reserve many": many[1].Err,
		"complete":     s.Complete(ctx, key, token, sent(key), time.Hour),
		"release":      s.Release(ctx, key, token),
		"renew":        s.Renew(ctx, key, token, time.Hour),
		"lookup":       lookup,
		"resolve":      s.Resolve(ctx, entry, sent(key).Receipt, time.Hour),
		"forget":       s.Forget(ctx, entry),
	}
}

func TestForeignDocumentsAreBadRecordsAndUntouched(t *testing.T) {
	coll := collection(t, server(t).URI)
	s := newStore(coll)
	past := bson.NewDateTimeFromTime(time.Now().Add(-time.Hour))
	for state, good := range map[string]bson.D{
		"pending": {{Key: "idemmail", Value: int32(1)}, {Key: "state", Value: "pending"}, {Key: "token", Value: "mine"},
			{Key: "fingerprint", Value: "1:x"}, {Key: "at", Value: past}, {Key: "expires", Value: past + 1}},
		"done": {{Key: "idemmail", Value: int32(1)}, {Key: "state", Value: "done"}, {Key: "token", Value: "mine"},
			{Key: "fingerprint", Value: "1:x"}, {Key: "at", Value: past}, {Key: "expires", Value: past + 1},
			{Key: "receipt", Value: bson.D{{Key: "status", Value: "sent"}}}},
	} {
		foreign := map[string]bson.D{
			"empty":                  {},
			"another application's":  {{Key: "expires", Value: past}, {Key: "token", Value: "mine"}, {Key: "state", Value: "pending"}},
			"of a later format":      with(good, "idemmail", int32(2)),
			"of a later state":       with(good, "state", "scheduled"),
			"state of another type":  with(good, "state", int32(1)),
			"token of another type":  with(good, "token", int32(1)),
			"fingerprint is missing": with(good, "fingerprint", nil),
			"at of another type":     with(good, "at", "yesterday"),
			"expires a number":       with(good, "expires", int64(past)),
			"expires a string":       with(good, "expires", "yesterday"),
			"expires null":           with(good, "expires", nil),
		}
		if state == "done" {
			foreign["receipt of another type"] = with(good, "receipt", "{}")
			foreign["receipt without a status"] = with(good, "receipt", bson.D{})
		}
		n := 0
		for name, doc := range foreign {
			t.Run(state+" "+name, func(t *testing.T) {
				n++
				key := fmt.Sprintf("bad:%s/%d", state, n)
				doc := append(bson.D{{Key: "_id", Value: key}}, doc...)
				_, err := coll.InsertOne(t.Context(), doc)
				require.NoError(t, err)
				before := stored(t, coll, key)
				token := "another's"
				if strings.Contains(name, "state") || strings.Contains(name, "format") || strings.Contains(name, "application") {
					token = "mine" // fits, and helps nothing
				}
				for what, err := range touches(s, key, token) {
					require.ErrorIs(t, err, idemmail.ErrBadRecord, what)
					require.ErrorContains(t, err, key)
				}
				require.Equal(t, before, stored(t, coll, key))
			})
		}
		t.Run(state+" of ours, for comparison", func(t *testing.T) {
			_, err := coll.InsertOne(t.Context(), append(bson.D{{Key: "_id", Value: "good:" + state}}, good...))
			require.NoError(t, err)
			reserve(t, s, "good:"+state, time.Minute)
		})
	}
}

func with(doc bson.D, name string, value any) bson.D {
	doc = append(bson.D{}, doc...)
	for i := range doc {
		if doc[i].Key == name {
			doc[i].Value = value
		}
	}
	return doc
}

func TestTakenOverRecordShowsNothingOfTheOld(t *testing.T) {
	coll := collection(t, server(t).URI)
	s := newStore(coll)
	token := reserve(t, s, "old:key", time.Minute)
	require.NoError(t, s.Complete(t.Context(), "old:key", token, unknown("old:key"), time.Minute))
	_, err := coll.UpdateOne(t.Context(), bson.D{{Key: "_id", Value: "old:key"}},
		bson.D{{Key: "$set", Value: bson.D{{Key: "later", Value: "a field of a later version"}}}})
	require.NoError(t, err)

	s.Advance(time.Hour)
	fresh, held, err := s.Reserve(t.Context(), "old:key", "1:new", idemmail.NoExpiry)
	require.NoError(t, err)
	require.Nil(t, held)
	require.NotEqual(t, token, fresh)
	doc := stored(t, coll, "old:key")
	var names []string
	for _, e := range doc {
		names = append(names, e.Key)
	}
	require.Equal(t, []string{"_id", "idemmail", "state", "token", "fingerprint", "at"}, names)
}

func TestLateOwnerLeavesTheNewOneAlone(t *testing.T) {
	coll := collection(t, server(t).URI)
	s := newStore(coll)
	old := reserve(t, s, "late:key", time.Minute)
	s.Advance(time.Hour)
	expired := stored(t, coll, "late:key")
	require.ErrorIs(t, s.Renew(t.Context(), "late:key", old, time.Hour), idemmail.ErrLeaseLost, "its time has passed, though nobody has taken it")
	require.Equal(t, expired, stored(t, coll, "late:key"))
	reserve(t, s, "late:key", time.Minute)
	before := stored(t, coll, "late:key")
	require.ErrorIs(t, s.Complete(t.Context(), "late:key", old, sent("late:key"), time.Hour), idemmail.ErrLeaseLost)
	require.ErrorIs(t, s.Release(t.Context(), "late:key", old), idemmail.ErrLeaseLost)
	require.ErrorIs(t, s.Renew(t.Context(), "late:key", old, time.Hour), idemmail.ErrLeaseLost)
	require.Equal(t, before, stored(t, coll, "late:key"))

	s.Advance(time.Hour) // the new owner's time has passed too: nothing holds the key
	require.ErrorIs(t, s.Renew(t.Context(), "late:key", old, time.Hour), idemmail.ErrLeaseLost)
	require.NoError(t, s.Release(t.Context(), "late:key", old))
	require.NoError(t, s.Complete(t.Context(), "late:key", old, sent("late:key"), time.Hour))
}

func TestSecondUniqueIndexEndsInAnError(t *testing.T) {
	coll := collection(t, server(t).URI)
	_, err := coll.Indexes().CreateOne(t.Context(), mongo.IndexModel{
		Keys: bson.D{{Key: "fingerprint", Value: 1}}, Options: options.Index().SetUnique(true)})
	require.NoError(t, err)
	s := newStore(coll)
	_, _, err = s.Reserve(t.Context(), "unique:a", "1:same", time.Minute)
	require.NoError(t, err)

	token, held, err := s.Reserve(t.Context(), "unique:b", "1:same", time.Minute)
	require.ErrorContains(t, err, "second unique index")
	require.Empty(t, token)
	require.Nil(t, held)
	require.Nil(t, stored(t, coll, "unique:b"))

	other := reserve(t, s, "unique:c", time.Minute)
	rec := sent("unique:c")
	rec.Fingerprint = "1:same"
	require.ErrorContains(t, s.Complete(t.Context(), "unique:c", other, rec, time.Hour), "second unique index")
	require.ErrorContains(t, s.Complete(t.Context(), "unique:d", "token", rec, time.Hour), "second unique index")

	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, _, err = s.Reserve(ctx, "unique:b", "1:same", time.Minute)
	require.ErrorIs(t, err, context.DeadlineExceeded, "the loop ends with the context")
}

// A record that holds the key when the upsert collides, and does not when it is
// read.
func TestVanishedBetweenCollisionAndRead(t *testing.T) {
	srv := server(t)
	var vanish func()
	coll := collection(t, srv.URI, options.Client().SetMonitor(&event.CommandMonitor{
		Started: func(_ context.Context, e *event.CommandStartedEvent) {
			if e.CommandName == "find" && vanish != nil {
				v := vanish
				vanish = nil
				v()
			}
		},
	}))
	aside := same(t, srv.URI, coll)
	id := bson.D{{Key: "_id", Value: "gone:key"}}
	ways := map[string]func(){
		"freed": func() { aside.DeleteOne(context.Background(), id) },
		"expired": func() {
			past := time.Now().Add(-time.Hour)
			aside.UpdateOne(context.Background(), id, bson.D{{Key: "$set", Value: bson.D{{Key: "at", Value: past}, {Key: "expires", Value: past.Add(1)}}}})
		},
	}
	s := newStore(coll)
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			_, err := aside.DeleteMany(t.Context(), bson.D{})
			require.NoError(t, err)
			reserve(t, s, "gone:key", time.Minute)
			vanish = way
			reserve(t, s, "gone:key", time.Minute)
			vanish = way
			require.NoError(t, s.Complete(t.Context(), "gone:key", "another", sent("gone:key"), time.Hour), "nothing holds it any more")
		})
	}
}

func TestDurations(t *testing.T) {
	coll := collection(t, server(t).URI)
	s := newStore(coll)
	ctx := t.Context()
	for _, d := range []time.Duration{0, -2, -time.Hour, math.MinInt64} {
		_, _, err := s.Reserve(ctx, "time:none", "1:x", d)
		require.Error(t, err)
		require.Error(t, s.Complete(ctx, "time:none", "token", sent("time:none"), d))
		require.Nil(t, stored(t, coll, "time:none"))
	}
	token := reserve(t, s, "time:held", time.Minute)
	before := stored(t, coll, "time:held")
	for _, d := range []time.Duration{0, -2} {
		require.Error(t, s.Renew(ctx, "time:held", token, d))
		require.Error(t, s.Complete(ctx, "time:held", token, sent("time:held"), d))
		entry, err := s.Lookup(ctx, "time:held")
		require.NoError(t, err)
		require.Error(t, s.Resolve(ctx, *entry, sent("time:held").Receipt, d))
	}
	require.Equal(t, before, stored(t, coll, "time:held"))

	for key, d := range map[string]time.Duration{"time:huge": math.MaxInt64, "time:ever": idemmail.NoExpiry} {
		reserve(t, s, key, d)
		_, held, err := s.Reserve(ctx, key, "1:x", time.Minute)
		require.NoError(t, err)
		require.NotNil(t, held)
	}
	entry, err := s.Lookup(ctx, "time:ever")
	require.NoError(t, err)
	require.Zero(t, entry.ExpiresAt)
	for _, e := range stored(t, coll, "time:ever") {
		require.NotEqual(t, "expires", e.Key, "the TTL index leaves it alone")
	}
	entry, err = s.Lookup(ctx, "time:huge")
	require.NoError(t, err)
	require.Greater(t, entry.ExpiresAt.Year(), 2300)

	// From ever to a lease and back, by renewing.
	token = reserve(t, s, "time:renewed", idemmail.NoExpiry)
	require.NoError(t, s.Renew(ctx, "time:renewed", token, time.Minute))
	entry, err = s.Lookup(ctx, "time:renewed")
	require.NoError(t, err)
	require.NotZero(t, entry.ExpiresAt)
	require.NoError(t, s.Renew(ctx, "time:renewed", token, idemmail.NoExpiry))
	entry, err = s.Lookup(ctx, "time:renewed")
	require.NoError(t, err)
	require.Zero(t, entry.ExpiresAt)
}

func TestKeysAreExact(t *testing.T) {
	coll := collection(t, server(t).URI)
	s := newStore(coll)
	keys := []string{
		"odd:$set", "$set", "odd:a.b", "odd:a", "odd:A", "odd:*", "odd:[a]", "odd:{a}", "odd:\U0001F600", "odd:é", "odd:e\u0301",
		"odd:", "odd: ", "odd:^a", "odd:" + strings.Repeat("x", 508),
	}
	for _, key := range keys {
		reserve(t, s, key, time.Minute)
	}
	for _, key := range keys {
		_, held, err := s.Reserve(t.Context(), key, "1:x", time.Minute)
		require.NoError(t, err)
		require.Equal(t, "1:"+key, held.Fingerprint)
	}
	_, _, err := s.Reserve(t.Context(), "odd:\xff", "1:x", time.Minute)
	require.Error(t, err)
	_, _, err = s.Reserve(t.Context(), "odd:x", "\xff", time.Minute)
	require.Error(t, err, "a fingerprint that would not come back as it is")
}

// Codecs and options of the caller's client change nothing in the documents.
func TestReceiptSurvivesWhateverTheClientsCodecs(t *testing.T) {
	srv := server(t)
	codecs := bson.NewRegistry()
	refuse := func(bson.EncodeContext, bson.ValueWriter, reflect.Value) error {
		return errors.New("the client's codec")
	}
	codecs.RegisterTypeEncoder(reflect.TypeFor[idemmail.Receipt](), bson.ValueEncoderFunc(refuse))
	coll := collection(t, srv.URI, options.Client().SetRegistry(codecs).SetBSONOptions(&options.BSONOptions{
		NilSliceAsEmpty: true, UseJSONStructTags: true, UseLocalTimeZone: true,
		NilMapAsEmpty: true, DefaultDocumentM: true, IntMinSize: true, OmitZeroStruct: true,
	}))
	s := newStore(coll)
	at := time.Date(2026, 3, 4, 5, 6, 7, 89e6, time.UTC)
	for i, r := range []idemmail.Receipt{
		{Status: idemmail.StatusSent},
		{Status: idemmail.StatusSent, Accepted: []string{}, Rejected: []idemmail.Rejection{}, At: at},
		{Status: idemmail.StatusUnknown, Transport: "t", MessageID: "m", ProviderID: "p", Response: "250 \x00\r\n\u2028\U0001F600",
			Accepted: []string{"a", ""}, Rejected: []idemmail.Rejection{{Address: "b", Reason: "r", Code: 550}, {}},
			At: at, Code: "c", Category: idemmail.CategoryTimeout, Retryable: true, Detail: "{\"$set\": 1}"},
	} {
		key := fmt.Sprintf("codec:%d", i)
		token := reserve(t, s, key, time.Minute)
		require.NoError(t, s.Complete(t.Context(), key, token, idemmail.Record{State: idemmail.StateDone, Fingerprint: "c:$x.y\x00", Receipt: &r}, time.Hour))
		_, held, err := s.Reserve(t.Context(), key, "1:x", time.Minute)
		require.NoError(t, err)
		require.Equal(t, r, *held.Receipt)
		require.Equal(t, "c:$x.y\x00", held.Fingerprint)
		require.Equal(t, time.UTC, held.Receipt.At.Location())

		entry, err := s.Lookup(t.Context(), key)
		require.NoError(t, err)
		r.Status = idemmail.StatusSent // nothing else resolves a key
		require.NoError(t, s.Resolve(t.Context(), *entry, &r, time.Hour))
		_, held, err = s.Reserve(t.Context(), key, "1:x", time.Minute)
		require.NoError(t, err)
		require.Equal(t, r, *held.Receipt)
	}
}

func TestEnsureIndexes(t *testing.T) {
	coll := collection(t, server(t).URI)
	s := newStore(coll)
	require.NoError(t, s.EnsureIndexes(t.Context()))
	require.NoError(t, s.EnsureIndexes(t.Context()), "again")
	indexes, err := coll.Indexes().ListSpecifications(t.Context())
	require.NoError(t, err)
	require.Len(t, indexes, 2)
	token := reserve(t, s, "index:key", time.Minute)
	require.NoError(t, s.Release(t.Context(), "index:key", token))
}

func TestManyKeysOfEachFate(t *testing.T) {
	coll := collection(t, server(t).URI)
	s := newStore(coll)
	ctx := t.Context()
	_, err := coll.InsertOne(ctx, bson.D{{Key: "_id", Value: "many:foreign"}})
	require.NoError(t, err)
	gone := reserve(t, s, "many:gone", time.Minute)
	s.Advance(time.Hour)
	held := reserve(t, s, "many:held", time.Minute)
	done := reserve(t, s, "many:done", time.Minute)
	require.NoError(t, s.Complete(ctx, "many:done", done, sent("many:done"), time.Hour))

	reserved := s.ReserveMany(ctx, []idemmail.ReserveRequest{
		{Key: "many:free", Fingerprint: "1:a", Lease: time.Minute},
		{Key: "many:foreign", Fingerprint: "1:a", Lease: time.Minute},
		{Key: "many:held", Fingerprint: "1:a", Lease: time.Minute},
		{Key: "many:zero", Fingerprint: "1:a", Lease: 0},
		{Key: "many:done", Fingerprint: "1:a", Lease: time.Minute},
		{Key: "many:gone", Fingerprint: "1:a", Lease: time.Minute},
	})
	require.NotEmpty(t, reserved[0].Token)
	require.ErrorIs(t, reserved[1].Err, idemmail.ErrBadRecord)
	require.Equal(t, idemmail.StatePending, reserved[2].Held.State)
	require.Error(t, reserved[3].Err)
	require.Equal(t, "many:done", reserved[4].Held.Receipt.ProviderID)
	require.NotEmpty(t, reserved[5].Token)
	require.Nil(t, stored(t, coll, "many:zero"))

	renewed := s.RenewMany(ctx, []idemmail.RenewRequest{
		{Key: "many:free", Token: reserved[0].Token, Lease: time.Hour},
		{Key: "many:foreign", Token: "x", Lease: time.Hour},
		{Key: "many:held", Token: "another's", Lease: time.Hour},
		{Key: "many:done", Token: done, Lease: time.Hour},
		{Key: "many:missing", Token: "x", Lease: time.Hour},
		{Key: "many:held", Token: held, Lease: 0},
	})
	require.NoError(t, renewed[0])
	require.ErrorIs(t, renewed[1], idemmail.ErrBadRecord)
	for _, err := range renewed[2:5] {
		require.ErrorIs(t, err, idemmail.ErrLeaseLost)
	}
	require.Error(t, renewed[5])

	completed := s.CompleteMany(ctx, []idemmail.CompleteRequest{
		{Key: "many:free", Token: reserved[0].Token, Record: sent("many:free"), TTL: time.Hour},
		{Key: "many:gone", Token: gone, Record: sent("x"), TTL: time.Hour},
		{Key: "many:new", Token: "token", Record: sent("many:new"), TTL: time.Hour},
		{Key: "many:foreign", Token: "x", Record: sent("x"), TTL: time.Hour},
		{Key: "many:bare", Token: "x", Record: idemmail.Record{State: idemmail.StateDone}, TTL: time.Hour},
	})
	require.NoError(t, completed[0])
	require.ErrorIs(t, completed[1], idemmail.ErrLeaseLost)
	require.NoError(t, completed[2])
	require.ErrorIs(t, completed[3], idemmail.ErrBadRecord)
	require.Error(t, completed[4])

	released := s.ReleaseMany(ctx, []idemmail.ReleaseRequest{
		{Key: "many:free", Token: reserved[0].Token},
		{Key: "many:gone", Token: reserved[5].Token},
		{Key: "many:missing", Token: "x"},
		{Key: "many:foreign", Token: "x"},
		{Key: "many:held", Token: held},
	})
	require.ErrorIs(t, released[0], idemmail.ErrLeaseLost, "done")
	require.NoError(t, released[1])
	require.NoError(t, released[2])
	require.ErrorIs(t, released[3], idemmail.ErrBadRecord)
	require.NoError(t, released[4])
	require.Nil(t, stored(t, coll, "many:held"))
	require.Equal(t, bson.D{{Key: "_id", Value: "many:foreign"}}, stored(t, coll, "many:foreign"))
	require.Empty(t, s.ReserveMany(ctx, nil))
	require.Empty(t, s.ReleaseMany(ctx, nil))
}

func TestMoreKeysThanOneCommandTakes(t *testing.T) {
	s := newStore(collection(t, server(t).URI))
	var reqs []idemmail.ReserveRequest
	for i := range 2500 {
		reqs = append(reqs, idemmail.ReserveRequest{Key: fmt.Sprintf("huge:%d", i), Fingerprint: fmt.Sprint(i), Lease: time.Minute})
	}
	for i := 3; i < len(reqs); i += 100 {
		reserve(t, s, reqs[i].Key, time.Minute)
	}
	for i, r := range s.ReserveMany(t.Context(), reqs) {
		require.NoError(t, r.Err)
		require.Equal(t, i%100 == 3, r.Held != nil, i)
		require.Equal(t, i%100 != 3, r.Token != "", i)
	}
}
