//go:build !race

package idemmail_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
)

// Allocation budgets of a whole send with a MemStore. The race detector
// allocates too, so they are counted without it.
const (
	unkeyedBudget = 0
	replayBudget  = 5
	newBudget     = 14 // where the receipt has no lists
)

var budgetReceipt = idemmail.Receipt{
	Status:     statusSent,
	Transport:  "smtp",
	MessageID:  "m@example.org",
	ProviderID: "4Q1",
	Response:   "250 2.0.0 queued as 4Q1",
	At:         time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC),
}

// budgetOptions have a store that does not have to grow as it is measured.
func budgetOptions(t testing.TB) idemmail.Options {
	mem, _ := newMemStore(4096)
	for i := range 4096 {
		mustSettle(t, mem, fmt.Sprint("filled/", i), statusSent, time.Hour)
	}
	return idemmail.Options{Namespace: doorNamespace, Store: mem}
}

// budgetDoors are the doors of one message. Their transports allocate nothing
// but what a transport must: its receipt.
var budgetDoors = map[string]func(testing.TB, idemmail.Options) (send func(key string) (*idemmail.Receipt, error)){
	"Send": func(t testing.TB, options idemmail.Options) func(string) (*idemmail.Receipt, error) {
		transport, err := idemmail.New(idemmail.TransportFunc(func(context.Context, *idemmail.Message) (*idemmail.Receipt, error) {
			return &budgetReceipt, nil
		}), options)
		require.NoError(t, err)
		m := &idemmail.Message{Subject: "Your order", Text: "Thank you."}
		return func(key string) (*idemmail.Receipt, error) {
			m.IdempotencyKey = key
			return transport.Send(t.Context(), m)
		}
	},
	"SendRaw": func(t testing.TB, options idemmail.Options) func(string) (*idemmail.Receipt, error) {
		transport, err := idemmail.New(rawTransport{send: func(context.Context, *idemmail.RawMessage) (*idemmail.Receipt, error) {
			return &budgetReceipt, nil
		}}, options)
		require.NoError(t, err)
		m := &idemmail.RawMessage{From: "shop@example.com", To: []string{"a@example.org"}}
		return func(key string) (*idemmail.Receipt, error) {
			m.IdempotencyKey = key
			return transport.SendRaw(t.Context(), m)
		}
	},
	"Guard.Do": func(t testing.TB, options idemmail.Options) func(string) (*idemmail.Receipt, error) {
		guard, err := idemmail.NewGuard(options)
		require.NoError(t, err)
		do := answers(&budgetReceipt, nil)
		return func(key string) (*idemmail.Receipt, error) { return guard.Do(t.Context(), key, "", do) }
	},
}

func TestAllocationBudgets(t *testing.T) {
	for name, open := range budgetDoors {
		t.Run(name, func(t *testing.T) {
			t.Run("no key", func(t *testing.T) {
				send := open(t, budgetOptions(t))
				require.EqualValues(t, unkeyedBudget, testing.AllocsPerRun(200, func() {
					_, _ = send("")
				}))
			})

			t.Run("replay", func(t *testing.T) {
				send := open(t, budgetOptions(t))
				r, err := send("k")
				requireFirst(t, r, err)
				require.LessOrEqual(t, testing.AllocsPerRun(200, func() {
					r, err = send("k")
				}), float64(replayBudget))
				requireReplay(t, r, err)
			})

			t.Run("new", func(t *testing.T) {
				const runs = 200
				keys := make([]string, runs+1) // AllocsPerRun runs once more, first
				for i := range keys {
					keys[i] = fmt.Sprint("order/", i)
				}
				send := open(t, budgetOptions(t))
				next := 0
				require.LessOrEqual(t, testing.AllocsPerRun(runs, func() {
					r, err := send(keys[next])
					next++
					if err != nil || r.Replayed {
						t.Fatal(r, err)
					}
				}), float64(newBudget))
			})
		})
	}
}
