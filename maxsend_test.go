package idemmail_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
)

// waits is a transport that takes its time over each message, and ends early
// where its context does.
func waits(d time.Duration) idemmail.TransportFunc {
	return func(ctx context.Context, _ *idemmail.Message) (*idemmail.Receipt, error) {
		select {
		case <-time.After(d):
			return nil, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func TestMaxSendOfABatch(t *testing.T) {
	messages := func() []*idemmail.Message {
		return []*idemmail.Message{doorMessage("k1", "a"), doorMessage("k2", "a"), doorMessage("k3", "a")}
	}

	t.Run("per message, where they go one after another", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			results := openTransport(t, waits(40*time.Second), idemmail.Options{MaxSend: time.Minute}).SendMany(t.Context(), messages())
			for _, r := range results {
				requireFirst(t, r.Receipt, r.Err)
			}
		})
	})

	t.Run("once, for a wrapped SendMany", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			one := waits(40 * time.Second)
			together := batchFunc{one, func(ctx context.Context, msgs []*idemmail.Message) []idemmail.Result {
				results := make([]idemmail.Result, len(msgs))
				for i, m := range msgs {
					results[i].Receipt, results[i].Err = one(ctx, m)
				}
				return results
			}}
			results := openTransport(t, together, idemmail.Options{MaxSend: time.Minute}).SendMany(t.Context(), messages())
			requireFirst(t, results[0].Receipt, results[0].Err)
			for _, r := range results[1:] {
				requireAborted(t, r.Receipt, r.Err, context.DeadlineExceeded, context.Canceled)
			}
		})
	})
}

// A transport that does not listen to its context holds its key no longer than
// MaxSend and a lease.
func TestMaxSendStopsRenewal(t *testing.T) {
	throughDoors(t, func(t *testing.T, d door) {
		synctest.Test(t, func(t *testing.T) {
			s := &shelf{mem: idemmail.NewMemStore(idemmail.MemStoreOptions{})} // the bubble's clock
			var sends atomic.Int64
			send := d.open(t, idemmail.Options{Store: s.mem, Lease: time.Minute, MaxSend: 5 * time.Minute}, counted(&sends, func(ctx context.Context) (*idemmail.Receipt, error) {
				if sends.Load() > 1 {
					return nil, nil
				}
				time.Sleep(5*time.Minute - time.Second)
				require.NoError(t, ctx.Err())
				require.NotNil(t, s.entry(t, "k"), "the lease was not renewed")
				time.Sleep(time.Second + time.Minute)
				require.Error(t, ctx.Err())
				require.Nil(t, s.entry(t, "k"), "the lease was renewed after MaxSend")
				return nil, nil
			}))
			// Nobody has taken the key meanwhile: its receipt is kept.
			r, err := send(t.Context(), "k", "a")
			requireFirst(t, r, err)
			r, err = send(t.Context(), "k", "a")
			requireReplay(t, r, err)
		})
	})
}

// A renewal that hangs does not let the send go on for longer.
func TestMaxSendPassesWhileARenewalHangs(t *testing.T) {
	throughDoors(t, func(t *testing.T, d door) {
		synctest.Test(t, func(t *testing.T) {
			store := hangingRenewals{idemmail.NewMemStore(idemmail.MemStoreOptions{})}
			send := d.open(t, idemmail.Options{Store: store, Lease: 30 * time.Second, MaxSend: 11 * time.Second}, func(ctx context.Context) (*idemmail.Receipt, error) {
				began := time.Now()
				<-ctx.Done()
				require.Equal(t, 11*time.Second, time.Since(began))
				return nil, errVague
			})
			r, err := send(t.Context(), "k", "a")
			requireAborted(t, r, err, context.DeadlineExceeded, errVague)
		})
	})
}

// hangingRenewals is a store that renews no lease in its time.
type hangingRenewals struct{ *idemmail.MemStore }

func (s hangingRenewals) Renew(ctx context.Context, _, _ string, _ time.Duration) error {
	<-ctx.Done()
	return ctx.Err()
}

func (s hangingRenewals) RenewMany(ctx context.Context, reqs []idemmail.RenewRequest) []error {
	errs := make([]error, len(reqs))
	for i, r := range reqs {
		errs[i] = s.Renew(ctx, r.Key, r.Token, r.Lease)
	}
	return errs
}
