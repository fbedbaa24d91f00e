package idemmail_test

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/idemmail/idemmail"
)

// The connection broke and nobody knows whether the mail went. It is not sent
// again: a retry gets the same answer, until somebody who has asked the
// provider settles it.
func ExampleIdempotencyTransport_Resolve() {
	broken := idemmail.TransportFunc(func(context.Context, *idemmail.Message) (*idemmail.Receipt, error) {
		return nil, fmt.Errorf("waiting for the reply: %w", io.ErrUnexpectedEOF)
	})
	guarded, _ := idemmail.New(broken, idemmail.Options{Namespace: "shop"})
	ctx := context.Background()
	for range 2 {
		receipt, err := guarded.Send(ctx, confirmation("1042"))
		fmt.Println(receipt.Status, "replayed:", receipt.Replayed, errors.Is(err, idemmail.ErrDeliveryUnknown))
	}

	for entry, err := range guarded.Unsettled(ctx, 0) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println("unsettled:", entry.Key)
		// The provider has it. If it had not: guarded.Forget(ctx, entry)
		err = guarded.Resolve(ctx, entry, &idemmail.Receipt{Status: idemmail.StatusSent, ProviderID: "mail-7"})
		fmt.Println("resolved:", err)
	}
	receipt, err := guarded.Send(ctx, confirmation("1042"))
	fmt.Println(receipt.Status, receipt.ProviderID, err)
	// Output:
	// unknown replayed: false true
	// unknown replayed: true true
	// unsettled: order/1042/confirmation
	// resolved: <nil>
	// sent mail-7 <nil>
}
