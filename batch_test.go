package idemmail_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
)

// A batcher is a transport that is given batches in one of the two ways, and
// keeps what went out.
type batcher struct {
	mu    sync.Mutex
	went  []string // subjects, in order
	calls int      // of SendMany
	does  func(ctx context.Context, m *idemmail.Message) (*idemmail.Receipt, error)
	ends  func(results []idemmail.Result) []idemmail.Result // of SendMany
}

func (b *batcher) Send(ctx context.Context, m *idemmail.Message) (*idemmail.Receipt, error) {
	b.mu.Lock()
	b.went = append(b.went, m.Subject)
	b.mu.Unlock()
	if b.does == nil {
		return &idemmail.Receipt{ProviderID: m.Subject}, nil
	}
	return b.does(ctx, m)
}

// manyBatcher is a batcher with a SendMany of its own.
type manyBatcher struct{ *batcher }

func (b manyBatcher) SendMany(ctx context.Context, msgs []*idemmail.Message) []idemmail.Result {
	b.calls++
	results := make([]idemmail.Result, len(msgs))
	for i, m := range msgs {
		results[i].Receipt, results[i].Err = b.Send(ctx, m)
	}
	if b.ends != nil {
		results = b.ends(results)
	}
	return results
}

// bothWays runs a test with a transport that is sent batches in turn and with
// one that is sent them together, over each kind of store.
func bothWays(t *testing.T, test func(t *testing.T, b *batcher, open func(idemmail.Options) *idemmail.IdempotencyTransport, s *shelf)) {
	for _, way := range []string{"in turn", "together"} {
		for _, kind := range []string{"MemStore", "Store", "BatchStore"} {
			t.Run(way+"/"+kind, func(t *testing.T) {
				s := newShelf()
				switch kind {
				case "Store":
					s.store = struct{ idemmail.Store }{s.mem}
				case "BatchStore":
					s.store = struct{ *idemmail.MemStore }{s.mem}
				}
				b := &batcher{}
				test(t, b, func(o idemmail.Options) *idemmail.IdempotencyTransport {
					if o.Store == nil {
						o.Store = s.store
					}
					if way == "together" {
						return openTransport(t, manyBatcher{b}, o)
					}
					return openTransport(t, b, o)
				}, s)
			})
		}
	}
}

// batchOf makes messages of "key:subject"; an empty key is none.
func batchOf(specs ...string) []*idemmail.Message {
	msgs := make([]*idemmail.Message, len(specs))
	for i, spec := range specs {
		key, subject, _ := strings.Cut(spec, ":")
		msgs[i] = doorMessage(key, subject)
	}
	return msgs
}

// summary is what a result says, in a word or two.
func summary(r idemmail.Result) string {
	var s []string
	if r.Receipt != nil {
		if r.Receipt.Status != "" {
			s = append(s, string(r.Receipt.Status))
		}
		if r.Receipt.Code != "" {
			s = append(s, r.Receipt.Code)
		}
		if r.Receipt.Replayed {
			s = append(s, "replayed")
		}
		if r.Receipt.ProviderID != "" {
			s = append(s, r.Receipt.ProviderID)
		}
	}
	if r.Err == nil {
		s = append(s, "ok")
	}
	return strings.Join(s, " ")
}

func summaries(results []idemmail.Result) (all []string) {
	for _, r := range results {
		all = append(all, summary(r))
	}
	return all
}

