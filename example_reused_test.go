package idemmail_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/idemmail/idemmail"
)

// Another mail under a used key is refused, not taken for the first one: the
// key was badly chosen.
func ExampleIdempotencyTransport_Send_reusedKey() {
	guarded, _ := idemmail.New(&provider{}, idemmail.Options{Namespace: "shop"})
	ctx := context.Background()
	_, _ = guarded.Send(ctx, confirmation("1042"))

	reminder := confirmation("1042")
	reminder.Subject = "Please rate your order"
	receipt, err := guarded.Send(ctx, reminder)
	fmt.Println(errors.Is(err, idemmail.ErrKeyReused), receipt.Status, receipt.Retryable)
	// Output: true failed false
}
