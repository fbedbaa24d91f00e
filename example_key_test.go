package idemmail_test

import (
	"context"
	"fmt"
	"slices"

	"github.com/idemmail/idemmail"
)

// The key is derived from the message, and newsletters are left out: they go
// as they are, each time.
func ExampleOptions_key() {
	p := &provider{}
	guarded, _ := idemmail.New(p, idemmail.Options{
		Namespace: "shop",
		Key: func(m *idemmail.Message) string {
			if slices.Contains(m.Tags, "newsletter") {
				return ""
			}
			return m.Metadata["kind"] + "/" + m.Metadata["order"]
		},
	})
	ctx := context.Background()
	invoice := &idemmail.Message{Metadata: map[string]string{"kind": "invoice", "order": "1042"}}
	newsletter := &idemmail.Message{Tags: []string{"newsletter"}}
	for range 2 {
		_, _ = guarded.Send(ctx, invoice)
		_, _ = guarded.Send(ctx, newsletter)
	}
	fmt.Println("sent:", p.sent)
	// Output: sent: 3
}
