package idemmail_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
)

// The rows of the table of outcomes: what becomes of the key. In each test the
// store is looked at as the engine leaves it, and asked by another send.

func TestOutcomeSent(t *testing.T) {
	for _, atMostOnce := range []bool{false, true} {
		lease := doorLease
		if atMostOnce {
			lease = idemmail.NoExpiry
		}
		for name, ttl := range map[string]time.Duration{"completed for TTL": 3 * time.Hour, "completed for 24 hours": 0, "completed for ever": idemmail.NoExpiry} {
			t.Run(fmt.Sprintf("%s, AtMostOnce %v", name, atMostOnce), func(t *testing.T) {
				throughDoorsAndStores(t, func(t *testing.T, d door, s *shelf) {
					send := d.open(t, idemmail.Options{Store: s.store, TTL: ttl, AtMostOnce: atMostOnce}, func(context.Context) (*idemmail.Receipt, error) {
						s.requirePending(t, "k", lease)
						return receiptOf(statusSent), nil
					})
					r, err := send(t.Context(), "k", "a")
					requireFirst(t, r, err)
					kept := ttl
					if kept == 0 {
						kept = doorTTL
					}
					s.requireKept(t, "k", r, kept)
				})
			})
		}
	}
}

// C34, C35: a definite failure is no answer to a later send.
func TestOutcomeFailed(t *testing.T) {
	for _, atMostOnce := range []bool{false, true} {
		t.Run(fmt.Sprintf("released, AtMostOnce %v", atMostOnce), func(t *testing.T) {
			throughDoorsAndStores(t, func(t *testing.T, d door, s *shelf) {
				failures := []error{replyError(550), replyError(421), replyError(535), &httpError{code: 429}, errVague}
				var sends atomic.Int64
				send := d.open(t, idemmail.Options{Store: s.store, AtMostOnce: atMostOnce}, counted(&sends, func(context.Context) (*idemmail.Receipt, error) {
					if n := int(sends.Load()); n <= len(failures) {
						return nil, failures[n-1]
					}
					return nil, nil
				}))
				for i, failure := range failures {
					about := fmt.Sprint("a", i) // any message may take it
					r, err := send(t.Context(), "k", about)
					requireSendError(t, "k", r, err)
					require.ErrorIs(t, err, failure)
					require.Equal(t, statusFailed, r.Status)
					s.requireFree(t, "k")
				}
				r, err := send(t.Context(), "k", "a")
				requireFirst(t, r, err)
				r, err = send(t.Context(), "k", "a")
				requireReplay(t, r, err)
				require.EqualValues(t, len(failures)+1, sends.Load())
			})
		})
	}
}

// C4: what timed out or was lost may have gone.
func TestOutcomeUnknown(t *testing.T) {
	for _, test := range []struct {
		name       string
		atMostOnce bool
		ttl        time.Duration
		kept       time.Duration
	}{
		{"completed for TTL", false, 3 * time.Hour, 3 * time.Hour},
		{"completed for 24 hours", false, 0, doorTTL},
		{"completed for ever", false, idemmail.NoExpiry, idemmail.NoExpiry},
		{"AtMostOnce completed for ever", true, 3 * time.Hour, idemmail.NoExpiry},
		{"AtMostOnce and NoExpiry completed for ever", true, idemmail.NoExpiry, idemmail.NoExpiry},
	} {
		t.Run(test.name, func(t *testing.T) {
			throughDoorsAndStores(t, func(t *testing.T, d door, s *shelf) {
				var sends atomic.Int64
				send := d.open(t, idemmail.Options{Store: s.store, TTL: test.ttl, AtMostOnce: test.atMostOnce}, counted(&sends, answers(nil, timeoutError{over: true})))
				r, err := send(t.Context(), "k", "a")
				requireSendError(t, "k", r, err)
				require.Equal(t, statusUnknown, r.Status)
				s.requireKept(t, "k", r, test.kept)

				if test.kept == idemmail.NoExpiry {
					s.clock.Advance(1000 * time.Hour)
					_, err := send(t.Context(), "k", "a")
					require.ErrorIs(t, err, idemmail.ErrDeliveryUnknown)
					require.EqualValues(t, 1, sends.Load())
					return
				}
				s.clock.Advance(test.kept)
				_, _ = send(t.Context(), "k", "a")
				require.EqualValues(t, 2, sends.Load())
			})
		})
	}
}

