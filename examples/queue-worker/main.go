// Queue-worker works through a queue of mail jobs that lies in a file, keeps
// the idempotency keys in a SQLite database beside it, and survives being
// killed at any of its steps:
//
//	go run ./examples/queue-worker                         # all goes well
//	go run ./examples/queue-worker -crash-at after-accept  # killed
//	go run ./examples/queue-worker                         # goes on where that one was killed
//
// Where the queue has nothing to do, some jobs are enqueued. A job is
// acknowledged only when its mail was sent, now or before. What is in flight or
// has failed for now stays in the queue; what nobody knows about, or will never
// go, is parked for somebody to look at.
//
// By default a mail whose worker was killed after the provider took it, and
// before that was kept, goes again once the lease has ended. With -at-most-once
// it is parked.
package main

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	_ "modernc.org/sqlite"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/sqlstore"
)

// pause is how long a worker waits before it looks again at what is left.
const pause = 100 * time.Millisecond

func main() {
	dir := flag.String("dir", filepath.Join(os.TempDir(), "idemmail-queue-worker"), "folder of the queue, the keys and the provider's mailbox")
	atMostOnce := flag.Bool("at-most-once", false, "rather no mail than two")
	lease := flag.Duration("lease", 2*time.Second, "how long a dead worker's key is held; in production: 10 minutes")
	crashAt := flag.String("crash-at", "", "kill the worker at this step: "+strings.Join(steps, ", ")+`; "STEP/KEY" at that of the mail with this key`)
	flag.Parse()

	crash, err := parseCrash(*crashAt)
	if err == nil {
		err = run(context.Background(), *dir, idemmail.Options{AtMostOnce: *atMostOnce, Lease: *lease}, crash)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "queue-worker:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, dir string, options idemmail.Options, crash crashPoint) (err error) {
	closing := func(close func() error) { err = errors.Join(err, close()) }
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	jobs, err := openQueue(filepath.Join(dir, "queue.jsonl"))
	if err != nil {
		return err
	}
	defer closing(jobs.close)
	db, err := openDatabase(filepath.Join(dir, "keys.db"))
	if err != nil {
		return err
	}
	defer closing(db.Close)
	store, err := sqlstore.New(db, sqlstore.Options{Dialect: sqlstore.SQLite})
	if err != nil {
		return err
	}
	if err := store.EnsureSchema(ctx); err != nil {
		return err
	}
	provider, err := openProvider(filepath.Join(dir, "mailbox"), crash)
	if err != nil {
		return err
	}
	defer closing(provider.close)

	options.Store = crashingStore{store, crash}
	options.Namespace = "queue-worker-example"
	options.MessageIDDomain = "shop.example.com"   // the same on every attempt: a second copy can be told
	options.Logger = slog.New(slog.DiscardHandler) // what is printed says it all
	mailer, err := idemmail.New(provider, options)
	if err != nil {
		return err
	}

	if len(jobs.pending()) == 0 {
		orders := newOrders(len(jobs.jobs) + 1)
		if err := jobs.add(orders...); err != nil {
			return err
		}
		fmt.Printf("%d jobs were enqueued in %s\n", len(orders), dir)
	}
	if err := (worker{jobs, mailer, crash}).run(ctx); err != nil {
		return err
	}
	return report(ctx, mailer, options.Lease)
}

// newOrders makes the orders of a run. The last is the first again, as when a
// job is enqueued twice.
func newOrders(first int) []order {
	var orders []order
	for i, to := range []string{"ada@example.org", busy, refused, lost, "bob@example.org"} {
		orders = append(orders, order{ID: 1000 + first + i, To: to})
	}
	return append(orders, orders[0])
}

// report lists what somebody has to ask the provider about, and then settles
// by Resolve or Forget.
func report(ctx context.Context, mailer *idemmail.IdempotencyTransport, olderThan time.Duration) error {
	for e, err := range mailer.Unsettled(ctx, olderThan) {
		if err != nil {
			return err
		}
		fmt.Printf("unsettled: %s, %s for %v\n", e.Key, e.Record.State, e.Record.Age.Round(time.Second))
	}
	return nil
}

// openDatabase opens a SQLite database that keeps its commits through crashes
// (its own default, synchronous=FULL) and waits for locks.
func openDatabase(name string) (*sql.DB, error) {
	absolute, err := filepath.Abs(name)
	if err != nil {
		return nil, err
	}
	dsn := url.URL{Scheme: "file", Path: filepath.ToSlash(absolute), RawQuery: "_pragma=journal_mode(WAL)&_pragma=busy_timeout(5000)"}
	return sql.Open("sqlite", dsn.String())
}