// C29
func TestKeyThatComesTwiceInABatch(t *testing.T) {
	bothWays(t, func(t *testing.T, b *batcher, open func(idemmail.Options) *idemmail.IdempotencyTransport, _ *shelf) {
		seen := new(observed)
		transport := open(seen.options(idemmail.Options{}))
		results := transport.SendMany(t.Context(), batchOf("K1:a", "K2:b", "K1:a", ":c", "K1:x", "K1:a"))
		require.Equal(t, []string{
			"sent a ok",
			"sent b ok",
			"sent replayed a ok",
			"c ok",
			"failed idempotency.key_reused",
			"sent replayed a ok",
		}, summaries(results))
		require.ErrorIs(t, results[4].Err, idemmail.ErrKeyReused)
		require.Equal(t, []string{"a", "b", "c"}, b.went)
		require.NotSame(t, results[0].Receipt, results[2].Receipt)
		count := map[idemmail.EventKind]int{}
		for _, kind := range seen.kinds() {
			count[kind]++
		}
		require.Equal(t, map[idemmail.EventKind]int{idemmail.EventSent: 2, idemmail.EventReplayed: 2, idemmail.EventKeyReused: 1}, count)
	})
}

func TestFirstOfABatchThatFailed(t *testing.T) {
	for _, test := range []struct {
		name   string
		err    error
		want   string
		reject bool
		dup    bool // the second is a duplicate
		free   bool
	}{
		{name: "definitely", err: errRefused, want: "failed", free: true},
		{name: "definitely, RejectDuplicates", err: errRefused, want: "failed", free: true, reject: true},
		{name: "perhaps", err: idemmail.MayBeSent(errors.New("lost")), want: "unknown"},
		{name: "perhaps, RejectDuplicates", err: idemmail.MayBeSent(errors.New("lost")), want: "unknown", reject: true, dup: true},
		{name: "not at all, RejectDuplicates", want: "sent", reject: true, dup: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			bothWays(t, func(t *testing.T, b *batcher, open func(idemmail.Options) *idemmail.IdempotencyTransport, s *shelf) {
				b.does = func(context.Context, *idemmail.Message) (*idemmail.Receipt, error) { return nil, test.err }
				results := open(idemmail.Options{RejectDuplicates: test.reject}).SendMany(t.Context(), batchOf("K:a", "K:a"))
				require.Len(t, b.went, 1)
				first, second := results[0], results[1]
				require.Equal(t, test.want, string(first.Receipt.Status))
				require.False(t, first.Receipt.Replayed)
				require.True(t, second.Receipt.Replayed)
				replayed := *second.Receipt
				replayed.Replayed = false
				require.Equal(t, first.Receipt, &replayed)
				require.Equal(t, test.dup, errors.Is(second.Err, idemmail.ErrDuplicate))
				if test.err == nil && !test.dup {
					require.NoError(t, second.Err)
				} else {
					if test.err != nil {
						require.ErrorIs(t, second.Err, test.err, "the first's own error too")
					}
					requireSendError(t, "K", second.Receipt, second.Err)
				}
				if test.free {
					s.requireFree(t, "K")
				}
				// Each result may go to a goroutine of its own.
				first.Receipt.Code = idemmail.CodeInFlight
				require.NotErrorIs(t, second.Err, idemmail.ErrInFlight)
			})
		})
	}
}

// If the first was answered from the store, later ones are judged against
// that record.
func TestBatchIsJudgedAgainstTheRecordInTheStore(t *testing.T) {
	bothWays(t, func(t *testing.T, b *batcher, open func(idemmail.Options) *idemmail.IdempotencyTransport, s *shelf) {
		transport := open(idemmail.Options{})
		_, err := transport.Send(t.Context(), doorMessage("K", "old"))
		require.NoError(t, err)
		results := transport.SendMany(t.Context(), batchOf("K:new", "K:old", "K:new"))
		require.Equal(t, []string{"failed idempotency.key_reused", "sent replayed old ok", "failed idempotency.key_reused"}, summaries(results))

		_, _, err = s.mem.Reserve(t.Context(), doorNamespace+":P", "", time.Hour)
		require.NoError(t, err)
		results = transport.SendMany(t.Context(), batchOf("P:a", "P:a", "Q:b"))
		require.Equal(t, []string{"unknown idempotency.in_flight", "unknown idempotency.in_flight", "sent b ok"}, summaries(results))
		require.Equal(t, []string{"old", "b"}, b.went)
	})
}

