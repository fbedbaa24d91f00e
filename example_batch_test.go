package idemmail_test

import (
	"context"
	"fmt"

	"github.com/idemmail/idemmail"
)

// Each message of a batch has its own answer.
func ExampleIdempotencyTransport_SendMany() {
	guarded, _ := idemmail.New(&provider{}, idemmail.Options{Namespace: "shop"})
	results := guarded.SendMany(context.Background(), []*idemmail.Message{
		confirmation("1042"),
		confirmation("1043"),
		confirmation("1042"), // again
	})
	for _, result := range results {
		fmt.Println(result.Receipt.ProviderID, "replayed:", result.Receipt.Replayed, result.Err)
	}
	// Output:
	// mail-1 replayed: false <nil>
	// mail-2 replayed: false <nil>
	// mail-1 replayed: true <nil>
}
