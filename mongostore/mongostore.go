// Package mongostore keeps idempotency keys in a MongoDB collection, so that
// any number of processes share them.
//
// It works with every service that speaks the protocol of MongoDB 4.0 or later
// and carries out each update of one document atomically; it needs no
// transactions and no aggregation. The collection must compare strings
// exactly: none with a collation of its own. Give it no unique index besides
// that of _id, and if it is sharded, shard it by _id. The user needs the rights
// to find, insert, update and remove in it; without those to insert and update,
// the first Reserve fails, before a message is sent.
//
// Writes wait for a majority and reads go to the primary, whatever the client's
// own settings, and a session or transaction in a context is left alone: a
// reservation must stand before the message goes.
//
// All times are the server's. A Store asks for it (by the command hello) before
// its first command and again once the answer is 30 seconds old, or the
// machine slept, or its clock was set. It is the clock of the primary, or of the
// mongos, that answers: keep those of one cluster in step.
//
// Documents whose time has passed are taken over by the next Reserve, or go by
// themselves where [Store.EnsureIndexes] made the TTL index.
package mongostore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/idemmail/idemmail"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"
)

// Options are what a Store can be told. The zero value is ready to use.
type Options struct {
	// Now is the client's clock; nil: time.Now. It need not agree with the
	// server's, nor with other clients'.
	Now func() time.Time
}

// A Store keeps keys in a collection, one document each, with the key as _id.
// It is an [idemmail.Store] with all the optional interfaces. It is safe for
// concurrent use, starts no goroutine and has nothing to close.
//
// Reserving a free key, and completing, renewing or releasing one, is one
// command each; a key that is held is read by a second one. The methods for
// many keys need as many commands as those for one, up to the sizes at which
// the driver or the server splits a message.
type Store struct {
	coll  *mongo.Collection
	clock *clock
}

var (
	_ idemmail.Store      = (*Store)(nil)
	_ idemmail.BatchStore = (*Store)(nil)
	_ idemmail.Renewer    = (*Store)(nil)
	_ idemmail.Reconciler = (*Store)(nil)
)

// New returns a Store on coll, which it does not talk to yet. The client stays
// the caller's.
func New(coll *mongo.Collection, opts Options) *Store {
	if opts.Now == nil {
		opts.Now = time.Now
	}
	coll = coll.Clone(options.Collection().
		SetWriteConcern(writeconcern.Majority()).
		SetReadConcern(readconcern.Local()). // sees what an upsert has just collided with
		SetReadPreference(readpref.Primary()))
	return &Store{coll: coll, clock: newClock(opts.Now, askServer(coll.Database()))}
}

// EnsureIndexes makes the TTL index, by which the server removes documents
// whose time has passed, within a minute or so. Without it every answer is the
// same, but the collection grows. It may be called any number of times.
func (s *Store) EnsureIndexes(ctx context.Context) error {
	_, err := s.coll.Indexes().CreateOne(outsideSession(ctx), mongo.IndexModel{
		Keys:    bson.D{{Key: "expires", Value: 1}},
		Options: options.Index().SetExpireAfterSeconds(0),
	})
	return wrap(ctx, "create the TTL index", err)
}

// outsideSession answers ctx without the session that it may carry: a write
// within the caller's transaction would not stand until that is committed.
func outsideSession(ctx context.Context) context.Context {
	if mongo.SessionFromContext(ctx) == nil {
		return ctx
	}
	return mongo.NewSessionContext(ctx, nil)
}

// wrap says what failed, and makes sure that the context's error is found.
func wrap(ctx context.Context, what string, err error) error {
	switch ended := ctx.Err(); {
	case err == nil:
		return nil
	case ended != nil && !errors.Is(err, ended):
		return fmt.Errorf("mongostore: %s: %w: %w", what, ended, err)
	}
	return fmt.Errorf("mongostore: %s: %w", what, err)
}

// write carries out the models, unordered and in one command unless they are
// too many for one. It answers how many documents matched or were deleted, and
// the error of each model.
func (s *Store) write(ctx context.Context, models []mongo.WriteModel) (matched int, errs []error) {
	errs = make([]error, len(models))
	result, err := s.coll.BulkWrite(outsideSession(ctx), models, options.BulkWrite().SetOrdered(false))
	if result != nil {
		matched = int(result.MatchedCount + result.DeletedCount)
	}
	if err == nil {
		return matched, errs
	}
	var bulk mongo.BulkWriteException
	if errors.As(err, &bulk) {
		err = nil
		if bulk.WriteConcernError != nil { // carried out, but not known to last
			err = mongo.BulkWriteException{WriteConcernError: bulk.WriteConcernError, Labels: bulk.Labels}
		}
	}
	for i := range errs {
		errs[i] = wrap(ctx, "write", err)
	}
	for _, e := range bulk.WriteErrors {
		errs[e.Index] = wrap(ctx, "write", e.WriteError)
	}
	return matched, errs
}

// maxIDs is how many keys are read by one command: a filter is a document, of
// at most 16 MiB.
const maxIDs = 10_000

// read answers the documents under the keys; a key without one is missing in
// the map. A document that is not a record comes with its ErrBadRecord.
func (s *Store) read(ctx context.Context, keys []string) (map[string]found, error) {
	docs := make(map[string]found, len(keys))
	for len(keys) > 0 {
		part := keys[:min(len(keys), maxIDs)]
		keys = keys[len(part):]
		filter := bson.D{{Key: "_id", Value: part[0]}}
		if len(part) > 1 {
			filter[0].Value = bson.D{{Key: "$in", Value: part}}
		}
		// A batch that is larger than the limit: the server then closes the
		// cursor with its first answer.
		cursor, err := s.coll.Find(outsideSession(ctx), filter,
			options.Find().SetLimit(int64(len(part))).SetBatchSize(int32(len(part)+1)))
		if err != nil {
			return nil, wrap(ctx, "read", err)
		}
		for cursor.Next(ctx) {
			doc, err := decode(cursor.Current)
			docs[doc.Key] = found{doc, err}
		}
		err = cursor.Err()
		closeCursor(ctx, cursor)
		if err != nil {
			return nil, wrap(ctx, "read", err)
		}
	}
	return docs, nil
}

// found is a document as it was read.
type found struct {
	document
	err error // wraps ErrBadRecord
}

// closeCursor closes it also where ctx has ended, best effort.
func closeCursor(ctx context.Context, cursor *mongo.Cursor) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUp)
	defer cancel()
	cursor.Close(ctx)
}
