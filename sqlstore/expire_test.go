package sqlstore_test

import (
	"database/sql/driver"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
)

func testDeleteExpired(t *testing.T, srv server) {
	dsn := srv.dsn(t)
	db, tap := srv.tapped(t, dsn)
	s := srv.on(t, db)
	ctx := t.Context()
	n, err := s.DeleteExpired(ctx, 100)
	require.NoError(t, err)
	require.Zero(t, n)

	const expired = 2500
	reqs := make([]idemmail.ReserveRequest, expired)
	for i := range reqs {
		reqs[i] = idemmail.ReserveRequest{Key: fmt.Sprint("old:", i), Fingerprint: "1:x", Lease: time.Millisecond}
	}
	for _, r := range s.ReserveMany(ctx, reqs) {
		require.NoError(t, r.Err)
	}
	live := map[string]time.Duration{"live:pending": time.Minute, "live:ever": idemmail.NoExpiry}
	for key, lease := range live {
		reserve(t, s, key, lease)
	}
	finish(t, s, "live:done", &idemmail.Receipt{Status: idemmail.StatusSent}, time.Hour)
	finish(t, s, "live:unknown", &idemmail.Receipt{Status: idemmail.StatusUnknown}, idemmail.NoExpiry)
	reserve(t, s, "old:foreign", time.Millisecond)
	execute(t, db, "UPDATE idemmail SET format = 2 WHERE key = 'old:foreign'")
	time.Sleep(20 * time.Millisecond)

	for _, limit := range []int{0, -1} {
		_, err := s.DeleteExpired(ctx, limit)
		require.Error(t, err)
	}
	tap.count()
	n, err = s.DeleteExpired(ctx, 7)
	require.NoError(t, err)
	require.Equal(t, 7, n)
	require.Len(t, tap.count(), 1)
	n, err = s.DeleteExpired(ctx, 2001)
	require.NoError(t, err)
	require.Equal(t, 2001, n)
	require.Len(t, tap.count(), 3, "in batches of 1,000")
	n, err = s.DeleteExpired(ctx, 1e9)
	require.NoError(t, err)
	require.Equal(t, expired-7-2001, n)
	require.Len(t, tap.count(), 1)
	for _, key := range []string{"live:pending", "live:ever", "live:done", "live:unknown", "old:foreign"} {
		require.NotNil(t, stored(t, db, key), key)
	}

	// What was removed by the first batches is told beside the error of a later.
	for _, r := range s.ReserveMany(ctx, reqs) {
		require.NoError(t, r.Err)
	}
	time.Sleep(20 * time.Millisecond)
	batches := 0
	tap.set(func(statement string, do func() (driver.Rows, error)) (driver.Rows, error) {
		if batches++; batches == 3 {
			return nil, errLost
		}
		return do()
	})
	n, err = s.DeleteExpired(ctx, 1e9)
	require.ErrorIs(t, err, errLost)
	require.Equal(t, 2000, n)
}

// Those who sweep and those who take expired keys over, at the same time.
func testDeleteExpiredRace(t *testing.T, srv server) {
	s, db := srv.store(t)
	ctx := t.Context()
	const keys = 300
	for i := range keys {
		reserve(t, s, fmt.Sprint("sweep:", i), time.Millisecond)
	}
	time.Sleep(20 * time.Millisecond)
	var stop atomic.Bool
	swept := make(chan int)
	for range 2 {
		go func() {
			total := 0
			for !stop.Load() {
				n, err := s.DeleteExpired(ctx, 10)
				if err != nil {
					t.Error(err)
					break
				}
				total += n
			}
			swept <- total
		}()
	}
	tokens := make([]string, keys)
	for i := range tokens {
		tokens[i] = reserve(t, s, fmt.Sprint("sweep:", keys-1-i), time.Hour)
	}
	stop.Store(true)
	t.Log("swept", <-swept+<-swept)
	for i, token := range tokens {
		require.Equal(t, token, stored(t, db, fmt.Sprint("sweep:", keys-1-i))["token"])
	}
}

func testListing(t *testing.T, srv server) {
	dsn := srv.dsn(t)
	db, tap := srv.tapped(t, dsn)
	db.SetMaxOpenConns(1)
	s := srv.on(t, db)
	ctx := t.Context()
	const unsettled = 250
	reqs := make([]idemmail.ReserveRequest, 0, unsettled)
	for i := range unsettled {
		reqs = append(reqs, idemmail.ReserveRequest{Key: fmt.Sprintf("list:%03d", i), Fingerprint: "1:x", Lease: time.Hour})
	}
	s.ReserveMany(ctx, reqs)
	for _, key := range []string{"List:x", "list", "lisu", "list;", "list9"} { // sort before, or after
		reserve(t, s, key, time.Hour)
	}
	finish(t, s, "list:sent", &idemmail.Receipt{Status: idemmail.StatusSent}, time.Hour)
	finish(t, s, "list:failed", &idemmail.Receipt{Status: idemmail.StatusFailed}, time.Hour)
	finish(t, s, "list:unknown", &idemmail.Receipt{Status: idemmail.StatusUnknown}, time.Hour)
	finish(t, s, "list:over", &idemmail.Receipt{Status: idemmail.StatusUnknown}, time.Millisecond)
	reserve(t, s, "list:over2", time.Millisecond)
	time.Sleep(20 * time.Millisecond)

	var keys []string
	for e, err := range s.Unsettled(ctx, "list:", 0) {
		require.NoError(t, err)
		keys = append(keys, e.Key)
	}
	require.Len(t, keys, unsettled+1)
	require.IsIncreasing(t, keys, "each once")
	keys = nil

	// There is one connection, and settling needs it.
	tap.count()
	for e, err := range s.Unsettled(ctx, "list:", 0) {
		require.NoError(t, err)
		keys = append(keys, e.Key)
		if len(keys)%2 == 0 {
			require.NoError(t, s.Resolve(ctx, e, nil, time.Hour))
		} else {
			require.NoError(t, s.Forget(ctx, e))
		}
	}
	require.Len(t, keys, unsettled+1)
	require.IsIncreasing(t, keys)
	require.Equal(t, "list:unknown", keys[unsettled])
	pages := 0
	for _, statement := range tap.count() {
		if strings.Contains(statement, "LIMIT") {
			pages++
		}
	}
	require.Equal(t, 3, pages, "streamed: pages of 100 as they are needed")

	for e := range s.Unsettled(ctx, "", 0) {
		keys = append(keys, e.Key)
	}
	require.Subset(t, keys, []string{"List:x", "list", "lisu", "list;", "list9"})
}
