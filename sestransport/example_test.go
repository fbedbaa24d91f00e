package sestransport_test

import (
	"context"
	"fmt"
	"io"
	"net/mail"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sesv2"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/sestransport"
)

func Example() {
	// In a program: sesv2.NewFromConfig(cfg), as config.LoadDefaultConfig made it.
	var client sestransport.API = fakeSES{}

	ses, err := sestransport.New(client, sestransport.Options{
		ConfigurationSet: "events",
		KeyTag:           "idempotency-key",
		Namespace:        "shop-production",
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	mailer, err := idemmail.New(ses, idemmail.Options{Namespace: "shop-production"})
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 2 {
		receipt, err := mailer.Send(context.Background(), &idemmail.Message{
			From:           mail.Address{Name: "Shop", Address: "shop@example.com"},
			To:             []mail.Address{{Address: "ann@example.org"}},
			Subject:        "Your order 1042",
			Text:           "Thank you.",
			IdempotencyKey: "order/1042/confirmation",
		})
		fmt.Println(receipt.Status, receipt.ProviderID, receipt.Replayed, err)
	}
	// Output:
	// sent 0102-message-000000 false <nil>
	// sent 0102-message-000000 true <nil>
}

// The answer of SES is lost, so that nobody knows whether the mail went. Then
// SES publishes that it did.
func ExampleTransport_Resolve() {
	ctx := context.Background()
	ses, err := sestransport.New(losingSES{}, sestransport.Options{
		ConfigurationSet: "events", // publishes Send to an SNS topic that feeds a queue
		KeyTag:           "idempotency-key",
		Namespace:        "shop",
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	mailer, err := idemmail.New(ses, idemmail.Options{Namespace: "shop"})
	if err != nil {
		fmt.Println(err)
		return
	}
	order := &idemmail.Message{
		From:           mail.Address{Address: "shop@example.com"},
		To:             []mail.Address{{Address: "ann@example.org"}},
		Subject:        "Your order 1042",
		Text:           "Thank you.",
		IdempotencyKey: "order/1042",
	}
	receipt, _ := mailer.Send(ctx, order)
	fmt.Println(receipt.Status)

	// handle is what the queue's consumer does with what it has received. An
	// error keeps it on the queue.
	handle := func(bodies ...[]byte) error {
		var events []sestransport.Event
		for _, body := range bodies {
			e, err := sestransport.ParseEvent(body)
			if err != nil {
				return err
			}
			events = append(events, e)
		}
		n, err := ses.Resolve(ctx, mailer, events...)
		fmt.Println("resolved", n)
		return err
	}
	if err := handle([]byte(`{
		"eventType": "Send",
		"mail": {
			"timestamp": "2026-10-14T05:02:16.645Z",
			"messageId": "0102-message-000000",
			"tags": {"idempotency-key": ["` + idemmail.ProviderKey("shop", "order/1042") + `"]}
		},
		"send": {}
	}`)); err != nil {
		fmt.Println(err)
	}

	receipt, err = mailer.Send(ctx, order) // the job runs again
	fmt.Println(receipt.Status, receipt.ProviderID, receipt.Replayed, err)
	// Output:
	// unknown
	// resolved 1
	// sent 0102-message-000000 true <nil>
}

// fakeSES takes every message.
type fakeSES struct{}

func (fakeSES) SendEmail(context.Context, *sesv2.SendEmailInput, ...func(*sesv2.Options)) (*sesv2.SendEmailOutput, error) {
	return &sesv2.SendEmailOutput{MessageId: aws.String("0102-message-000000")}, nil
}

// losingSES takes every message, and the connection is lost before it says so.
type losingSES struct{}

func (losingSES) SendEmail(context.Context, *sesv2.SendEmailInput, ...func(*sesv2.Options)) (*sesv2.SendEmailOutput, error) {
	return nil, io.ErrUnexpectedEOF
}