// C4: however deep in an error it says so.
func TestOutcomeUnknownBySort(t *testing.T) {
	for name, cause := range map[string]error{
		"timeout": timeoutError{over: true}, "EOF": io.EOF, "unexpected EOF": io.ErrUnexpectedEOF,
		"reset": syscall.ECONNRESET, "deadline": context.DeadlineExceeded, "HTTP 502": &httpError{code: 502},
	} {
		deep := fmt.Errorf("job: %w", fmt.Errorf("smtp: %w", fmt.Errorf("read: %w", cause)))
		for how, err := range map[string]error{
			"bare": cause, "wrapped": deep, "joined": errors.Join(errVague, deep), "joined with a refusal": errors.Join(deep, replyError(550)),
		} {
			t.Run(name+", "+how, func(t *testing.T) {
				throughDoors(t, func(t *testing.T, d door) {
					var sends atomic.Int64
					send := d.open(t, idemmail.Options{}, counted(&sends, answers(nil, err)))
					for range 3 {
						r, err := send(t.Context(), "k", "a")
						requireSendError(t, "k", r, err)
						require.Equal(t, statusUnknown, r.Status)
					}
					require.EqualValues(t, 1, sends.Load())
				})
			})
		}
	}
}

// The fingerprint is kept with the receipt, as given to the store.
func TestOutcomeKeepsTheFingerprint(t *testing.T) {
	want := map[string]string{
		"Guard.Do": "c:a",
		"SendRaw":  idemmail.FingerprintRaw(&idemmail.RawMessage{From: "a@example.org"}),
	}
	throughDoorsAndStores(t, func(t *testing.T, d door, s *shelf) {
		fingerprint := want[d.name]
		if fingerprint == "" {
			fingerprint = idemmail.Fingerprint(doorMessage("k", "a"))
		}
		send := d.open(t, idemmail.Options{Store: s.store}, func(context.Context) (*idemmail.Receipt, error) {
			require.Equal(t, fingerprint, s.entry(t, "k").Record.Fingerprint)
			return nil, nil
		})
		_, err := send(t.Context(), "k", "a")
		require.NoError(t, err)
		require.Equal(t, fingerprint, s.entry(t, "k").Record.Fingerprint)
	})
}

// What the decorator fills in is in the answer and in the store alike.
func TestOutcomeFillsTheReceipt(t *testing.T) {
	throughDoors(t, func(t *testing.T, d door) {
		t.Run("what the transport left empty", func(t *testing.T) {
			s := newShelf()
			before := time.Now().Truncate(time.Millisecond)
			r, err := d.open(t, idemmail.Options{Store: s.store}, answers(nil, errMaybe))(t.Context(), "k", "a")
			require.Error(t, err)
			require.Equal(t, doorNamespace, r.Transport, "the namespace, where no transport has an ID")
			require.Equal(t, errMaybe.Error(), r.Detail)
			require.Equal(t, time.UTC, r.At.Location())
			require.Equal(t, r.At, r.At.Truncate(time.Millisecond))
			require.False(t, r.At.Before(before))
			require.False(t, r.At.After(time.Now()))
			s.requireKept(t, "k", r, doorTTL)
		})

		t.Run("a time that not every store can keep", func(t *testing.T) {
			for _, at := range []time.Time{
				time.Unix(time.Now().UnixMilli(), 0), // in the year 58000 or so
				time.Date(9999, 12, 31, 23, 59, 59, 0, time.FixedZone("", -60*60)),
				time.Date(-1, 1, 1, 0, 0, 0, 0, time.UTC),
			} {
				before := time.Now().Truncate(time.Millisecond)
				r, err := d.open(t, idemmail.Options{}, answers(&idemmail.Receipt{At: at}, nil))(t.Context(), "k", "a")
				requireFirst(t, r, err)
				require.WithinRange(t, r.At, before, time.Now())
				_, err = json.Marshal(r)
				require.NoError(t, err)
			}
		})

		t.Run("and nothing else", func(t *testing.T) {
			s := newShelf()
			at := time.Date(2026, 3, 1, 14, 0, 0, 42_999_999, time.FixedZone("", 2*60*60))
			given := idemmail.Receipt{
				Status: statusUnknown, Transport: "ses", MessageID: "own@example.org", ProviderID: "p", Response: "200",
				At: at, Code: "ses.lost", Category: idemmail.CategoryProvider, Detail: "the transport's own",
			}
			mine := given
			r, err := d.open(t, idemmail.Options{Store: s.store}, answers(&mine, errMaybe))(t.Context(), "k", "a")
			require.ErrorIs(t, err, errMaybe)
			require.Equal(t, given, mine, "the transport's receipt was changed")
			require.NotSame(t, &mine, r)
			given.At = time.Date(2026, 3, 1, 12, 0, 0, 42_000_000, time.UTC)
			require.Equal(t, &given, r)
			s.requireKept(t, "k", r, doorTTL)
		})
	})
}
