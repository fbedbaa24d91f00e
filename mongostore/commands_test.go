package mongostore_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/idemmail/idemmail"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"
)

// A recorder keeps the commands that a client sends.
type recorder struct {
	mu       sync.Mutex
	commands []bson.Raw
}

func (r *recorder) monitor() *event.CommandMonitor {
	return &event.CommandMonitor{Started: func(_ context.Context, e *event.CommandStartedEvent) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.commands = append(r.commands, slices.Clone(e.Command))
	}}
}

// take answers the commands since the last take.
func (r *recorder) take() []bson.Raw {
	r.mu.Lock()
	defer r.mu.Unlock()
	commands := r.commands
	r.commands = nil
	return commands
}

func name(command bson.Raw) string { return command.Index(0).Key() }

func names(commands []bson.Raw) []string {
	list := []string{}
	for _, c := range commands {
		list = append(list, name(c))
	}
	return list
}

func TestCommands(t *testing.T) {
	var r recorder
	coll := collection(t, server(t).URI, options.Client().SetMonitor(r.monitor()))
	s := newStore(coll)
	ctx := t.Context()
	require.Empty(t, r.take(), "New sends nothing")
	reserve(t, s, "count:first", time.Minute)
	first := names(r.take())
	require.Equal(t, "hello", first[0], "the first call learns the server's time")
	require.Equal(t, "update", first[len(first)-1])

	expect := func(what string, commands ...string) {
		t.Helper()
		require.Equal(t, commands, names(r.take()), what)
	}
	token := reserve(t, s, "count:key", time.Minute)
	expect("a free key", "update")
	_, held, err := s.Reserve(ctx, "count:key", "1:x", time.Minute)
	require.NoError(t, err)
	require.NotNil(t, held)
	expect("a held key", "update", "find")
	require.NoError(t, s.Renew(ctx, "count:key", token, time.Hour))
	expect("renew", "update")
	require.NoError(t, s.Complete(ctx, "count:key", token, unknown("count:key"), time.Minute))
	expect("complete", "update")
	_, held, err = s.Reserve(ctx, "count:key", "1:x", time.Minute)
	require.NoError(t, err)
	require.NotNil(t, held.Receipt)
	expect("a replay", "update", "find")
	require.ErrorIs(t, s.Release(ctx, "count:key", token), idemmail.ErrLeaseLost)
	expect("a release that is refused", "delete", "find")
	require.ErrorIs(t, s.Complete(ctx, "count:key", "another", sent("x"), time.Minute), idemmail.ErrLeaseLost)
	expect("a complete that is refused", "update", "find")
	entry, err := s.Lookup(ctx, "count:key")
	require.NoError(t, err)
	expect("lookup", "find")
	require.NoError(t, s.Resolve(ctx, *entry, sent("x").Receipt, time.Minute))
	expect("resolve", "update")
	entry, err = s.Lookup(ctx, "count:key")
	require.NoError(t, err)
	require.NoError(t, s.Forget(ctx, *entry))
	expect("forget", "find", "delete")
	token = reserve(t, s, "count:key", time.Minute)
	r.take()
	require.NoError(t, s.Release(ctx, "count:key", token))
	expect("release", "delete")
	require.NoError(t, s.Release(ctx, "count:key", token))
	expect("release of a key that nothing holds", "delete", "find")
	reserve(t, s, "count:expired", time.Minute)
	r.take()
	s.Advance(time.Hour)
	reserve(t, s, "count:expired", time.Minute)
	commands := names(r.take())
	require.Equal(t, "update", commands[len(commands)-1], "an expired key")

	done, cancel := context.WithCancel(ctx)
	cancel()
	_, _, err = s.Reserve(done, "count:done", "1:x", time.Minute)
	require.ErrorIs(t, err, context.Canceled)
	require.Empty(t, r.take(), "an ended context")
}