func TestBatchWithEveryKindOfMessage(t *testing.T) {
	bothWays(t, func(t *testing.T, b *batcher, open func(idemmail.Options) *idemmail.IdempotencyTransport, s *shelf) {
		b.does = func(_ context.Context, m *idemmail.Message) (*idemmail.Receipt, error) {
			switch m.Subject {
			case "fails":
				return nil, errRefused
			case "unknown":
				return nil, idemmail.MayBeSent(errors.New("lost"))
			}
			return &idemmail.Receipt{ProviderID: m.Subject}, nil
		}
		msgs := batchOf("1:a", "2:fails", "bad\nkey:x", ":plain", "3:unknown", "4:d", ":fails")
		msgs = append(msgs, nil)
		results := open(idemmail.Options{}).SendMany(t.Context(), msgs)
		require.Equal(t, []string{"sent a ok", "failed", "failed idempotency.invalid_key", "plain ok", "unknown", "sent d ok", "", "failed"}, summaries(results))
		require.ErrorIs(t, results[6].Err, errRefused)
		require.Equal(t, idemmail.CategoryValidation, results[7].Receipt.Category)
		require.Equal(t, []string{"a", "fails", "plain", "unknown", "d", "fails"}, b.went)
		s.requireKept(t, "1", results[0].Receipt, doorTTL)
		s.requireFree(t, "2")
		s.requireKept(t, "3", results[4].Receipt, doorTTL)
		s.requireKept(t, "4", results[5].Receipt, doorTTL)
		require.Equal(t, 3, s.mem.Len())
	})
}

func TestEmptyBatch(t *testing.T) {
	bothWays(t, func(t *testing.T, b *batcher, open func(idemmail.Options) *idemmail.IdempotencyTransport, _ *shelf) {
		require.Empty(t, open(idemmail.Options{}).SendMany(t.Context(), nil))
		require.Empty(t, open(idemmail.Options{}).SendMany(t.Context(), []*idemmail.Message{}))
		require.Zero(t, b.calls, "there is nothing to hand on")
	})
}

// C29: a wrapped SendMany that answers too few results, or too many.
func TestBatchMismatch(t *testing.T) {
	b := &batcher{}
	s := newShelf()
	transport := openTransport(t, manyBatcher{b}, idemmail.Options{Store: s.store})
	b.ends = func(results []idemmail.Result) []idemmail.Result { return results[:1] }
	results := transport.SendMany(t.Context(), batchOf("1:a", "2:b", ":c", "2:b"))
	require.Equal(t, []string{"sent a ok", "unknown idempotency.batch_mismatch", "unknown idempotency.batch_mismatch", "unknown idempotency.batch_mismatch replayed"}, summaries(results))
	for _, i := range []int{1, 2, 3} {
		require.ErrorIs(t, results[i].Err, idemmail.ErrBatchMismatch)
		require.ErrorIs(t, results[i].Err, idemmail.ErrDeliveryUnknown)
	}
	s.requireKept(t, "1", results[0].Receipt, doorTTL)
	s.requireKept(t, "2", results[1].Receipt, doorTTL)

	b.ends = func(results []idemmail.Result) []idemmail.Result {
		return append(results, idemmail.Result{Err: errRefused})
	}
	results = transport.SendMany(t.Context(), batchOf("3:a", "4:b"))
	require.Equal(t, []string{"sent a ok", "sent b ok"}, summaries(results))

	b.ends = func([]idemmail.Result) []idemmail.Result { return nil }
	results = transport.SendMany(t.Context(), batchOf("5:a"))
	require.Equal(t, []string{"unknown idempotency.batch_mismatch"}, summaries(results))
}

