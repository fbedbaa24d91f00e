package idemmail_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
)

// C20, C53: a queue hands a job to a second worker while the first still
// sends, for far longer than its lease. The mail goes once.
func TestRedeliveryWhileTheFirstWorkerSends(t *testing.T) {
	const lease, sending = time.Minute, 10 * time.Minute
	for _, atMostOnce := range []bool{false, true} {
		for _, after := range []time.Duration{0, 10, 50, 99, 101} { // percent of the first send
			t.Run(fmt.Sprintf("at %d %%, AtMostOnce %v", after, atMostOnce), func(t *testing.T) {
				inBubble(t, func(t *testing.T, d door) {
					options := idemmail.Options{
						Store:      idemmail.NewMemStore(idemmail.MemStoreOptions{}),
						Lease:      lease,
						MaxSend:    2 * sending,
						AtMostOnce: atMostOnce,
					}
					first := waiters(t.Context(), 1, d.open(t, options, func(ctx context.Context) (*idemmail.Receipt, error) {
						time.Sleep(sending)
						return nil, ctx.Err()
					}), "k", "a")
					synctest.Wait()
					time.Sleep(sending * after / 100)
					r, err := d.open(t, options, notToBeSent(t))(t.Context(), "k", "a")
					if after < 100 {
						requireInFlight(t, r, err)
					} else {
						requireReplay(t, r, err)
					}
					a := <-first
					requireFirst(t, a.receipt, a.err)
				})
			})
		}
	}
}

// C41, C42: a store that loses a reservation, by an eviction or a failover,
// keeps the receipt all the same.
func TestReservationLostWhileTheMessageIsSent(t *testing.T) {
	for _, test := range []struct {
		name string
		err  error
		want idemmail.Status
	}{
		{"sent", nil, statusSent},
		{"unknown", errMaybe, statusUnknown},
		{"failed", errNotTaken, statusFailed},
	} {
		t.Run(test.name, func(t *testing.T) {
			throughDoorsAndStores(t, func(t *testing.T, d door, s *shelf) {
				events := new(eventLog)
				send := d.open(t, idemmail.Options{Store: s.store, Observe: events.observe}, func(ctx context.Context) (*idemmail.Receipt, error) {
					require.NoError(t, s.mem.Forget(ctx, *s.entry(t, "k")))
					return nil, test.err
				})
				r, err := send(t.Context(), "k", "a")
				require.ErrorIs(t, err, test.err)
				require.Equal(t, test.want, r.Status)
				require.Len(t, events.kinds("k"), 1, "nobody has taken the key meanwhile")
				if test.err == errNotTaken {
					s.requireFree(t, "k")
				} else {
					s.requireKept(t, "k", r, doorTTL)
				}
			})
		})
	}
}

// C6: the receipt of a scheduled message outlives its SendAt by TTL.
func TestScheduledMessageIsNotScheduledTwice(t *testing.T) {
	for name, own := range map[string]idemmail.Transport{
		"Send": idemmail.TransportFunc(func(context.Context, *idemmail.Message) (*idemmail.Receipt, error) { return nil, nil }),
		"SendMany": batchFunc{send: func(_ context.Context, msgs []*idemmail.Message) []idemmail.Result {
			return make([]idemmail.Result, len(msgs))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				transport := openTransport(t, own, idemmail.Options{TTL: 24 * time.Hour})
				m := doorMessage("k", "a")
				m.SendAt = time.Now().Add(72 * time.Hour)
				send := func() (*idemmail.Receipt, error) {
					r := transport.SendMany(t.Context(), []*idemmail.Message{doorMessage("", "a newsletter"), m})[1]
					return r.Receipt, r.Err
				}
				r, err := send()
				requireFirst(t, r, err)
				for _, day := range []time.Duration{30 * time.Hour, 72 * time.Hour, 96*time.Hour - time.Minute} {
					time.Sleep(time.Until(m.SendAt.Add(day - 72*time.Hour)))
					r, err = send()
					requireReplay(t, r, err)
				}
				time.Sleep(time.Until(m.SendAt.Add(25 * time.Hour)))
				r, err = send()
				requireFirst(t, r, err)
			})
		})
	}
}

// C35, C57: a job that runs until it is acknowledged is acknowledged once the
// mail went, and with the receipt of that.
func TestJobThatRunsUntilItIsAcknowledged(t *testing.T) {
	throughDoorsAndStores(t, func(t *testing.T, d door, s *shelf) {
		var sends atomic.Int64
		send := d.open(t, idemmail.Options{Store: s.store}, func(context.Context) (*idemmail.Receipt, error) {
			if n := sends.Add(1); n < 3 {
				return nil, replyError(421)
			}
			return &idemmail.Receipt{ProviderID: "4Q1"}, nil
		})
		runs := 0
		for acknowledged := false; !acknowledged; runs++ {
			_, err := send(t.Context(), "k", "a")
			acknowledged = err == nil
		}
		require.Equal(t, 3, runs)
		r, err := send(t.Context(), "k", "a") // the acknowledgement was lost
		requireReplay(t, r, err)
		require.Equal(t, "4Q1", r.ProviderID)
		require.EqualValues(t, 3, sends.Load())
	})
}
