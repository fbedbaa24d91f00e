package idemmail_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
)

// What is kept under a key is bounded, and valid UTF-8; the answer and its
// replay show the same.
func TestReceiptIsBounded(t *testing.T) {
	const most, entries = 1 << 10, 1000
	long := strings.Repeat("x", most+1)
	var accepted []string
	var rejected []idemmail.Rejection
	for i := range entries + 1 {
		accepted = append(accepted, fmt.Sprint(i))
		rejected = append(rejected, idemmail.Rejection{Address: fmt.Sprint(i)})
	}
	rejected[entries-1] = idemmail.Rejection{Address: "999", Reason: long, Code: 550}
	throughDoorsAndStores(t, func(t *testing.T, d door, s *shelf) {
		own := &idemmail.Receipt{
			Status: statusUnknown, Response: long, Detail: long, Accepted: accepted, Rejected: rejected,
			MessageID: long, ProviderID: long, Code: long, // an id that was cut would be another
		}
		want := copyOf(own)
		send := d.open(t, idemmail.Options{Store: s.store}, answers(own, errMaybe))
		r, err := send(t.Context(), "k", "a")
		requireSendError(t, "k", r, err)
		require.Equal(t, &want, own, "the transport's own receipt was changed")
		require.Equal(t, long[:most], r.Response)
		require.Equal(t, long[:most], r.Detail)
		require.Equal(t, accepted[:entries], r.Accepted)
		require.Len(t, r.Rejected, entries)
		require.Equal(t, idemmail.Rejection{Address: "999", Reason: long[:most], Code: 550}, r.Rejected[entries-1])
		require.Equal(t, []string{long, long, long}, []string{r.MessageID, r.ProviderID, r.Code})
		s.requireKept(t, "k", r, doorTTL)

		replayed, _ := send(t.Context(), "k", "a")
		first := copyOf(r)
		first.Replayed = true
		require.Equal(t, &first, replayed)
	})
}

func TestTextThatIsCutEndsWithAWholeRune(t *testing.T) {
	const most = 1 << 10
	for _, r := range []string{"é", "€", "👩", "\xff", "a\xff", "\x80", "\xf0\x9f"} {
		for shift := range 5 {
			for _, n := range []int{1, most / 4, most, 10 * most} {
				text := strings.Repeat("x", shift) + strings.Repeat(r, n)
				cause := errors.New(text) // the detail
				got, err := openSend(t, idemmail.Options{}, answers(&idemmail.Receipt{Response: text}, cause))(t.Context(), "k", "a")
				require.True(t, errors.Is(err, cause))
				require.Equal(t, got.Response, got.Detail)
				require.True(t, utf8.ValidString(got.Detail))
				require.LessOrEqual(t, len(got.Detail), most)
				whole := strings.ToValidUTF8(text, "\ufffd")
				switch {
				case utf8.ValidString(text):
					require.True(t, strings.HasPrefix(whole, got.Detail))
					require.Greater(t, len(got.Detail), min(len(whole), most)-utf8.UTFMax)
				case len(text) <= most:
					require.True(t, strings.HasPrefix(whole, got.Detail))
				}
			}
		}
	}
}

// Not every store keeps what is not valid UTF-8: servers' replies may be in
// any encoding.
func TestReceiptIsValidUTF8(t *testing.T) {
	const bad, mended = "Zustellung m\xf6glich\xff\xfe", "Zustellung m\ufffdglich\ufffd"
	throughDoorsAndStores(t, func(t *testing.T, d door, s *shelf) {
		own := &idemmail.Receipt{
			Status: statusSent, Transport: bad, MessageID: bad, ProviderID: bad, Response: bad, Accepted: []string{bad},
			Rejected: []idemmail.Rejection{{Address: bad, Reason: bad}}, Code: bad, Category: bad, Detail: bad,
		}
		given := copyOf(own)
		r, err := d.open(t, idemmail.Options{Store: s.store}, answers(own, nil))(t.Context(), "k", "a")
		require.NoError(t, err)
		require.Equal(t, &given, own, "the transport's own receipt was changed")
		require.Equal(t, &idemmail.Receipt{
			Status: statusSent, Transport: mended, MessageID: mended, ProviderID: mended, Response: mended, Accepted: []string{mended},
			Rejected: []idemmail.Rejection{{Address: mended, Reason: mended}}, At: r.At, Code: mended, Category: mended, Detail: mended,
		}, r)
		s.requireKept(t, "k", r, doorTTL)
	})
}

// Nil lists stay nil and empty ones empty.
func TestListsOfAReceipt(t *testing.T) {
	throughDoorsAndStores(t, func(t *testing.T, d door, s *shelf) {
		for i, accepted := range [][]string{nil, {}, {""}} {
			for j, rejected := range [][]idemmail.Rejection{nil, {}, {{}}} {
				key := fmt.Sprint("k", i, j)
				own := &idemmail.Receipt{Status: statusSent, Accepted: accepted, Rejected: slices.Clone(rejected)}
				send := d.open(t, idemmail.Options{Store: s.store, Namespace: fmt.Sprint("ns", i, j)}, answers(own, nil))
				for range 2 {
					r, err := send(t.Context(), key, "a")
					require.NoError(t, err)
					require.Equal(t, accepted, r.Accepted)
					require.Equal(t, rejected, r.Rejected)
				}
			}
		}
	})
}

// A text that is cut is not kept whole behind what is left of it.
func TestTextThatIsCutIsLetGo(t *testing.T) {
	const size = 64 << 20
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	r, err := openSend(t, idemmail.Options{}, func(context.Context) (*idemmail.Receipt, error) {
		return &idemmail.Receipt{Response: strings.Repeat("x", size)}, nil
	})(t.Context(), "k", "a")
	require.NoError(t, err)
	for try := 0; heap() >= before+size/2; try++ {
		require.Less(t, try, 100, "the whole text is still in memory")
		time.Sleep(time.Millisecond)
	}
	runtime.KeepAlive(r)
}
