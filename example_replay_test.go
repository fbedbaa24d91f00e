package idemmail_test

import (
	"context"
	"fmt"

	"github.com/idemmail/idemmail"
)

// A job that runs twice sends once: the second run gets the first one's
// receipt.
func ExampleIdempotencyTransport_Send_replay() {
	p := &provider{}
	guarded, _ := idemmail.New(p, idemmail.Options{Namespace: "shop"})
	for range 2 {
		receipt, err := guarded.Send(context.Background(), confirmation("1042"))
		fmt.Println(receipt.ProviderID, "replayed:", receipt.Replayed, err)
	}
	fmt.Println("sent:", p.sent)
	// Output:
	// mail-1 replayed: false <nil>
	// mail-1 replayed: true <nil>
	// sent: 1
}
