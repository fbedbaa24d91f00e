package backend

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/idemmail/idemmail/internal/testserver"
	"github.com/idemmail/idemmail/mongostore"
)

// startMongo starts a MongoDB, or what stands in for one. Its URL has a database
// of the test's own behind a #.
func startMongo(t testing.TB) *Server {
	m := testserver.Mongo(t)
	database := fmt.Sprintf("idemmail_itest_%d_%d", os.Getpid(), numbers.Add(1))
	s := &Server{URL: m.URI + "#" + database}
	if m.Process == nil { // it is somebody's
		t.Cleanup(func() { drop(t, m.URI, database) })
		return s
	}
	s.Addr = strings.TrimPrefix(m.URI, "mongodb://")
	s.Hold, s.Continue = holding(m.Process)
	s.Kill = func(testing.TB) { _ = m.Process.Kill() } // the stand-in keeps everything in memory
	return s
}

func drop(t testing.TB, uri, database string) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	client, err := mongo.Connect(options.Client().ApplyURI(uri))
	if err != nil {
		t.Error(err)
		return
	}
	if err := client.Database(database).Drop(ctx); err != nil {
		t.Error(err)
	}
	_ = client.Disconnect(ctx)
}

// dialMongo opens a store on a client with the defaults of its makers, but for
// the time after which the driver takes the connection for dead by which it
// watches the server: 30 seconds, in which it sends nothing.
func dialMongo(url string) (Store, func(), error) {
	uri, database, _ := strings.Cut(url, "#")
	client, err := mongo.Connect(options.Client().ApplyURI(uri).SetConnectTimeout(2 * time.Second))
	if err != nil {
		return nil, nil, err
	}
	hangUp := func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = client.Disconnect(ctx)
	}
	return mongostore.New(client.Database(database).Collection("keys"), mongostore.Options{}), hangUp, nil
}