// C30: a context that ends midway.
func TestContextThatEndsMidwayThroughABatch(t *testing.T) {
	bothWays(t, func(t *testing.T, b *batcher, open func(idemmail.Options) *idemmail.IdempotencyTransport, s *shelf) {
		ctx, cancel := context.WithCancel(t.Context())
		b.does = func(ctx context.Context, m *idemmail.Message) (*idemmail.Receipt, error) {
			if m.Subject == "c" {
				cancel()
			}
			if m.IdempotencyKey != "" && ctx.Err() != nil {
				return nil, ctx.Err()
			}
			return &idemmail.Receipt{ProviderID: m.Subject}, nil
		}
		results := open(idemmail.Options{}).SendMany(ctx, batchOf("1:a", "2:b", "3:c", "4:d", ":e", "5:f"))
		if b.calls == 0 {
			require.Equal(t, []string{"sent a ok", "sent b ok", "unknown idempotency.aborted", "failed idempotency.not_begun", "e ok", "failed idempotency.not_begun"}, summaries(results))
			require.Equal(t, []string{"a", "b", "c", "e"}, b.went, "messages without a key are handed on all the same")
			s.requireFree(t, "4")
			s.requireFree(t, "5")
			require.ErrorIs(t, results[3].Err, idemmail.ErrNotBegun)
			require.ErrorIs(t, results[3].Err, context.Canceled)
		} else {
			// The transport was given them all: it alone knows what it began.
			require.Equal(t, []string{"sent a ok", "sent b ok", "unknown idempotency.aborted", "unknown idempotency.aborted", "e ok", "unknown idempotency.aborted"}, summaries(results))
		}
		s.requireKept(t, "1", results[0].Receipt, doorTTL)
		s.requireKept(t, "2", results[1].Receipt, doorTTL)
		s.requireKept(t, "3", results[2].Receipt, doorTTL)
	})
}

func TestContextThatEndedBeforeABatch(t *testing.T) {
	bothWays(t, func(t *testing.T, b *batcher, open func(idemmail.Options) *idemmail.IdempotencyTransport, s *shelf) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		results := open(idemmail.Options{}).SendMany(ctx, batchOf("1:a", ":b", "2:c"))
		require.Equal(t, []string{"failed idempotency.not_begun", "b ok", "failed idempotency.not_begun"}, summaries(results))
		require.Equal(t, []string{"b"}, b.went)
		require.Zero(t, s.mem.Len())
	})
}

// The context ends while the keys are being reserved: they are freed.
func TestContextThatEndsAsABatchIsReserved(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	b := &batcher{}
	store := &batchFaults{MemStore: idemmail.NewMemStore(idemmail.MemStoreOptions{}), afterReserve: cancel}
	results := openTransport(t, manyBatcher{b}, idemmail.Options{Store: store}).SendMany(ctx, batchOf("1:a", ":b", "2:c"))
	require.Equal(t, []string{"failed idempotency.not_begun", "b ok", "failed idempotency.not_begun"}, summaries(results))
	require.Equal(t, []string{"b"}, b.went)
	require.Zero(t, store.Len())
}

// What a key is held by is of no account then, to the first of a key and to
// those after it.
func TestContextThatEndsAsAHeldKeyIsReserved(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	store := &endingStore{MemStore: newShelf().mem, held: &idemmail.Record{State: idemmail.StateDone, Receipt: receiptOf(statusSent)}, end: cancel}
	results := openTransport(t, manyBatcher{&batcher{}}, idemmail.Options{Store: store}).SendMany(ctx, batchOf("k:a", "k:a"))
	for _, r := range results {
		r.Receipt.Replayed = false // as the second is, with the first one's answer
		requireNotBegun(t, r.Receipt, r.Err, context.Canceled)
	}
}