func TestCommandsOfABatch(t *testing.T) {
	var r recorder
	s := newStore(collection(t, server(t).URI, options.Client().SetMonitor(r.monitor())))
	reserve(t, s, "warm", time.Minute)
	ctx := t.Context()
	for _, n := range []int{2, 10, 300} {
		var reserves []idemmail.ReserveRequest
		var renews []idemmail.RenewRequest
		var completes []idemmail.CompleteRequest
		var releases []idemmail.ReleaseRequest
		for i := range n {
			reserves = append(reserves, idemmail.ReserveRequest{Key: fmt.Sprintf("batch%d:%d", n, i), Fingerprint: "1:x", Lease: time.Minute})
		}
		r.take()
		for i, got := range s.ReserveMany(ctx, reserves) {
			require.NoError(t, got.Err)
			key := reserves[i].Key
			renews = append(renews, idemmail.RenewRequest{Key: key, Token: got.Token, Lease: time.Minute})
			if i%2 == 0 {
				completes = append(completes, idemmail.CompleteRequest{Key: key, Token: got.Token, Record: sent(key), TTL: time.Hour})
			} else {
				releases = append(releases, idemmail.ReleaseRequest{Key: key, Token: got.Token})
			}
		}
		require.Equal(t, []string{"update"}, names(r.take()))
		noErrors(t, s.RenewMany(ctx, renews))
		require.Equal(t, []string{"update"}, names(r.take()))
		noErrors(t, s.CompleteMany(ctx, completes))
		require.Equal(t, []string{"update"}, names(r.take()))

		for _, got := range s.ReserveMany(ctx, reserves) {
			require.NoError(t, got.Err)
			require.NotNil(t, got.Held)
		}
		commands := r.take()
		require.Equal(t, []string{"update", "find"}, names(commands))
		require.Greater(t, commands[1].Lookup("batchSize").AsInt64(), int64(n), "no getMore")
		noErrors(t, s.ReleaseMany(ctx, releases))
		require.Equal(t, []string{"delete"}, names(r.take()))
		noErrors(t, s.ReleaseMany(ctx, releases))
		require.Equal(t, []string{"delete", "find"}, names(r.take()))
	}
}

func noErrors(t *testing.T, errs []error) {
	t.Helper()
	for _, err := range errs {
		require.NoError(t, err)
	}
}

