package testserver_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/idemmail/idemmail/internal/testserver"
)

// A reader sees a document as it was before an update or after it, whatever
// stands in for MongoDB: the tests of what several clients see build on it.
func TestMongoShowsNoHalfOfAnUpdate(t *testing.T) {
	client, err := mongo.Connect(options.Client().ApplyURI(testserver.Mongo(t).URI))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Disconnect(context.Background())
	database := client.Database("idemmail_testserver")
	defer database.Drop(context.Background())
	coll := database.Collection("halves")

	const fields, updates = 100, 500
	filter := bson.D{{Key: "_id", Value: "key"}}
	update := func(n int32) error {
		doc := bson.D{}
		for i := range fields {
			doc = append(doc, bson.E{Key: fmt.Sprint("field", i), Value: n})
		}
		_, err := coll.ReplaceOne(t.Context(), filter, doc, options.Replace().SetUpsert(true))
		return err
	}
	if err := update(0); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	defer all.Wait()
	updated := make(chan struct{})
	all.Go(func() {
		defer close(updated)
		for n := range int32(updates) {
			if err := update(n); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for range 2 {
		all.Go(func() {
			for {
				select {
				case <-updated:
					return
				default:
				}
				doc, err := coll.FindOne(t.Context(), filter).Raw()
				if err != nil {
					t.Error(err)
					return
				}
				first, last := doc.Lookup("field0").Int32(), doc.Lookup(fmt.Sprint("field", fields-1)).Int32()
				if first != last {
					t.Errorf("half of update %d, half of update %d", first, last)
					return
				}
			}
		})
	}
}
