// Ses sends three mails through the SES API, and settles an outcome that nobody
// knows from the event that SES publishes. SES is a server in this process that
// speaks its wire format: it takes one mail as it should, loses the answer of
// another, and throttles the third once. The example exits with 1 if the server
// took a mail twice or missed one.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/mail"
	"os"
	"text/tabwriter"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sesv2"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/sestransport"
)

const (
	namespace = "shop"            // of the decorator and of the tag
	keyTag    = "idempotency-key" // the email tag that carries the key
)

var orders = []string{"order/1001", answerIsLost, isThrottled}

func main() {
	if err := run(context.Background(), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "ses:", err)
		os.Exit(1)
	}
}

// run runs the job three times, and between the second and the third handles
// the events. An error means that a promise was broken.
func run(ctx context.Context, out io.Writer) error {
	server, err := startServer()
	if err != nil {
		return err
	}
	defer server.stop()

	ses, err := sestransport.New(newClient(server.url), sestransport.Options{
		ConfigurationSet: "events", // the one that publishes Send events
		KeyTag:           keyTag,
		Namespace:        namespace,
	})
	if err != nil {
		return err
	}
	mailer, err := idemmail.New(ses, idemmail.Options{
		Namespace: namespace,
		Logger:    slog.New(slog.DiscardHandler), // the table says it all
	})
	if err != nil {
		return err
	}

	first := job(ctx, mailer)
	second := job(ctx, mailer)
	settled, err := handle(ctx, ses, mailer, server.takeEvents())
	if err != nil {
		return err
	}
	third := job(ctx, mailer)

	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "KEY\tFIRST RUN\tSECOND RUN\tAFTER THE EVENTS\tSES TOOK IT")
	for i, key := range orders {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%d\n", key, first[i], second[i], third[i], server.took(key))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(out, "\n%d outcome settled by an event of SES.\n", settled)
	for _, key := range orders {
		if n := server.took(key); n != 1 {
			return fmt.Errorf("SES took the mail of %s %d times", key, n)
		}
	}
	return nil
}

// newClient makes the client as a program does, but for the endpoint and the
// credentials.
func newClient(url string) *sesv2.Client {
	return sesv2.New(sesv2.Options{
		Region:       "eu-west-1",
		BaseEndpoint: aws.String(url),
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "EXAMPLE", SecretAccessKey: "example"}, nil
		}),
	})
}

// job sends the mail of each order, and says what it was answered.
func job(ctx context.Context, mailer *idemmail.IdempotencyTransport) []string {
	answers := make([]string, len(orders))
	for i, key := range orders {
		receipt, err := mailer.Send(ctx, &idemmail.Message{
			From:           mail.Address{Name: "Shop", Address: "shop@example.com"},
			To:             []mail.Address{{Address: "ann@example.org"}},
			Subject:        "Your " + key,
			Text:           "Thank you.",
			IdempotencyKey: key,
		})
		switch {
		case errors.Is(err, idemmail.ErrDeliveryUnknown) && receipt.Replayed:
			answers[i] = "unknown, left alone"
		case err != nil:
			answers[i] = fmt.Sprintf("%s (%s)", receipt.Status, receipt.Code)
		case receipt.Replayed:
			answers[i] = "sent before"
		default:
			answers[i] = "sent"
		}
	}
	return answers
}

// handle is what the consumer of the queue does with the notifications that it
// has received. An error leaves them on the queue.
func handle(ctx context.Context, ses *sestransport.Transport, mailer *idemmail.IdempotencyTransport, notifications [][]byte) (int, error) {
	var events []sestransport.Event
	for _, n := range notifications {
		e, err := sestransport.ParseEvent(n)
		if err != nil {
			return 0, err
		}
		events = append(events, e)
	}
	return ses.Resolve(ctx, mailer, events...)
}
