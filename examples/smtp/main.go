// Smtp sends mails over SMTP, each of them twice, and prints the receipts. The
// server is in this process: it takes the first mail, refuses a recipient of
// the second, and takes the third, but the connection breaks before it can say
// so. The example exits with 1 if the server received a mail twice or missed
// one.
//
// With -addr it sends one mail, twice, to a server of yours:
//
//	SMTP_PASSWORD=... go run ./examples/smtp -addr smtp.example.com:587 -username me -from me@example.com -to you@example.org
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/mail"
	"os"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/examples/internal/inbox"
	"github.com/idemmail/idemmail/smtptransport"
)

func main() {
	addr := flag.String("addr", "", "host:port of a server with STARTTLS; empty: one in this process")
	username := flag.String("username", "", "for AUTH, with the password in SMTP_PASSWORD; empty: no AUTH")
	from := flag.String("from", "shop@example.com", "sender")
	to := flag.String("to", "ada@example.org", "recipient")
	flag.Parse()

	ctx := context.Background()
	var err error
	if *addr == "" {
		err = runHere(ctx, *from, *to)
	} else {
		err = runThere(ctx, smtptransport.Options{
			Addr:     *addr, // TLS is left out: STARTTLS, mandatory
			Username: *username,
			Password: os.Getenv("SMTP_PASSWORD"),
		}, *from, *to)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "smtp:", err)
		os.Exit(1)
	}
}

// newMailer is all that a program needs.
func newMailer(options smtptransport.Options) (*idemmail.IdempotencyTransport, error) {
	transport, err := smtptransport.New(options)
	if err != nil {
		return nil, err
	}
	return idemmail.New(transport, idemmail.Options{
		// Store is left out: keys in memory, for this process only.
		Namespace:       "smtp-example",
		MessageIDDomain: "shop.example.com",            // the same Message-ID on every attempt
		Logger:          slog.New(slog.DiscardHandler), // what is printed says it all
	})
}

// confirmation is built anew for each attempt, as a job does that runs twice.
func confirmation(order, from string, to ...string) *idemmail.Message {
	m := &idemmail.Message{
		From:           mail.Address{Name: "Shop", Address: from},
		Subject:        "Your order " + order,
		Text:           "Thank you.\n",
		IdempotencyKey: "order/" + order + "/confirmation",
	}
	for _, address := range to {
		m.To = append(m.To, mail.Address{Address: address})
	}
	return m
}

// runThere sends one mail twice, through somebody's server.
func runThere(ctx context.Context, options smtptransport.Options, from, to string) error {
	mailer, err := newMailer(options)
	if err != nil {
		return err
	}
	for range 2 {
		receipt, err := mailer.Send(ctx, confirmation("1001", from, to))
		if err != nil {
			return err
		}
		fmt.Println(describe(receipt, nil))
	}
	return nil
}

// runHere shows what may become of a mail. An error means that a promise was
// broken.
func runHere(ctx context.Context, from, to string) error {
	server, err := inbox.Start()
	if err != nil {
		return err
	}
	defer server.Close()
	mailer, err := newMailer(smtptransport.Options{
		Addr: server.Addr,
		TLS:  smtptransport.NoTLS, // it never leaves this process
	})
	if err != nil {
		return err
	}
	for _, order := range []struct {
		id string
		to []string
	}{
		{"1001", []string{to}},
		{"1002", []string{to, inbox.Refused}},
		{"1003", []string{inbox.Lost}},
	} {
		m := confirmation(order.id, from, order.to...)
		fmt.Printf("%s\n  first:  %s\n", m.IdempotencyKey, describe(mailer.Send(ctx, m)))
		fmt.Printf("  second: %s\n", describe(mailer.Send(ctx, confirmation(order.id, from, order.to...))))
		received := server.Received(m.Subject)
		fmt.Printf("  the server received it %d time(s)\n", received)
		if received != 1 {
			return fmt.Errorf("%s was received %d times", m.IdempotencyKey, received)
		}
	}
	return nil
}

// describe tells what a receipt and an error say.
func describe(receipt *idemmail.Receipt, err error) string {
	s := string(receipt.Status)
	if receipt.Replayed {
		s += ", answered from the store"
	}
	if errors.Is(err, idemmail.ErrDeliveryUnknown) {
		return s + ": it may have gone (" + receipt.Code + "), ask the server"
	}
	if err != nil {
		return s + ": " + err.Error()
	}
	s += ": queue id " + receipt.ProviderID
	for _, r := range receipt.Rejected {
		s += fmt.Sprintf("; %s was refused with %d", r.Address, r.Code)
	}
	return s
}
