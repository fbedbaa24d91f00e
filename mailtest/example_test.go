package mailtest_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/mailtest"
)

var confirmation = &idemmail.Message{Subject: "Your order", IdempotencyKey: "order/1042"}

// guard stands for what the program under test does with its transport.
func guard(next idemmail.Transport) *idemmail.IdempotencyTransport {
	transport, err := idemmail.New(next, idemmail.Options{Namespace: "orders"})
	if err != nil {
		panic(err)
	}
	return transport
}

// A job that runs twice sends its mail once.
func ExampleTransport() {
	mails := new(mailtest.Transport)
	transport := guard(mails)

	for range 2 {
		receipt, err := transport.Send(context.Background(), confirmation)
		fmt.Println(receipt.Status, "by send", receipt.ProviderID, "replayed:", receipt.Replayed, err)
	}
	fmt.Println("sends:", mails.SendsOf("order/1042"))
	fmt.Println("subject:", mails.Messages()[0].Subject)
	// Output:
	// sent by send 1 replayed: false <nil>
	// sent by send 1 replayed: true <nil>
	// sends: 1
	// subject: Your order
}

// A mail that was refused may be sent again; one that may have gone must not.
func ExampleTransport_Next() {
	mails := new(mailtest.Transport)
	mails.Next(
		mailtest.Failed(errors.New("mailbox is busy")),
		mailtest.Unknown(errors.New("connection lost after the final dot")),
	)
	transport := guard(mails)

	for range 3 {
		receipt, err := transport.Send(context.Background(), confirmation)
		fmt.Println(receipt.Status, "replayed:", receipt.Replayed, "may have gone:", errors.Is(err, idemmail.ErrDeliveryUnknown))
	}
	fmt.Println("sends:", mails.Sends())
	// Output:
	// failed replayed: false may have gone: false
	// unknown replayed: false may have gone: true
	// unknown replayed: true may have gone: true
	// sends: 2
}

// With several goroutines, outcomes are scripted for each key.
func ExampleTransport_NextFor() {
	mails := new(mailtest.Transport)
	mails.NextFor("order/1042", mailtest.Failed(nil))
	transport := guard(mails)

	for _, result := range transport.SendMany(context.Background(), []*idemmail.Message{
		{Subject: "Your order", IdempotencyKey: "order/1041"},
		{Subject: "Your order", IdempotencyKey: "order/1042"},
	}) {
		fmt.Println(result.Receipt.Status)
	}
	// Output:
	// sent
	// failed
}

// A server that does not answer, and a caller that gives up.
func ExampleHang() {
	mails := new(mailtest.Transport)
	mails.Next(mailtest.Hang())

	ctx, giveUp := context.WithCancel(context.Background())
	go func() {
		for mails.Sends() == 0 {
			time.Sleep(time.Millisecond)
		}
		giveUp()
	}()
	receipt, err := guard(mails).Send(ctx, confirmation)
	fmt.Println(receipt.Status, errors.Is(err, idemmail.ErrAborted), errors.Is(err, context.Canceled))
	// Output: unknown true true
}

// A second send comes while the first is in flight.
func ExampleOutcome_After() {
	mails := new(mailtest.Transport)
	answer := make(chan struct{})
	mails.Next(mailtest.Sent().After(answer))
	transport := guard(mails)

	first := make(chan error)
	go func() {
		_, err := transport.Send(context.Background(), confirmation)
		first <- err
	}()
	for mails.Sends() == 0 {
		time.Sleep(time.Millisecond)
	}

	_, err := transport.Send(context.Background(), confirmation)
	fmt.Println("in flight:", errors.Is(err, idemmail.ErrInFlight))
	close(answer)
	fmt.Println("first:", <-first)
	// Output:
	// in flight: true
	// first: <nil>
}

// Any answer at all: here a server that took one recipient and refused another.
func ExampleAnswer() {
	mails := new(mailtest.Transport)
	mails.Next(mailtest.Answer(&idemmail.Receipt{
		Status:   idemmail.StatusSent,
		Accepted: []string{"ann@example.com"},
		Rejected: []idemmail.Rejection{{Address: "ben@example.com", Reason: "no such user", Code: 550}},
	}, nil))

	receipt, err := guard(mails).Send(context.Background(), confirmation)
	fmt.Println(receipt.Accepted, receipt.Rejected[0].Address, err)
	// Output: [ann@example.com] ben@example.com <nil>
}

// A provider that takes many messages in one call gets only those that are to go.
func ExampleBatchTransport() {
	mails := new(mailtest.BatchTransport)
	transport := guard(mails)

	newsletter := []*idemmail.Message{
		{Subject: "News", IdempotencyKey: "news/7/ann"},
		{Subject: "News", IdempotencyKey: "news/7/ben"},
	}
	transport.SendMany(context.Background(), newsletter)
	newsletter = append(newsletter, &idemmail.Message{Subject: "News", IdempotencyKey: "news/7/cid"})
	transport.SendMany(context.Background(), newsletter)

	for _, batch := range mails.Batches() {
		fmt.Println("a call with", len(batch))
		for _, m := range batch {
			fmt.Println(m.IdempotencyKey)
		}
	}
	// Output:
	// a call with 2
	// news/7/ann
	// news/7/ben
	// a call with 1
	// news/7/cid
}
