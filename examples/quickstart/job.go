package main

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"net/mail"
	"strings"

	"github.com/idemmail/idemmail"
)

//go:embed orders.jsonl
var ordersFile []byte

// An order is a line of orders.jsonl.
type order struct {
	ID        string     `json:"id"`
	Customers []customer `json:"customers"`
	Items     []item     `json:"items"`
	Invoice   string     `json:"invoice"` // file name; empty: none
	Late      bool       `json:"late"`    // comes in after the second run
}

type customer struct {
	Name    string `json:"name"`
	Address string `json:"address"`
}

type item struct {
	Name     string `json:"name"`
	Quantity int    `json:"quantity"`
	Cents    int    `json:"cents"`
}

func readOrders() ([]order, error) {
	var orders []order
	for lines := bufio.NewScanner(bytes.NewReader(ordersFile)); lines.Scan(); {
		var o order
		if err := json.Unmarshal(lines.Bytes(), &o); err != nil {
			return nil, fmt.Errorf("orders.jsonl, line %d: %w", len(orders)+1, err)
		}
		orders = append(orders, o)
	}
	return orders, nil
}

// key names the mail: the order and the kind of mail, the same in every run.
func (o order) key() string { return "order/" + o.ID + "/confirmation" }

// message is built anew in each run, as a job does that was enqueued twice.
func (o order) message() *idemmail.Message {
	m := &idemmail.Message{
		From:           mail.Address{Name: "Lädchen", Address: "shop@example.com"},
		Subject:        "Your order " + o.ID,
		IdempotencyKey: o.key(),
	}
	for _, c := range o.Customers {
		m.To = append(m.To, mail.Address{Name: c.Name, Address: c.Address})
	}
	var text, invoice strings.Builder
	fmt.Fprintf(&text, "Dear %s,\n\nthank you for your order:\n\n", o.Customers[0].Name)
	for _, i := range o.Items {
		fmt.Fprintf(&text, "%3d x %s\n", i.Quantity, i.Name)
		fmt.Fprintf(&invoice, "%q,%d,%.2f\n", i.Name, i.Quantity, float64(i.Cents)/100)
	}
	m.Text = text.String()
	if o.Invoice != "" {
		m.Attachments = []idemmail.Attachment{{Filename: o.Invoice, ContentType: "text/csv; charset=utf-8", Content: []byte(invoice.String())}}
	}
	return m
}

// answers has what a run said, by key.
type answers map[string]string

// job sends the mail of every order. It may run as often as it likes.
func job(ctx context.Context, mailer idemmail.Transport, orders []order) answers {
	said := make(answers)
	for _, o := range orders {
		said[o.key()] = describe(mailer.Send(ctx, o.message()))
	}
	return said
}

// describe says what a worker makes of an answer. A queue worker acknowledges
// the job on the first two, and lets it come again, or parks it, on the others.
func describe(receipt *idemmail.Receipt, err error) string {
	switch {
	case err == nil && receipt.Replayed:
		return "sent before"
	case err == nil:
		return "sent"
	case errors.Is(err, idemmail.ErrInFlight):
		return "in flight"
	case errors.Is(err, idemmail.ErrDeliveryUnknown):
		return "unknown, left alone"
	default:
		return "failed: " + err.Error()
	}
}
