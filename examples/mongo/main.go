// Mongo has two worker processes do the same jobs at the same time, sharing
// their keys through MongoDB: each mail is sent by one of them, and the other
// is answered with its receipt. The example exits with 1 if the mail server,
// which is in this process, received a mail twice or missed one.
//
// It needs a MongoDB, or what speaks its protocol, where -mongo or MONGODB_URI
// says ("mongodb://localhost:27017"); without one it says so and exits with 2.
// It uses a collection of its own in the database idemmail_example, and drops
// it at its end.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"net/mail"
	"os"
	"os/exec"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/examples/internal/inbox"
	"github.com/idemmail/idemmail/mongostore"
	"github.com/idemmail/idemmail/smtptransport"
)

// orders are what there is to send. Both workers have all of them, as after a
// queue has delivered each job twice.
var orders = []string{"1001", "1002", "1003"}

func subject(order string) string { return "Your order " + order }

const (
	database = "idemmail_example"

	// selection is how long the driver looks for a server before it gives up:
	// less than Options.StoreTimeout, so that the error says what it found.
	selection = 3 * time.Second

	cleanUp = 10 * time.Second
)

func main() {
	uri := flag.String("mongo", os.Getenv("MONGODB_URI"), "URI of a MongoDB")
	name := flag.String("worker", "", "be the worker of this name; the example starts two")
	smtp := flag.String("smtp", "", "mail server of the worker")
	collection := flag.String("collection", "", "collection of the worker's keys")
	flag.Parse()
	if *uri == "" {
		fmt.Fprintln(os.Stderr, "mongo: needs a MongoDB: set MONGODB_URI, to mongodb://localhost:27017 for example")
		os.Exit(2)
	}

	ctx := context.Background()
	var err error
	if *name != "" {
		err = work(ctx, *name, *uri, *collection, *smtp)
	} else {
		err = run(ctx, *uri)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "mongo:", err)
		os.Exit(1)
	}
}

// connect makes a client. Whatever its settings, the store's writes wait for a
// majority and its reads go to the primary.
func connect(uri string) (client *mongo.Client, disconnect func(), err error) {
	client, err = mongo.Connect(options.Client().ApplyURI(uri).SetServerSelectionTimeout(selection))
	if err != nil {
		return nil, nil, err
	}
	return client, func() {
		ctx, cancel := context.WithTimeout(context.Background(), cleanUp)
		defer cancel()
		_ = client.Disconnect(ctx)
	}, nil
}

// work is what a worker does: it sends the mail of every order.
func work(ctx context.Context, name, uri, collection, smtp string) error {
	client, disconnect, err := connect(uri)
	if err != nil {
		return err
	}
	defer disconnect()
	store := mongostore.New(client.Database(database).Collection(collection), mongostore.Options{})
	if err := store.EnsureIndexes(ctx); err != nil { // so that what has expired is removed
		return err
	}

	transport, err := smtptransport.New(smtptransport.Options{Addr: smtp, TLS: smtptransport.NoTLS})
	if err != nil {
		return err
	}
	mailer, err := idemmail.New(transport, idemmail.Options{
		Store:     store,
		Namespace: "mongo-example", // in production: the service and its environment

		// A worker that finds the other one at it waits for the receipt.
		// Without this it is answered ErrInFlight at once, and its job has to
		// come again later.
		WaitInFlight: 10 * time.Second,
	})
	if err != nil {
		return err
	}
	for _, order := range orders {
		receipt, err := mailer.Send(ctx, &idemmail.Message{
			From:           mail.Address{Name: "Shop", Address: "shop@example.com"},
			To:             []mail.Address{{Address: "ada@example.org"}},
			Subject:        subject(order),
			Text:           "Thank you.\n",
			IdempotencyKey: "order/" + order + "/confirmation",
		})
		if err != nil {
			return err
		}
		how := "sent"
		if receipt.Replayed {
			how = "sent before"
		}
		fmt.Printf("worker %s, order %s: %s, queue id %s\n", name, order, how, receipt.ProviderID)
	}
	return nil
}

// run starts the workers and looks at what the mail server received.
func run(ctx context.Context, uri string) (err error) {
	server, err := inbox.Start()
	if err != nil {
		return err
	}
	defer server.Close()
	executable, err := os.Executable()
	if err != nil {
		return err
	}
	collection := "keys_" + rand.Text() // the keys of another run are none of ours
	defer func() { err = errors.Join(err, drop(ctx, uri, collection)) }()

	var workers []*exec.Cmd
	var failed []error
	for _, name := range []string{"A", "B"} {
		worker := exec.CommandContext(ctx, executable, "-worker", name, "-smtp", server.Addr, "-collection", collection)
		worker.Env = append(os.Environ(), "MONGODB_URI="+uri) // it may have a password: not among the arguments
		worker.Stdout, worker.Stderr = os.Stdout, os.Stderr
		if err := worker.Start(); err != nil {
			failed = append(failed, err)
			break
		}
		workers = append(workers, worker)
	}
	for _, worker := range workers {
		failed = append(failed, worker.Wait())
	}
	for _, order := range orders {
		n := server.Received(subject(order))
		fmt.Printf("order %s: the mail server received it %d time(s)\n", order, n)
		if n != 1 {
			failed = append(failed, fmt.Errorf("order %s was received %d times", order, n))
		}
	}
	return errors.Join(failed...)
}

func drop(ctx context.Context, uri, collection string) error {
	client, disconnect, err := connect(uri)
	if err != nil {
		return err
	}
	defer disconnect()
	return client.Database(database).Collection(collection).Drop(ctx)
}
