package idemmail_test

import (
	"context"
	"fmt"
	"time"

	"github.com/idemmail/idemmail"
)

// A store is seldom called by hand; this is what a transport does with it.
func ExampleMemStore() {
	store := idemmail.NewMemStore(idemmail.MemStoreOptions{MaxEntries: 10_000})
	ctx := context.Background()
	const key, fingerprint = "orders:confirmation/1042", "1:5e88"

	// The first to come takes the key, sends, and keeps what became of it.
	token, _, err := store.Reserve(ctx, key, fingerprint, time.Minute)
	if err != nil {
		fmt.Println(err)
		return
	}
	err = store.Complete(ctx, key, token, idemmail.Record{
		State:       idemmail.StateDone,
		Fingerprint: fingerprint,
		Receipt:     &idemmail.Receipt{Status: idemmail.StatusSent, ProviderID: "7f3a"},
	}, 24*time.Hour)
	if err != nil {
		fmt.Println(err)
		return
	}

	// All others are shown it.
	_, held, err := store.Reserve(ctx, key, fingerprint, time.Minute)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(held.State, held.Receipt.Status, held.Receipt.ProviderID)
	// Output: done sent 7f3a
}

// What became of an unknown outcome is for an operator to say.
func ExampleMemStore_Unsettled() {
	store := idemmail.NewMemStore(idemmail.MemStoreOptions{})
	ctx := context.Background()
	lost := idemmail.Record{
		State:   idemmail.StateDone,
		Receipt: &idemmail.Receipt{Status: idemmail.StatusUnknown, MessageID: "1042@example.org"},
	}
	if err := store.Complete(ctx, "orders:confirmation/1042", "", lost, idemmail.NoExpiry); err != nil {
		fmt.Println(err)
		return
	}

	for entry, err := range store.Unsettled(ctx, "orders:", 10*time.Minute) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(entry.Key, entry.Record.Receipt.MessageID)
		// The provider does not have it: free the key, so that it goes again.
		if err := store.Forget(ctx, entry); err != nil {
			fmt.Println(err)
		}
	}
	fmt.Println(store.Len(), "left")
	// Output:
	// orders:confirmation/1042 1042@example.org
	// 0 left
}
