// Retry-and-pool sends through two providers, with what people put around
// them, from the outside to the inside:
//
//	circuit                  fails at once while the providers fail
//	└ IdempotencyTransport   reserves the key once, for all that is beneath
//	  └ pool                 the next provider, where the message surely was not sent
//	    ├ retry              again, where it surely was not sent and may go later
//	    │ └ provider A
//	    └ retry
//	      └ provider B
//
// The decorators are in decorators.go. The table shows how often each provider
// was asked to send a message, and what the caller was told. The example exits
// with 1 if a message was taken twice.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/mail"
	"os"
	"text/tabwriter"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/sony/gobreaker/v2"

	"github.com/idemmail/idemmail"
)

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "retry-and-pool:", err)
		os.Exit(1)
	}
}

// newMailer puts it all together.
func newMailer(a, b idemmail.Transport) (circuit, error) {
	pause := func() backoff.BackOff {
		p := backoff.NewExponentialBackOff()
		p.InitialInterval = time.Millisecond // in production: a second or so
		return p
	}
	providers := pool{
		retry{next: a, attempts: 3, pause: pause},
		retry{next: b, attempts: 3, pause: pause},
	}
	once, err := idemmail.New(providers, idemmail.Options{
		Namespace: "retry-and-pool-example", // a pool has no one ID that could stand in for it
		// Lease is left out. It has to outlast all attempts with their pauses,
		// unless the store renews it meanwhile, as those of this library do.
		Logger: slog.New(slog.DiscardHandler), // the table says it all
	})
	if err != nil {
		return circuit{}, err
	}
	return newCircuit(once, 3, time.Minute), nil
}

// scenes are what happens, one after another.
var scenes = []struct {
	key, subject string
	times        int    // how often it is sent
	a, b         []does // what the providers do when they are asked, the last again and again
}{
	{"order/1", "confirmation", 1, []does{takes}, []does{takes}},
	{"order/2", "confirmation", 1, []does{busy, busy, takes}, []does{takes}},
	{"order/3", "confirmation", 1, []does{busy}, []does{takes}},
	{"order/4", "confirmation", 1, []does{refuses}, []does{takes}},
	{"order/5", "confirmation", 1, []does{loses}, []does{takes}},
	// The library's own answers do not open the circuit, however many.
	{"order/1", "confirmation", 10, []does{takes}, []does{takes}},
	{"order/1", "reminder", 10, []does{takes}, []does{takes}},
	{"order/5", "confirmation", 10, []does{loses}, []does{takes}},
	// Three failures in a row do. The first was that of order/5.
	{"order/6", "confirmation", 1, []does{busy}, []does{busy}},
	{"order/7", "confirmation", 1, []does{busy}, []does{busy}},
	{"order/8", "confirmation", 1, []does{takes}, []does{takes}},
}

func run(ctx context.Context) error {
	a, b := newProvider("A"), newProvider("B")
	mailer, err := newMailer(a, b)
	if err != nil {
		return err
	}
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "MESSAGE\tSENT\tPROVIDER A\tPROVIDER B\tASKED A\tASKED B\tANSWER\tCIRCUIT")
	var wrong []error
	for _, s := range scenes {
		a.script[s.key], b.script[s.key] = s.a, s.b
		askedA, askedB := a.asked[s.key], b.asked[s.key]
		var answer string
		for range s.times {
			answer = describe(mailer.Send(ctx, message(s.key, s.subject)))
		}
		fmt.Fprintf(table, "%s, %s\t%d x\t%s\t%s\t%d\t%d\t%s\t%s\n", s.key, s.subject, s.times, tell(s.a), tell(s.b),
			a.asked[s.key]-askedA, b.asked[s.key]-askedB, answer, mailer.breaker.State())
		if n := a.took[s.key] + b.took[s.key]; n > 1 {
			wrong = append(wrong, fmt.Errorf("%s was taken %d times", s.key, n))
		}
	}
	return errors.Join(append(wrong, table.Flush())...)
}

// message is built anew for each attempt of the job that sends it.
func message(key, subject string) *idemmail.Message {
	return &idemmail.Message{
		From:           mail.Address{Name: "Shop", Address: "shop@example.com"},
		To:             []mail.Address{{Address: "ada@example.org"}},
		Subject:        subject,
		Text:           "Thank you.",
		IdempotencyKey: key,
	}
}

// describe says what an answer means for the job.
func describe(receipt *idemmail.Receipt, err error) string {
	switch {
	case err == nil && receipt.Replayed:
		return "sent before by " + receipt.ProviderID
	case err == nil:
		return "sent by " + receipt.ProviderID
	case errors.Is(err, gobreaker.ErrOpenState):
		return "not sent, try later"
	case errors.Is(err, idemmail.ErrKeyReused):
		return "key reused"
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