// C7: a panic, or runtime.Goexit, at item 3 of 5.
func TestPanicInABatch(t *testing.T) {
	bothWays(t, func(t *testing.T, b *batcher, open func(idemmail.Options) *idemmail.IdempotencyTransport, s *shelf) {
		b.does = func(_ context.Context, m *idemmail.Message) (*idemmail.Receipt, error) {
			if m.Subject == "c" {
				panic("boom")
			}
			return &idemmail.Receipt{ProviderID: m.Subject}, nil
		}
		transport := open(idemmail.Options{})
		require.PanicsWithValue(t, "boom", func() {
			transport.SendMany(t.Context(), batchOf("1:a", "2:b", "3:c", "4:d", "5:e"))
		})
		status := func(key string) string {
			e := s.entry(t, key)
			if e == nil {
				return "free"
			}
			return string(e.Record.Receipt.Status) + " " + e.Record.Receipt.Code
		}
		var got []string
		for _, key := range []string{"1", "2", "3", "4", "5"} {
			got = append(got, status(key))
		}
		if b.calls == 0 {
			require.Equal(t, []string{"sent ", "sent ", "unknown idempotency.panicked", "free", "free"}, got)
		} else {
			p := "unknown idempotency.panicked"
			require.Equal(t, []string{p, p, p, p, p}, got)
		}
	})
}

// In turn, each key is reserved just before its own send and settled as soon
// as its outcome is known: a crash midway abandons one key at most.
func TestBatchInTurnHoldsOneKeyAtATime(t *testing.T) {
	b, s := &batcher{}, newShelf()
	var pending []int
	b.does = func(ctx context.Context, _ *idemmail.Message) (*idemmail.Receipt, error) {
		n := 0
		for _, key := range []string{"1", "2", "3"} {
			if e := s.entry(t, key); e != nil && e.Record.State == idemmail.StatePending {
				n++
			}
		}
		pending = append(pending, n, s.mem.Len())
		return nil, nil
	}
	openTransport(t, b, idemmail.Options{Store: s.store}).SendMany(t.Context(), batchOf("1:a", "2:b", "3:c"))
	require.Equal(t, []int{1, 1, 1, 2, 1, 3}, pending)
}

// batchFaults is a BatchStore that counts its calls and can be made to fail.
type batchFaults struct {
	*idemmail.MemStore
	calls        []string
	afterReserve func()
	reserve      func([]idemmail.ReserveResult) []idemmail.ReserveResult
	complete     func(n int, errs []error) []error
}

func (s *batchFaults) Complete(ctx context.Context, key, token string, rec idemmail.Record, ttl time.Duration) error {
	s.calls = append(s.calls, "complete 1")
	return s.MemStore.Complete(ctx, key, token, rec, ttl)
}

func (s *batchFaults) ReserveMany(ctx context.Context, reqs []idemmail.ReserveRequest) []idemmail.ReserveResult {
	s.calls = append(s.calls, fmt.Sprint("reserve ", len(reqs)))
	results := s.MemStore.ReserveMany(ctx, reqs)
	if s.afterReserve != nil {
		s.afterReserve()
	}
	if s.reserve != nil {
		results = s.reserve(results)
	}
	return results
}

func (s *batchFaults) CompleteMany(ctx context.Context, reqs []idemmail.CompleteRequest) []error {
	s.calls = append(s.calls, fmt.Sprint("complete ", len(reqs)))
	errs := s.MemStore.CompleteMany(ctx, reqs)
	if s.complete != nil {
		errs = s.complete(len(s.calls), errs)
	}
	return errs
}

func (s *batchFaults) ReleaseMany(ctx context.Context, reqs []idemmail.ReleaseRequest) []error {
	s.calls = append(s.calls, fmt.Sprint("release ", len(reqs)))
	return s.MemStore.ReleaseMany(ctx, reqs)
}

