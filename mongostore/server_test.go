package mongostore_test

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/internal/testserver"
	"github.com/idemmail/idemmail/mongostore"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if os.Getenv(workerEnv) != "" {
		os.Exit(work())
	}
	goleak.VerifyTestMain(m)
}

var collections atomic.Int64

// collection answers a new collection on the server, through a client of its
// own that is made with the options.
func collection(t testing.TB, uri string, opts ...*options.ClientOptions) *mongo.Collection {
	t.Helper()
	client, err := mongo.Connect(append([]*options.ClientOptions{options.Client().ApplyURI(uri)}, opts...)...)
	require.NoError(t, err)
	coll := client.Database(fmt.Sprintf("idemmail_test_%d", os.Getpid())).Collection(fmt.Sprintf("keys%d", collections.Add(1)))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		coll.Database().Drop(ctx) // best effort: the server may be gone
		require.NoError(t, client.Disconnect(context.Background()))
	})
	return coll
}

// same answers the collection through another client.
func same(t testing.TB, uri string, coll *mongo.Collection, opts ...*options.ClientOptions) *mongo.Collection {
	t.Helper()
	return collection(t, uri, opts...).Database().Client().Database(coll.Database().Name()).Collection(coll.Name())
}

// stored answers the key's document as the server has it; nil: there is none.
func stored(t testing.TB, coll *mongo.Collection, key string) bson.D {
	t.Helper()
	var doc bson.D
	err := coll.FindOne(context.Background(), bson.D{{Key: "_id", Value: key}}).Decode(&doc)
	if err == mongo.ErrNoDocuments {
		return nil
	}
	require.NoError(t, err)
	return doc
}

// reserve reserves the key, which must be free.
func reserve(t testing.TB, s idemmail.Store, key string, lease time.Duration) (token string) {
	t.Helper()
	token, held, err := s.Reserve(context.Background(), key, "1:"+key, lease)
	require.NoError(t, err)
	require.Nil(t, held)
	require.NotEmpty(t, token)
	return token
}

// sent answers a done record of a message that was sent.
func sent(key string) idemmail.Record {
	return idemmail.Record{
		State: idemmail.StateDone, Fingerprint: "1:" + key,
		Receipt: &idemmail.Receipt{Status: idemmail.StatusSent, ProviderID: key, At: time.Now().UTC().Truncate(time.Millisecond)},
	}
}

func unknown(key string) idemmail.Record {
	r := sent(key)
	r.Receipt.Status = idemmail.StatusUnknown
	return r
}

func newStore(coll *mongo.Collection) *mongostore.Store {
	return mongostore.New(coll, mongostore.Options{})
}

func server(t *testing.T) *testserver.MongoServer {
	t.Helper()
	return testserver.Mongo(t)
}
