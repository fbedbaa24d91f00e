package idemmail_test

import (
	"context"
	"fmt"
	"net/mail"
	"time"

	"github.com/idemmail/idemmail"
)

// Moving in: what another system has sent already is not to go again. Each
// such key is done once under the senders' own options, by a function that
// sends nothing. An empty fingerprint fits every message of senders with the
// package's own Fingerprint.
func ExampleGuard_Do_import() {
	options := idemmail.Options{
		Store:     idemmail.NewMemStore(idemmail.MemStoreOptions{}),
		Namespace: "orders",
		TTL:       7 * 24 * time.Hour,
	}
	ctx := context.Background()
	sentBefore := []struct {
		key, providerID string
		at              time.Time
	}{
		{"order/1041/confirmation", "7f39", time.Date(2026, 1, 2, 8, 0, 0, 0, time.UTC)},
		{"order/1042/confirmation", "7f3a", time.Date(2026, 1, 2, 8, 5, 0, 0, time.UTC)},
	}

	importer, err := idemmail.NewGuard(options)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, m := range sentBefore {
		_, err := importer.Do(ctx, m.key, "", func(context.Context) (*idemmail.Receipt, error) {
			return &idemmail.Receipt{Status: idemmail.StatusSent, ProviderID: m.providerID, At: m.at}, nil
		})
		if err != nil {
			fmt.Println(err)
			return
		}
	}

	provider := idemmail.TransportFunc(func(_ context.Context, m *idemmail.Message) (*idemmail.Receipt, error) {
		fmt.Println("the provider gets", m.IdempotencyKey)
		return &idemmail.Receipt{Status: idemmail.StatusSent, ProviderID: "7f3b"}, nil
	})
	mailer, err := idemmail.New(provider, options)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, order := range []string{"1042", "1043"} {
		receipt, err := mailer.Send(ctx, &idemmail.Message{
			From:           mail.Address{Address: "shop@example.com"},
			To:             []mail.Address{{Address: "ada@example.org"}},
			Subject:        "Your order " + order,
			IdempotencyKey: "order/" + order + "/confirmation",
		})
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(receipt.ProviderID, "replayed:", receipt.Replayed)
	}
	// Output:
	// 7f3a replayed: true
	// the provider gets order/1043/confirmation
	// 7f3b replayed: false
}