func TestBatchStoreIsCalledOnceForEachStep(t *testing.T) {
	b := &batcher{does: func(_ context.Context, m *idemmail.Message) (*idemmail.Receipt, error) {
		if strings.HasPrefix(m.Subject, "fails") {
			return nil, errRefused
		}
		return nil, nil
	}}
	store := &batchFaults{MemStore: idemmail.NewMemStore(idemmail.MemStoreOptions{})}
	transport := openTransport(t, manyBatcher{b}, idemmail.Options{Store: store})
	transport.SendMany(t.Context(), batchOf("1:a", "2:b", "3:fails", "4:fails too", ":e"))
	require.ElementsMatch(t, []string{"reserve 4", "complete 2", "release 2"}, store.calls)
	require.Equal(t, "reserve 4", store.calls[0])
	require.Equal(t, 1, b.calls)

	store.calls = nil
	transport.SendMany(t.Context(), batchOf("1:a", "2:b", "5:c", "6:d"))
	require.Equal(t, []string{"reserve 4", "complete 2"}, store.calls)
	store.calls = nil
	transport.SendMany(t.Context(), batchOf("1:a", "2:b", "5:c", "6:d"))
	require.Equal(t, []string{"reserve 4"}, store.calls, "replays")
	require.Equal(t, 2, b.calls, "nothing was left to hand on")
}

// C50: one message's failure fails no other, whatever the store answers.
func TestBatchStoreThatFailsForSome(t *testing.T) {
	for _, test := range []struct {
		name    string
		reserve func([]idemmail.ReserveResult) []idemmail.ReserveResult
		want    []string
	}{
		{"an error", func(r []idemmail.ReserveResult) []idemmail.ReserveResult {
			r[1].Err = errFlaky
			return r
		}, []string{"sent a ok", "failed idempotency.store_failed", "sent c ok"}},
		{"neither", func(r []idemmail.ReserveResult) []idemmail.ReserveResult {
			r[1] = idemmail.ReserveResult{}
			return r
		}, []string{"sent a ok", "failed idempotency.store_failed", "sent c ok"}},
		{"a bad record", func(r []idemmail.ReserveResult) []idemmail.ReserveResult {
			r[1] = idemmail.ReserveResult{Held: &idemmail.Record{State: "future"}}
			return r
		}, []string{"sent a ok", "failed idempotency.store_failed", "sent c ok"}},
		{"too few answers", func(r []idemmail.ReserveResult) []idemmail.ReserveResult {
			return r[:1]
		}, []string{"failed idempotency.store_failed", "failed idempotency.store_failed", "failed idempotency.store_failed"}},
		{"no answers", func([]idemmail.ReserveResult) []idemmail.ReserveResult {
			return nil
		}, []string{"failed idempotency.store_failed", "failed idempotency.store_failed", "failed idempotency.store_failed"}},
		{"a panic", func([]idemmail.ReserveResult) []idemmail.ReserveResult {
			panic("store bug")
		}, []string{"failed idempotency.store_failed", "failed idempotency.store_failed", "failed idempotency.store_failed"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := &batcher{}
			store := &batchFaults{MemStore: idemmail.NewMemStore(idemmail.MemStoreOptions{}), reserve: test.reserve}
			transport := openTransport(t, manyBatcher{b}, idemmail.Options{Store: store})
			results := transport.SendMany(t.Context(), batchOf("1:a", "2:b", "3:c"))
			require.Equal(t, test.want, summaries(results))
			for i, r := range results {
				if r.Err != nil {
					require.ErrorIs(t, r.Err, idemmail.ErrStoreFailed)
					require.NotContains(t, b.went, string(rune('a'+i)))
				}
			}
		})
	}
}

