package redisstore_test

import (
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
)

// errAny stands for an error of any kind.
var errAny = errors.New("any")

// TestEachRequestIsJudgedAlone mixes what is in order with what is not, over
// more than one pipeline.
func TestEachRequestIsJudgedAlone(t *testing.T) {
	s, m := newStore(t)
	ctx := t.Context()
	const n = 600
	key := func(i int) string { return "mail:" + strconv.Itoa(i) }
	kind := func(i int) int { return i % 5 } // 0: free, 1: pending, 2: done, 3: foreign, 4: no duration
	holders := map[int]string{}
	for i := range n {
		switch kind(i) {
		case 1:
			holders[i] = reserve(t, s, key(i))
		case 2:
			holders[i] = reserve(t, s, key(i))
			require.NoError(t, s.Complete(ctx, key(i), holders[i], done(idemmail.StatusSent), time.Hour))
		case 3:
			require.NoError(t, m.Set(key(i), "foreign"))
		}
	}

	reservations := make([]idemmail.ReserveRequest, n)
	for i := range reservations {
		reservations[i] = idemmail.ReserveRequest{Key: key(i), Fingerprint: "1:" + key(i), Lease: time.Minute}
		if kind(i) == 4 {
			reservations[i].Lease = 0
		}
	}
	results := s.ReserveMany(ctx, reservations)
	require.Len(t, results, n)
	for i, r := range results {
		switch kind(i) {
		case 0:
			require.NoError(t, r.Err)
			require.NotEmpty(t, r.Token)
			require.Nil(t, r.Held)
			holders[i] = r.Token
			require.Equal(t, "1:"+key(i), holder(t, s, key(i)).Fingerprint)
		case 1, 2:
			require.NoError(t, r.Err)
			require.Empty(t, r.Token)
			require.Equal(t, "1:f", r.Held.Fingerprint)
			require.Equal(t, kind(i) == 2, r.Held.State == idemmail.StateDone)
		case 3:
			require.ErrorIs(t, r.Err, idemmail.ErrBadRecord)
			require.ErrorContains(t, r.Err, strconv.Quote(key(i)))
		case 4:
			require.Error(t, r.Err)
			require.False(t, m.Exists(key(i)))
		}
	}

	expect := func(errs []error, wants [5]error) {
		t.Helper()
		require.Len(t, errs, n)
		for i, err := range errs {
			switch want := wants[kind(i)]; want {
			case nil:
				require.NoError(t, err, i)
			case errAny:
				require.Error(t, err, i)
			default:
				require.ErrorIs(t, err, want, i)
			}
		}
	}
	renewals := make([]idemmail.RenewRequest, n)
	completions := make([]idemmail.CompleteRequest, n)
	releases := make([]idemmail.ReleaseRequest, n)
	for i := range n {
		renewals[i] = idemmail.RenewRequest{Key: key(i), Token: holders[i], Lease: time.Hour}
		completions[i] = idemmail.CompleteRequest{Key: key(i), Token: holders[i], Record: done(idemmail.StatusSent), TTL: time.Hour}
		releases[i] = idemmail.ReleaseRequest{Key: key(i), Token: holders[i]}
		if kind(i) == 4 {
			renewals[i].Lease, completions[i].TTL = 0, 0
		}
		if kind(i) == 1 {
			completions[i].Token = "another"
		}
	}
	expect(s.RenewMany(ctx, renewals), [5]error{nil, nil, idemmail.ErrLeaseLost, idemmail.ErrBadRecord, errAny})
	require.NoError(t, m.client.ScriptFlush(ctx).Err())
	expect(s.CompleteMany(ctx, completions), [5]error{nil, idemmail.ErrLeaseLost, nil, idemmail.ErrBadRecord, errAny})
	require.NoError(t, m.client.ScriptFlush(ctx).Err())
	expect(s.ReleaseMany(ctx, releases), [5]error{idemmail.ErrLeaseLost, nil, idemmail.ErrLeaseLost, idemmail.ErrBadRecord, nil})

	require.Empty(t, s.ReserveMany(ctx, nil))
	require.Empty(t, s.CompleteMany(ctx, nil))
}
