package storetest_test

import (
	"context"
	"fmt"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/storetest"
)

// A sticky store says that it has released a key, and keeps it.
type sticky struct{ idemmail.Store }

func (sticky) Release(ctx context.Context, key, token string) error { return ctx.Err() }

// What the author of a store with a fault gets to read.
func ExampleCheck() {
	err := storetest.Check(storetest.Config{
		Open: func() (idemmail.Store, error) {
			return sticky{idemmail.NewMemStore(idemmail.MemStoreOptions{})}, nil
		},
	})
	fmt.Println(err)
	// Output:
	// storetest: release: Release under the token that holds the key frees it; a key that stays after a send that failed answers every retry 'in flight' and the mail never goes
	// 	after its release, the key must be free; Reserve answered a record (state "pending", fingerprint "1:mine", no receipt)
}
