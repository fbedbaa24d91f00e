// Quickstart sends the mails of a few orders through a real SMTP server, in
// four runs of one job: once, once more, with a worker that is killed between
// the server's "accepted" and writing that down, and with the worker that comes
// after it. It prints what each run answered and what the server really
// received, and exits with 1 if the server received a mail twice or missed one.
//
// The server (emersion/go-smtp) and the Redis that the workers share (miniredis)
// are in this process; the worker that is killed is a process of its own.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/idemmail/idemmail"
)

func main() {
	if isWorker() {
		work()
		return
	}
	if err := run(context.Background(), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "quickstart:", err)
		os.Exit(1)
	}
}

// run runs the job four times and shows what came of it. An error means that a
// promise was broken.
func run(ctx context.Context, out io.Writer) error {
	server, err := startServer()
	if err != nil {
		return err
	}
	defer server.stop()
	redis, err := miniredis.Run()
	if err != nil {
		return err
	}
	defer redis.Close()
	orders, err := readOrders()
	if err != nil {
		return err
	}
	at := places{SMTP: server.addr, Redis: redis.Addr()}
	mailer, closeMailer, err := newMailer(at, nil)
	if err != nil {
		return err
	}
	defer closeMailer()

	first := job(ctx, mailer, today(orders))
	second := job(ctx, mailer, today(orders))
	third, err := runDoomedWorker(ctx, at) // another order has come in by now
	if err != nil {
		return err
	}
	redis.SetTime(time.Now().Add(lease + time.Second)) // ten minutes pass
	nextMailer, closeNext, err := newMailer(at, nil)   // another worker, another process most often
	if err != nil {
		return err
	}
	defer closeNext()
	next := job(ctx, nextMailer, orders)

	printTable(out, orders, server, first, second, third, next)
	if err := settle(ctx, out, nextMailer, server); err != nil {
		return err
	}
	if err := check(orders, server); err != nil {
		return err
	}
	fmt.Fprintf(out, "\n%d mails, four runs: the server received each of them once.\n", len(orders))
	return nil
}

// today leaves out what comes in later.
func today(orders []order) (now []order) {
	for _, o := range orders {
		if !o.Late {
			now = append(now, o)
		}
	}
	return now
}

func printTable(out io.Writer, orders []order, server *server, runs ...answers) {
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "MAIL\tKEY\tFIRST RUN\tSECOND RUN\tTHIRD RUN\tNEXT WORKER\tSERVER RECEIVED")
	for _, o := range orders {
		fmt.Fprintf(table, "%s, %s\t%s\t", o.ID, o.Customers[0].Name, o.key())
		for _, run := range runs {
			answer, ok := run[o.key()]
			if !ok {
				answer = "-"
			}
			fmt.Fprintf(table, "%s\t", answer)
		}
		fmt.Fprintln(table, times(server.received(o.key())))
	}
	table.Flush()
}

func times(n int) string {
	switch n {
	case 0:
		return "NEVER"
	case 1:
		return "once"
	default:
		return fmt.Sprintf("%d TIMES", n)
	}
}

// settle does what an operator does about the mails that nobody knows about:
// it asks the server. Only then does a key that a dead worker left become free
// or known as sent.
func settle(ctx context.Context, out io.Writer, mailer *idemmail.IdempotencyTransport, server *server) error {
	fmt.Fprintln(out)
	for entry, err := range mailer.Unsettled(ctx, 0) {
		if err != nil {
			return err
		}
		if server.received(entry.Key) == 0 {
			fmt.Fprintf(out, "%s: its worker died, the server does not have it: the key is freed.\n", entry.Key)
			err = mailer.Forget(ctx, entry)
		} else {
			fmt.Fprintf(out, "%s: its worker died, the server has it: kept as sent.\n", entry.Key)
			err = mailer.Resolve(ctx, entry, nil)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// check holds what the server received against the orders.
func check(orders []order, server *server) error {
	var wrong []error
	for _, o := range orders {
		if n := server.received(o.key()); n != 1 {
			wrong = append(wrong, fmt.Errorf("%s was received %s", o.key(), strings.ToLower(times(n))))
		}
	}
	if n := server.total(); n != len(orders) {
		wrong = append(wrong, fmt.Errorf("%d mails were received for %d orders", n, len(orders)))
	}
	return errors.Join(wrong...)
}
