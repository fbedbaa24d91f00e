package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"github.com/idemmail/idemmail/mongostore"
)

func (u *storeURL) openMongo(timeout time.Duration) (*openStore, error) {
	collection, err := u.take("collection")
	if err != nil {
		return nil, err
	}
	_, path, _ := strings.Cut(u.rest, "/")
	database, err := url.PathUnescape(path)
	if err != nil || database == "" || collection == "" {
		return nil, errors.New("it must name a database and a collection: mongodb://HOST/DATABASE?collection=COLLECTION")
	}
	client, err := mongo.Connect(options.Client().SetServerSelectionTimeout(timeout).ApplyURI(u.as(u.scheme)))
	if err != nil {
		return nil, err
	}
	coll := client.Database(database).Collection(collection)
	return &openStore{
		store:   mongostore.New(coll, mongostore.Options{}),
		examine: func(ctx context.Context, r *report) error { return examineMongo(ctx, r, coll) },
		close: func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			client.Disconnect(ctx)
		},
	}, nil
}

// examineMongo reports the server's version and clock, and what of the
// collection and its indexes the store depends on.
func examineMongo(ctx context.Context, r *report, coll *mongo.Collection) error {
	db := coll.Database()
	if err := db.Client().Ping(ctx, readpref.Primary()); err != nil {
		return err
	}
	if build, err := db.RunCommand(ctx, bson.D{{Key: "buildInfo", Value: 1}}).Raw(); err != nil {
		r.warn("server", "it does not tell its version: %v", err)
	} else {
		version, _ := build.Lookup("version").StringValueOK()
		r.ok("server", "MongoDB %s", version)
	}
	before := time.Now()
	if now, err := mongoTime(ctx, db); err != nil {
		r.unsafe("clock", "it cannot be read, and the store goes by it: %v", err)
	} else {
		r.clock("clock", now, before)
	}

	cursor, err := db.ListCollections(ctx, bson.D{{Key: "name", Value: coll.Name()}})
	var found []mongoCollection
	if err == nil {
		err = cursor.All(ctx, &found)
	}
	switch {
	case err != nil:
		r.warn("collection", "it cannot be described, so see to it that it has no collation: %v", err)
	case len(found) == 0:
		r.warn("collection", "there is no collection %s in database %s yet: is that the right one?", coll.Name(), db.Name())
		return nil
	default:
		judgeMongoCollection(r, found[0])
	}
	examineMongoIndexes(ctx, r, coll)
	return nil
}

// A mongoCollection is what the server tells of a collection.
type mongoCollection struct {
	Name    string `bson:"name"`
	Type    string `bson:"type"`
	Options struct {
		Collation bson.Raw `bson:"collation"`
		Capped    bool     `bson:"capped"`
	} `bson:"options"`
}

func judgeMongoCollection(r *report, c mongoCollection) {
	switch {
	case c.Type != "" && c.Type != "collection":
		r.unsafe("collection", "%s is a %s", c.Name, c.Type)
	case c.Options.Capped:
		r.unsafe("collection", "%s is capped: it drops its oldest documents within their time", c.Name)
	case c.Options.Collation != nil:
		r.unsafe("collection", "%s has a collation: keys must be compared exactly", c.Name)
	default:
		r.ok("collection", "%s, not capped and without a collation", c.Name)
	}
}

// A mongoIndex is what the server tells of an index.
type mongoIndex struct {
	Name               string `bson:"name"`
	Key                bson.D `bson:"key"`
	Unique             bool   `bson:"unique"`
	ExpireAfterSeconds *int64 `bson:"expireAfterSeconds"` // nil: it removes nothing
}

func (i mongoIndex) on(field string) bool { return len(i.Key) == 1 && i.Key[0].Key == field }

func examineMongoIndexes(ctx context.Context, r *report, coll *mongo.Collection) {
	cursor, err := coll.Indexes().List(ctx)
	var indexes []mongoIndex
	if err == nil {
		err = cursor.All(ctx, &indexes)
	}
	if err != nil {
		r.warn("indexes", "they cannot be listed: %v", err)
		return
	}
	judgeMongoIndexes(r, indexes)
}

func judgeMongoIndexes(r *report, indexes []mongoIndex) {
	sweeps := false
	for _, index := range indexes {
		if index.Unique && !index.on("_id") {
			r.unsafe("indexes", "%s is unique: keys that have nothing to do with each other collide", index.Name)
		}
		switch after := index.ExpireAfterSeconds; {
		case after == nil:
		case !index.on("expires"):
			r.unsafe("indexes", "%s removes documents by another date than expires", index.Name)
		case *after < 0:
			r.unsafe("indexes", "%s removes documents before their time", index.Name)
		default:
			sweeps = true
		}
	}
	if sweeps {
		r.ok("indexes", "what has expired is removed by the TTL index")
	} else {
		r.warn("indexes", "there is no TTL index, so the collection grows for ever: call EnsureIndexes")
	}
}

// mongoTime answers the server's time, by the command that its version has.
func mongoTime(ctx context.Context, db *mongo.Database) (time.Time, error) {
	var errs []error
	for _, command := range []string{"hello", "isMaster"} {
		answer, err := db.RunCommand(ctx, bson.D{{Key: command, Value: 1}}).Raw()
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if millis, ok := answer.Lookup("localTime").DateTimeOK(); ok {
			return bson.DateTime(millis).Time(), nil
		}
		errs = append(errs, fmt.Errorf("%s does not tell it", command))
	}
	return time.Time{}, errors.Join(errs...)
}