// C16 in a batch: what could not be kept is tried again, and no other is.
func TestBatchIsSettledAgainWhereItFailed(t *testing.T) {
	b, seen := &batcher{}, new(observed)
	store := &batchFaults{MemStore: idemmail.NewMemStore(idemmail.MemStoreOptions{})}
	store.complete = func(n int, errs []error) []error {
		if n == 2 {
			errs[1] = errFlaky
		}
		return errs
	}
	transport := openTransport(t, manyBatcher{b}, seen.options(idemmail.Options{Store: store}))
	results := transport.SendMany(t.Context(), batchOf("1:a", "2:b", "3:c"))
	require.Equal(t, []string{"reserve 3", "complete 3", "complete 1"}, store.calls)
	require.Equal(t, []string{"sent a ok", "sent b ok", "sent c ok"}, summaries(results))
	require.NotContains(t, seen.kinds(), idemmail.EventStoreFailed)

	// Lease lost for one: told for that one alone.
	store.calls, seen.events = nil, nil
	store.complete = func(_ int, errs []error) []error {
		errs[0] = idemmail.ErrLeaseLost
		return errs
	}
	results = transport.SendMany(t.Context(), batchOf("4:a", "5:b"))
	require.Equal(t, []string{"sent a ok", "sent b ok"}, summaries(results))
	require.Equal(t, []string{"reserve 2", "complete 2"}, store.calls)
	require.Equal(t, []idemmail.EventKind{idemmail.EventLeaseLost, idemmail.EventSent, idemmail.EventSent}, seen.kinds())
	require.Equal(t, "4", seen.events[0].Key)
}

func TestFailOpenInABatch(t *testing.T) {
	b := &batcher{}
	store := &batchFaults{MemStore: idemmail.NewMemStore(idemmail.MemStoreOptions{})}
	store.reserve = func(r []idemmail.ReserveResult) []idemmail.ReserveResult {
		r[0].Err = errFlaky
		r[1].Err = idemmail.ErrBadRecord
		return r
	}
	transport := openTransport(t, manyBatcher{b}, idemmail.Options{Store: store, FailOpen: true})
	results := transport.SendMany(t.Context(), batchOf("1:a", "2:b", "3:c", "4:d"))
	require.Equal(t, []string{"sent a ok", "failed idempotency.store_failed", "sent c ok", "sent d ok"}, summaries(results))
	require.Equal(t, []string{"a", "c", "d"}, b.went)
	require.Equal(t, []string{"reserve 4", "release 2", "complete 2"}, store.calls, "what was reserved beside an error is freed")
}

// The leases of a batch are renewed in one call; a lost one is told, and stops
// nobody.
func TestRenewalOfABatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, seen := &batcher{}, new(observed)
		store := &batchRenewals{MemStore: idemmail.NewMemStore(idemmail.MemStoreOptions{})}
		b.ends = func(results []idemmail.Result) []idemmail.Result {
			time.Sleep(10*time.Second + time.Millisecond)
			return results
		}
		transport := openTransport(t, manyBatcher{b}, seen.options(idemmail.Options{Store: store, Lease: 3 * time.Second, MaxSend: time.Hour}))
		results := transport.SendMany(t.Context(), batchOf("1:a", "2:b", "3:c"))
		require.Equal(t, []string{"sent a ok", "sent b ok", "sent c ok"}, summaries(results))
		require.Equal(t, []int{3, 2, 2, 2, 2, 2, 2, 2, 2, 2}, store.sizes())
		lost := 0
		for _, kind := range seen.kinds() {
			if kind == idemmail.EventLeaseLost {
				lost++
			}
		}
		require.Equal(t, 1, lost)
	})
}

// batchRenewals is a store that says, at the first renewal, that the first
// lease is lost.
type batchRenewals struct {
	*idemmail.MemStore
	mu      sync.Mutex
	renewed []int
}

func (s *batchRenewals) sizes() []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.renewed
}

func (s *batchRenewals) Renew(context.Context, string, string, time.Duration) error {
	return errors.New("one by one")
}

func (s *batchRenewals) RenewMany(ctx context.Context, reqs []idemmail.RenewRequest) []error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.renewed = append(s.renewed, len(reqs))
	errs := s.MemStore.RenewMany(ctx, reqs)
	if len(s.renewed) == 1 {
		errs[0] = idemmail.ErrLeaseLost
	}
	return errs
}
