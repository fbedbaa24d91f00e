package idemmail_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
)

// A store that answers too few results, or too many, has reserved for nobody:
// what it has answered a token for is freed.
func TestBatchStoreThatMiscounts(t *testing.T) {
	for _, n := range []int{1, 2, 4} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			mem := idemmail.NewMemStore(idemmail.MemStoreOptions{})
			b := &batcher{}
			results := openTransport(t, manyBatcher{b}, idemmail.Options{Store: miscounting{mem, n}, AtMostOnce: true}).
				SendMany(t.Context(), batchOf("1:a", "2:b", ":c", "3:d"))
			require.Equal(t, []string{"failed idempotency.store_failed", "failed idempotency.store_failed", "c ok", "failed idempotency.store_failed"}, summaries(results))
			require.ErrorContains(t, results[0].Err, fmt.Sprintf("answered %d results to 3 requests", n))
			require.Equal(t, []string{"c"}, b.went)
			require.Equal(t, max(0, 3-n), mem.Len(), "keys of which no token is known")
		})
	}
}

// miscounting answers n results to any reservation of many keys.
type miscounting struct {
	*idemmail.MemStore
	n int
}

func (s miscounting) ReserveMany(ctx context.Context, reqs []idemmail.ReserveRequest) []idemmail.ReserveResult {
	results := append(s.MemStore.ReserveMany(ctx, reqs), idemmail.ReserveResult{Token: "nobody's"})
	return results[:s.n]
}

// One that answers so to a renewal or to settling has failed for every key,
// and no message is answered otherwise for it.
func TestBatchStoreThatMiscountsLater(t *testing.T) {
	for _, n := range []int{0, 1, 2, 4} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, seen := &batcher{}, new(observed)
				b.does = func(_ context.Context, m *idemmail.Message) (*idemmail.Receipt, error) {
					if m.IdempotencyKey > "3" {
						return nil, errRefused
					}
					return &idemmail.Receipt{ProviderID: m.Subject}, nil
				}
				b.ends = func(results []idemmail.Result) []idemmail.Result {
					time.Sleep(1100 * time.Millisecond) // for one renewal
					return results
				}
				store := miscountingLater{idemmail.NewMemStore(idemmail.MemStoreOptions{}), n}
				transport := openTransport(t, manyBatcher{b}, seen.options(idemmail.Options{Store: store, Lease: 3 * time.Second}))
				results := transport.SendMany(t.Context(), batchOf("1:a", "2:b", "3:c", "4:d", "5:e", "6:f"))
				require.Equal(t, []string{"sent a ok", "sent b ok", "sent c ok", "failed", "failed", "failed"}, summaries(results))
				failures := map[string][]string{}
				for _, e := range seen.events {
					if e.Kind == idemmail.EventStoreFailed {
						failures[e.Key] = append(failures[e.Key], e.Err.Error())
					}
				}
				for _, m := range batchOf("1", "2", "3", "4", "5", "6") {
					require.Equal(t, []string{
						fmt.Sprintf("store answered %d results to 6 requests", n),
						fmt.Sprintf("store answered %d results to 3 requests", n),
					}, failures[m.IdempotencyKey], m.IdempotencyKey)
				}
			})
		})
	}
}

// miscountingLater answers n results to anything but a reservation.
type miscountingLater struct {
	*idemmail.MemStore
	n int
}

func (s miscountingLater) CompleteMany(context.Context, []idemmail.CompleteRequest) []error {
	return make([]error, s.n)
}

func (s miscountingLater) ReleaseMany(context.Context, []idemmail.ReleaseRequest) []error {
	return make([]error, s.n)
}

func (s miscountingLater) RenewMany(context.Context, []idemmail.RenewRequest) []error {
	return make([]error, s.n)
}
