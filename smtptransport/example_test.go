package smtptransport_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/mail"
	"os"

	"github.com/emersion/go-sasl"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/smtptransport"
)

// A submission server that wants STARTTLS and a password.
func ExampleNew() {
	transport, err := smtptransport.New(smtptransport.Options{
		Addr:      "smtp.example.com:587",
		Username:  "shop",
		Password:  os.Getenv("SMTP_PASSWORD"),
		KeyHeader: "X-Idempotency-Key",
	})
	if err != nil {
		log.Fatal(err)
	}
	mailer, err := idemmail.New(transport, idemmail.Options{Namespace: "shop-production"})
	if err != nil {
		log.Fatal(err)
	}
	receipt, err := mailer.Send(context.Background(), &idemmail.Message{
		From:           mail.Address{Name: "Shop", Address: "shop@example.com"},
		To:             []mail.Address{{Name: "Ada", Address: "ada@example.org"}},
		Subject:        "Your order 1042",
		Text:           "Thank you.",
		IdempotencyKey: "order/1042/confirmation",
	})
	var smtpError *smtptransport.Error
	switch {
	case err == nil:
		fmt.Println("sent as", receipt.ProviderID)
	case errors.Is(err, idemmail.ErrDeliveryUnknown):
		fmt.Println("it may have gone: do not send it again")
	case errors.As(err, &smtpError):
		fmt.Println("not sent:", smtpError.Phase, smtpError.Code, smtpError.Enhanced)
	}
}

// A mechanism of one's own: XOAUTH2, with a token that is fetched for each
// connection.
func ExampleOptions_auth() {
	transport, err := smtptransport.New(smtptransport.Options{
		Addr: "smtp.example.com:465",
		TLS:  smtptransport.ImplicitTLS,
		Auth: func() sasl.Client { return xoauth2{"shop@example.com", freshToken()} },
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(transport.ID())
	// Output: smtp
}

type xoauth2 struct{ user, token string }

func (c xoauth2) Start() (mechanism string, response []byte, err error) {
	return "XOAUTH2", []byte("user=" + c.user + "\x01auth=Bearer " + c.token + "\x01\x01"), nil
}

// Next answers the server's account of what is wrong, after which it refuses.
func (xoauth2) Next([]byte) ([]byte, error) { return []byte{}, nil }

func freshToken() string { return "ya29.example" }
