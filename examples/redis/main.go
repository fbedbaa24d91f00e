// Redis has two worker processes do the same jobs at the same time, sharing
// their keys through Redis: each mail is sent by one of them, and the other is
// answered with its receipt. The example exits with 1 if the mail server, which
// is in this process, received a mail twice or missed one.
//
// Redis is where -redis or REDIS_URL says ("redis://user:password@host:port/0"),
// else a miniredis in this process. That one is for trying out: it forgets when
// it ends, and no key in it expires by itself.
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

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/examples/internal/inbox"
	"github.com/idemmail/idemmail/redisstore"
	"github.com/idemmail/idemmail/smtptransport"
)

// orders are what there is to send. Both workers have all of them, as after a
// queue has delivered each job twice.
var orders = []string{"1001", "1002", "1003"}

func subject(order string) string { return "Your order " + order }

func main() {
	url := flag.String("redis", os.Getenv("REDIS_URL"), "URL of a Redis; empty: a miniredis in this process")
	name := flag.String("worker", "", "be the worker of this name; the example starts two")
	smtp := flag.String("smtp", "", "mail server of the worker")
	prefix := flag.String("prefix", "", "prefix of the worker's keys in Redis")
	flag.Parse()

	ctx := context.Background()
	var err error
	if *name != "" {
		err = work(ctx, *name, *url, *prefix, *smtp)
	} else {
		err = run(ctx, *url)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "redis:", err)
		os.Exit(1)
	}
}

// work is what a worker does: it sends the mail of every order.
func work(ctx context.Context, name, url, prefix, smtp string) error {
	options, err := redis.ParseURL(url)
	if err != nil {
		return err
	}
	options.ContextTimeoutEnabled = true // so that deadlines hold while it waits for Redis
	client := redis.NewClient(options)
	defer client.Close()
	store := redisstore.New(client, redisstore.Options{KeyPrefix: prefix})
	if err := store.Check(ctx); err != nil { // the version, the rights, noeviction
		return err
	}

	transport, err := smtptransport.New(smtptransport.Options{Addr: smtp, TLS: smtptransport.NoTLS})
	if err != nil {
		return err
	}
	mailer, err := idemmail.New(transport, idemmail.Options{
		Store:     store,
		Namespace: "redis-example", // in production: the service and its environment
		TTL:       time.Minute,     // in production: longer than the queue delivers a job again

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
func run(ctx context.Context, url string) error {
	server, err := inbox.Start()
	if err != nil {
		return err
	}
	defer server.Close()
	if url == "" {
		mini, err := miniredis.Run()
		if err != nil {
			return err
		}
		defer mini.Close()
		url = "redis://" + mini.Addr()
	}
	executable, err := os.Executable()
	if err != nil {
		return err
	}
	prefix := "example-" + rand.Text() + ":" // the keys of another run are none of ours
	var workers []*exec.Cmd
	var failed []error
	for _, name := range []string{"A", "B"} {
		worker := exec.CommandContext(ctx, executable, "-worker", name, "-smtp", server.Addr, "-prefix", prefix)
		worker.Env = append(os.Environ(), "REDIS_URL="+url) // it may have a password: not among the arguments
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
