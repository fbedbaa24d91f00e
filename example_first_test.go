package idemmail_test

import (
	"context"
	"fmt"
	"net/mail"

	"github.com/idemmail/idemmail"
)

// provider stands for the transport that you have: SES, SMTP, an HTTP API.
type provider struct{ sent int }

func (p *provider) Send(context.Context, *idemmail.Message) (*idemmail.Receipt, error) {
	p.sent++
	return &idemmail.Receipt{Status: idemmail.StatusSent, ProviderID: fmt.Sprintf("mail-%d", p.sent)}, nil
}

func confirmation(order string) *idemmail.Message {
	return &idemmail.Message{
		From:           mail.Address{Name: "Shop", Address: "shop@example.com"},
		To:             []mail.Address{{Name: "Ada", Address: "ada@example.org"}},
		Subject:        "Your order " + order,
		Text:           "Thank you.",
		IdempotencyKey: "order/" + order + "/confirmation",
	}
}

// Wrap the transport once, and give each message a key.
func Example() {
	guarded, err := idemmail.New(&provider{}, idemmail.Options{Namespace: "shop"})
	if err != nil {
		fmt.Println(err)
		return
	}
	receipt, err := guarded.Send(context.Background(), confirmation("1042"))
	fmt.Println(receipt.Status, receipt.ProviderID, err)
	// Output: sent mail-1 <nil>
}