// Whatever the defaults of client and collection: writes wait for a majority,
// reads go to the primary, every filter names its keys, and nothing is used
// that a service of MongoDB 4's protocol may lack.
func TestEveryCommandIsSafe(t *testing.T) {
	p := newProxy(t, server(t).URI)
	p.replicaSet = true // a driver that talks to one server alone leaves these things out
	secondary := readpref.SecondaryPreferred()
	unsafe := writeconcern.Unacknowledged()
	for where, opts := range map[string]*options.ClientOptions{
		"client":     options.Client().SetWriteConcern(unsafe).SetReadPreference(secondary).SetReadConcern(readconcern.Available()),
		"collection": options.Client(),
	} {
		t.Run(where, func(t *testing.T) {
			var r recorder
			coll := collection(t, p.URI+"/?replicaSet=rs", opts, options.Client().SetMonitor(r.monitor()))
			if where == "collection" {
				coll = coll.Clone(options.Collection().SetWriteConcern(unsafe).SetReadPreference(secondary).SetReadConcern(readconcern.Majority()))
				require.True(t, coll.FindOne(t.Context(), bson.D{}).Err() == mongo.ErrNoDocuments)
				require.Equal(t, "secondaryPreferred", r.take()[0].Lookup("$readPreference", "mode").StringValue(), "the test sees it")
			}
			s := newStore(coll)
			ctx := t.Context()
			require.NoError(t, s.EnsureIndexes(ctx))
			token := reserve(t, s, "safe:key", time.Minute)
			s.ReserveMany(ctx, []idemmail.ReserveRequest{{Key: "safe:key", Fingerprint: "1:x", Lease: time.Minute}, {Key: "safe:new", Fingerprint: "1:x", Lease: time.Minute}})
			s.ReserveMany(ctx, []idemmail.ReserveRequest{{Key: "safe:key", Fingerprint: "1:x", Lease: time.Minute}, {Key: "safe:new", Fingerprint: "1:x", Lease: time.Minute}})
			require.NoError(t, s.Renew(ctx, "safe:key", token, time.Hour))
			require.NoError(t, s.Renew(ctx, "safe:key", token, idemmail.NoExpiry))
			require.NoError(t, s.Complete(ctx, "safe:key", token, unknown("x"), time.Hour))
			require.Error(t, s.Release(ctx, "safe:key", token))
			entry, err := s.Lookup(ctx, "safe:key")
			require.NoError(t, err)
			for _, err := range s.Unsettled(ctx, "safe:", 0) {
				require.NoError(t, err)
			}
			require.NoError(t, s.Resolve(ctx, *entry, nil, time.Hour))
			require.Error(t, s.Forget(ctx, *entry))

			for _, c := range r.take() {
				switch name(c) {
				case "update", "delete", "createIndexes":
					require.Equal(t, "majority", c.Lookup("writeConcern", "w").StringValue(), c)
				case "find":
					require.Equal(t, "local", c.Lookup("readConcern", "level").StringValue(), c)
				case "hello", "isMaster":
				default:
					t.Errorf("unexpected command %s", c)
				}
				if mode, err := c.LookupErr("$readPreference", "mode"); err == nil { // it is left out for the primary
					require.Equal(t, "primary", mode.StringValue(), c)
				}
				for _, list := range []string{"updates", "deletes"} {
					if items, ok := c.Lookup(list).ArrayOK(); ok {
						values, err := items.Values()
						require.NoError(t, err)
						for _, item := range values {
							require.Equal(t, bson.TypeString, item.Document().Lookup("q", "_id").Type, item)
						}
					}
				}
				if name(c) == "find" {
					_, err := c.LookupErr("filter", "_id")
					require.NoError(t, err, c)
				}
				for _, op := range operators(c) {
					require.Contains(t, []string{"$set", "$unset", "$or", "$lte", "$gte", "$gt", "$lt", "$in", "$ne", "$db", "$readPreference", "$clusterTime"}, op, c)
				}
			}
		})
	}
}

// operators answers the names in the document that begin with a dollar sign.
func operators(doc bson.Raw) (list []string) {
	elements, _ := doc.Elements()
	for _, e := range elements {
		if strings.HasPrefix(e.Key(), "$") {
			list = append(list, e.Key())
		}
		if inner, ok := e.Value().DocumentOK(); ok {
			list = append(list, operators(inner)...)
		}
		if inner, ok := e.Value().ArrayOK(); ok {
			list = append(list, operators(bson.Raw(inner))...)
		}
	}
	return list
}

// A reservation within the caller's transaction would not stand until that is
// committed, and vanish with its abortion.
func TestSessionOfTheContextIsLeftAlone(t *testing.T) {
	var r recorder
	p := newProxy(t, server(t).URI)
	p.replicaSet = true
	coll := collection(t, p.URI+"/?replicaSet=rs", options.Client().SetMonitor(r.monitor()))
	s := newStore(coll)
	session, err := coll.Database().Client().StartSession()
	require.NoError(t, err)
	require.NoError(t, session.StartTransaction())
	ctx := mongo.NewSessionContext(t.Context(), session)

	token, _, err := s.Reserve(ctx, "session:key", "1:x", time.Minute)
	require.NoError(t, err)
	_, held, err := s.Reserve(ctx, "session:key", "1:x", time.Minute)
	require.NoError(t, err)
	require.NotNil(t, held)
	require.NoError(t, s.Complete(ctx, "session:key", token, unknown("x"), time.Minute))
	for _, err := range s.Unsettled(ctx, "session:", 0) {
		require.NoError(t, err)
	}
	require.NoError(t, s.EnsureIndexes(ctx))
	for _, c := range r.take() {
		for _, field := range []string{"startTransaction", "autocommit"} {
			_, err := c.LookupErr(field)
			require.Error(t, err, c)
		}
	}
	session.EndSession(t.Context())
}
