// Existing-mailer puts a guard around a mailer that is there already
// (mailer.go) and is used as it is; once.go is all that it takes. Each mail is
// sent twice: one as it should be, one to a recipient that the server refuses,
// one whose answer is lost, and one while the server cannot be reached at
// first. The example exits with 1 if the mail server, which is in this process,
// received a mail twice or missed one.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"text/tabwriter"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/examples/internal/inbox"
)

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "existing-mailer:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	server, err := inbox.Start()
	if err != nil {
		return err
	}
	defer server.Close()
	guard, err := idemmail.NewGuard(idemmail.Options{
		Namespace:  "existing-mailer-example",
		RequireKey: true,                          // a mail without a key is refused
		Logger:     slog.New(slog.DiscardHandler), // the table says it all
	})
	if err != nil {
		return err
	}
	reachable := onceMailer{&mailer{addr: server.Addr, from: "shop@example.com"}, guard}
	unreachable := onceMailer{&mailer{addr: "127.0.0.1:1", from: "shop@example.com"}, guard}

	var wrong []error
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "KEY\tTO\tFIRST\tSECOND\tSERVER RECEIVED")
	for _, order := range []struct {
		id, to        string
		first, second onceMailer
		received      int // how often it is to be
	}{
		{"1001", "ada@example.org", reachable, reachable, 1},
		{"1002", inbox.Refused, reachable, reachable, 0},
		{"1003", inbox.Lost, reachable, reachable, 1},
		{"1004", "bob@example.org", unreachable, reachable, 1},
	} {
		key, subject := "order/"+order.id+"/confirmation", "Your order "+order.id
		first := describe(order.first.SendMail(ctx, key, order.to, subject, "Thank you."))
		second := describe(order.second.SendMail(ctx, key, order.to, subject, "Thank you."))
		received := server.Received(subject)
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%d\n", key, order.to, first, second, received)
		if received != order.received {
			wrong = append(wrong, fmt.Errorf("%s was received %d times", key, received))
		}
	}
	return errors.Join(append(wrong, table.Flush())...)
}

// describe says what an answer means for the job that the mail was sent by.
func describe(receipt *idemmail.Receipt, err error) string {
	switch {
	case err == nil && receipt.Replayed:
		return "sent before"
	case err == nil:
		return "sent"
	case errors.Is(err, idemmail.ErrInFlight):
		return "in flight, try later"
	case errors.Is(err, idemmail.ErrDeliveryUnknown) && receipt.Replayed:
		return "unknown, left alone"
	case errors.Is(err, idemmail.ErrDeliveryUnknown):
		return "unknown"
	case receipt.Retryable:
		return "failed, try later"
	default:
		return "failed for good"
	}
}
