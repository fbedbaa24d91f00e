package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/internal/testserver"
	"github.com/idemmail/idemmail/mongostore"
)

const (
	mongoFirst    = "first send, 1 KB, against two bare updates"
	mongoReplay   = "replay, 1 KB, against a bare update and find"
	mongoInFlight = "in-flight answer, 1 KB, against the same"
)

func mongoChapter() chapter {
	return chapter{
		title: "MongoDB",
		text: "`IdempotencyTransport` on a `mongostore.Store` over a transport that does nothing, against bare commands of the driver. " +
			"Where there is no MongoDB, a stand-in in its place says what the client costs, and nothing about the server.",
		rows: []row{
			{id: "M1", what: "commands: 1 to reserve, 1 to complete, 2 for a replay; no more for a batch", test: "TestCommands"},
			{what: mongoFirst},
			{what: mongoReplay},
			{what: mongoInFlight},
			{what: batchRow(100, "")},
			{what: turnRow(100, "")},
		},
		measure: measureMongo,
	}
}

func measureMongo(t testing.TB, s scale, f *findings) {
	server := testserver.Mongo(t)
	client, err := mongo.Connect(options.Client().ApplyURI(server.URI))
	must(t, err)
	database := client.Database(fmt.Sprintf("idemmail_bench_%d", os.Getpid()))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		database.Drop(ctx) // the server may be somebody's
		client.Disconnect(ctx)
	})
	f.versions = append(f.versions, mongoVersion(t, database))
	keys := database.Collection("keys")
	store := mongostore.New(keys, mongostore.Options{})
	floor := mongoFloor{database.Collection("floor")}

	// The stand-in looks at every document for many filters, so that what the
	// ways cost would depend on how many each has left behind.
	filling := s
	filling.clean = func() {
		for _, coll := range []*mongo.Collection{keys, floor.coll} {
			_, err := coll.DeleteMany(t.Context(), bson.D{})
			must(t, err)
		}
	}
	taken := filling.compare(t, s.slow, floor.sends(t), sends(t, guarded(t, transport, store), kilobyte))
	f.add(t, mongoFirst, taken[1].over(taken[0]))
	filling.batch = s.batch[:1] // more would need more memory than the stand-in has
	measureBatches(t, filling, s.slow/4+1, f, store, "")
	filling.clean()

	replays, inFlight := repeatedSends(t, store, 100)
	repeats := floor.repeats(t)
	taken = s.compare(t, s.slow, repeats, replays, inFlight)
	f.add(t, mongoReplay, taken[1].over(taken[0]))
	f.add(t, mongoInFlight, taken[2].over(taken[0]))
}

func mongoVersion(t testing.TB, database *mongo.Database) string {
	if _, err := exec.LookPath("mongod"); err != nil && os.Getenv("MONGODB_URI") == "" {
		return "mongo-java-server in place of MongoDB"
	}
	var info struct{ Version string }
	must(t, database.RunCommand(t.Context(), bson.D{{Key: "buildInfo", Value: 1}}).Decode(&info))
	return "MongoDB " + info.Version
}

// A mongoFloor is the commands that a send cannot do without.
type mongoFloor struct{ coll *mongo.Collection }

func (f mongoFloor) document(key, state string, receipt *idemmail.Receipt) bson.D {
	now := time.Now()
	return bson.D{
		{Key: "_id", Value: key}, {Key: "state", Value: state}, {Key: "token", Value: someToken},
		{Key: "fingerprint", Value: someFingerprint}, {Key: "at", Value: now}, {Key: "expires", Value: now.Add(ttl)},
		{Key: "receipt", Value: receipt},
	}
}

// reserve puts a document where there is none, or one that has expired.
func (f mongoFloor) reserve(ctx context.Context, key string) error {
	filter := bson.D{{Key: "_id", Value: key}, {Key: "expires", Value: bson.D{{Key: "$lte", Value: time.Now()}}}}
	_, err := f.coll.ReplaceOne(ctx, filter, f.document(key, "pending", nil), options.Replace().SetUpsert(true))
	return err
}

func (f mongoFloor) complete(ctx context.Context, key string) error {
	filter := bson.D{{Key: "_id", Value: key}, {Key: "token", Value: someToken}}
	_, err := f.coll.ReplaceOne(ctx, filter, f.document(key, "done", theReceipt))
	return err
}

func (f mongoFloor) sends(t testing.TB) way {
	return newKeys(func(key string) {
		must(t, f.reserve(t.Context(), key))
		must(t, f.complete(t.Context(), key))
	})
}

// repeats are sends of keys that are done.
func (f mongoFloor) repeats(t testing.TB) way {
	var keys fresh
	keys.prepare(100)
	for _, key := range keys.keys {
		must(t, f.reserve(t.Context(), key))
		must(t, f.complete(t.Context(), key))
	}
	return eachOf(keys.keys, func(key string) {
		if err := f.reserve(t.Context(), key); !mongo.IsDuplicateKeyError(err) {
			t.Fatal("a key that is held can be reserved: ", err)
		}
		var held struct{ Receipt idemmail.Receipt }
		must(t, f.coll.FindOne(t.Context(), bson.D{{Key: "_id", Value: key}}).Decode(&held))
	})
}
