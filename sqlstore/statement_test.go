package sqlstore_test

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
)

// What a statement is, by its text.
func isReserve(text string) bool {
	return strings.Contains(text, "INSERT") && strings.Contains(text, "'pending', token")
}
func isComplete(text string) bool {
	return strings.Contains(text, "INSERT") && strings.Contains(text, "'done', token")
}
func isRead(text string) bool {
	return strings.HasPrefix(strings.TrimSpace(text), "SELECT key") && !strings.Contains(text, "LIMIT")
}
func isFree(text string) bool { return strings.Contains(text, "DELETE") }

func testStatements(t *testing.T, srv server) {
	db, tap := srv.tapped(t, srv.dsn(t))
	s := srv.on(t, db)
	ctx := t.Context()
	tap.count()
	counts := func(n int, what string) {
		t.Helper()
		require.Len(t, tap.count(), n, what)
	}
	for range 2 {
		token := reserve(t, s, "count:key", time.Minute)
		counts(1, "a new key is reserved")
		holder(t, s, "count:key")
		counts(2, "one that is in flight is read")
		require.NoError(t, s.Renew(ctx, "count:key", token, time.Minute))
		counts(1, "renewed")
		require.NoError(t, s.Complete(ctx, "count:key", token, sent("count:key"), time.Nanosecond))
		counts(1, "completed")
		time.Sleep(5 * time.Millisecond) // its time has passed
		token = reserve(t, s, "count:key", time.Minute)
		counts(1, "taken over")
		require.NoError(t, s.Complete(ctx, "count:key", token, sent("count:key"), time.Minute))
		counts(1, "completed")
		require.Equal(t, idemmail.StateDone, holder(t, s, "count:key").State)
		counts(2, "replayed")
		e, err := s.Lookup(ctx, "count:key")
		require.NoError(t, err)
		counts(1, "looked up")
		require.NoError(t, s.Resolve(ctx, *e, nil, time.Minute))
		counts(1, "resolved")
		e, err = s.Lookup(ctx, "count:key")
		require.NoError(t, err)
		require.NoError(t, s.Forget(ctx, *e))
		counts(2, "looked up and forgotten")
		token = reserve(t, s, "count:key", time.Minute)
		require.NoError(t, s.Release(ctx, "count:key", token))
		counts(2, "reserved and released")
		require.NoError(t, s.Complete(ctx, "count:key", token, sent("count:key"), time.Minute))
		counts(1, "completed though it had vanished")
		e, err = s.Lookup(ctx, "count:key")
		require.NoError(t, err)
		require.NoError(t, s.Forget(ctx, *e))
		tap.count()
	}
}

func testBatchStatements(t *testing.T, srv server) {
	db, tap := srv.tapped(t, srv.dsn(t))
	s := srv.on(t, db)
	ctx := t.Context()
	texts := map[string]bool{}
	for _, n := range []int{1, 3, 100, 513} {
		per := (n + 511) / 512
		tap.count()
		counts := func(statements int, what string) {
			t.Helper()
			took := tap.count()
			require.Len(t, took, statements, "%s %d keys", what, n)
			for _, text := range took {
				texts[text] = true
			}
		}
		reserves := make([]idemmail.ReserveRequest, n)
		for i := range reserves {
			reserves[i] = idemmail.ReserveRequest{Key: fmt.Sprintf("batch:%d/%d", n, (i*7919)%n), Fingerprint: fmt.Sprint("1:", i), Lease: time.Minute}
		}
		if n%7919 == 0 {
			t.Fatal("keys must differ")
		}
		reserved := s.ReserveMany(ctx, reserves)
		counts(per, "reserving")
		renews, completes, releases := make([]idemmail.RenewRequest, n), make([]idemmail.CompleteRequest, n), make([]idemmail.ReleaseRequest, n)
		for i, r := range reserved {
			require.NoError(t, r.Err)
			require.NotEmpty(t, r.Token)
			key := reserves[i].Key
			renews[i] = idemmail.RenewRequest{Key: key, Token: r.Token, Lease: time.Hour}
			completes[i] = idemmail.CompleteRequest{Key: key, Token: r.Token, Record: sent(key), TTL: time.Hour}
			completes[i].Record.Fingerprint = reserves[i].Fingerprint
			releases[i] = idemmail.ReleaseRequest{Key: key, Token: r.Token}
		}
		for _, err := range s.RenewMany(ctx, renews) {
			require.NoError(t, err)
		}
		counts(per, "renewing")
		for _, err := range s.ReleaseMany(ctx, releases) {
			require.NoError(t, err)
		}
		counts(per, "releasing")
		for _, err := range s.CompleteMany(ctx, completes) {
			require.NoError(t, err)
		}
		counts(per, "completing")
		for i, r := range s.ReserveMany(ctx, reserves) {
			require.NoError(t, r.Err)
			require.NotNil(t, r.Held)
			require.Equal(t, reserves[i].Key, r.Held.Receipt.ProviderID)
			require.Equal(t, reserves[i].Fingerprint, r.Held.Fingerprint)
		}
		counts(2*per, "replaying")
	}
	require.LessOrEqual(t, len(texts), 5*10, "drivers keep what they prepare")
}

// The driver carries out a reserve twice, as it may after a lost answer.
func testOwnToken(t *testing.T, srv server) {
	db, tap := srv.tapped(t, srv.dsn(t))
	s := srv.on(t, db)
	tap.set(func(statement string, do func() (driver.Rows, error)) (driver.Rows, error) {
		if isReserve(statement) {
			if err := drain(do()); err != nil {
				return nil, err
			}
		}
		return do()
	})
	token := reserve(t, s, "own:key", time.Minute)
	many := s.ReserveMany(t.Context(), []idemmail.ReserveRequest{
		{Key: "own:key", Fingerprint: "1:x", Lease: time.Minute},
		{Key: "own:a", Fingerprint: "1:x", Lease: time.Minute},
	})
	require.NotNil(t, many[0].Held)
	require.NotEmpty(t, many[1].Token)
	require.Equal(t, token, stored(t, db, "own:key")["token"])
	require.Equal(t, many[1].Token, stored(t, db, "own:a")["token"])
	require.NoError(t, s.Complete(t.Context(), "own:key", token, sent("own:key"), time.Minute))
}

func testVanished(t *testing.T, srv server) {
	dsn := srv.dsn(t)
	db, tap := srv.tapped(t, dsn)
	s := srv.on(t, db)
	aside := srv.open(t, dsn)
	reserve(t, s, "gone:key", time.Minute)
	var once atomic.Bool
	tap.set(func(statement string, do func() (driver.Rows, error)) (driver.Rows, error) {
		if isRead(statement) && once.CompareAndSwap(false, true) {
			if _, err := aside.Exec("DELETE FROM idemmail WHERE key = 'gone:key'"); err != nil {
				return nil, err
			}
		}
		return do()
	})
	reserve(t, s, "gone:key", time.Minute)

	once.Store(false)
	require.NoError(t, s.Complete(t.Context(), "gone:key", "another", sent("gone:key"), time.Hour), "nothing holds it any more")
	once.Store(false)
	require.NoError(t, s.Release(t.Context(), "gone:key", "a third"))
}

func testUnsteady(t *testing.T, srv server) {
	dsn := srv.dsn(t)
	db, tap := srv.tapped(t, dsn)
	s := srv.on(t, db)
	aside := srv.open(t, dsn)
	row := map[string]any{"key": "busy:key", "format": 1, "state": "pending", "token": "t", "fingerprint": "1:x", "at": 0, "expires": nil}
	// A call that its context ended may still be at its statements when the test
	// is over and aside is about to be closed.
	var mu sync.Mutex
	over := false
	t.Cleanup(func() {
		mu.Lock()
		defer mu.Unlock()
		over = true
	})
	tap.set(func(statement string, do func() (driver.Rows, error)) (driver.Rows, error) {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case over:
			return nil, errLost
		case isReserve(statement), isComplete(statement):
			insert(t, aside, row)
		case isRead(statement):
			if _, err := aside.Exec("DELETE FROM idemmail WHERE key = 'busy:key'"); err != nil {
				return nil, err
			}
		}
		return do()
	})
	_, held, err := s.Reserve(t.Context(), "busy:key", "1:x", time.Minute)
	require.ErrorContains(t, err, "freed each time")
	require.Nil(t, held)
	require.ErrorContains(t, s.Complete(t.Context(), "busy:key", "mine", sent("x"), time.Minute), "freed each time")

	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, _, err = s.Reserve(ctx, "busy:key", "1:x", time.Minute)
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

var errLost = errors.New("connection lost")

func testLostAnswer(t *testing.T, srv server) {
	db, tap := srv.tapped(t, srv.dsn(t))
	s := srv.on(t, db)
	lose := func(which func(string) bool) {
		tap.set(func(statement string, do func() (driver.Rows, error)) (driver.Rows, error) {
			if !which(statement) {
				return do()
			}
			if err := drain(do()); err != nil {
				return nil, err
			}
			return nil, errLost
		})
	}
	lose(isReserve)
	_, _, err := s.Reserve(t.Context(), "lost:key", "1:x", idemmail.NoExpiry)
	require.ErrorIs(t, err, errLost)
	require.ErrorContains(t, err, "lost:key")
	require.Nil(t, stored(t, db, "lost:key"), "nobody will use it")
	for _, r := range s.ReserveMany(t.Context(), []idemmail.ReserveRequest{
		{Key: "lost:a", Fingerprint: "1:x", Lease: idemmail.NoExpiry}, {Key: "lost:b", Fingerprint: "1:x", Lease: idemmail.NoExpiry},
	}) {
		require.ErrorIs(t, r.Err, errLost)
	}
	require.Nil(t, stored(t, db, "lost:a"))
	require.Nil(t, stored(t, db, "lost:b"))

	// What another holds stays.
	lose(func(string) bool { return false })
	token := reserve(t, s, "lost:key", time.Minute)
	lose(isReserve)
	_, _, err = s.Reserve(t.Context(), "lost:key", "1:x", idemmail.NoExpiry)
	require.ErrorIs(t, err, errLost)
	require.Equal(t, token, stored(t, db, "lost:key")["token"])

	// Settling again after a lost answer does no harm.
	lose(isComplete)
	require.ErrorIs(t, s.Complete(t.Context(), "lost:key", token, sent("lost:key"), time.Minute), errLost)
	lose(func(string) bool { return false })
	require.NoError(t, s.Complete(t.Context(), "lost:key", token, sent("lost:key"), time.Minute))
	token = reserve(t, s, "lost:released", time.Minute)
	lose(isFree)
	require.ErrorIs(t, s.Release(t.Context(), "lost:released", token), errLost)
	lose(func(string) bool { return false })
	require.NoError(t, s.Release(t.Context(), "lost:released", token))
}

// A driver that hears nothing of contexts.
func testHangs(t *testing.T, srv server) {
	dsn := srv.dsn(t)
	db, tap := srv.tapped(t, dsn)
	tap.deaf = true
	s := srv.on(t, db)
	aside := srv.open(t, dsn)
	token := reserve(t, s, "hang:held", time.Minute)

	// What was reserved after all, when nobody waits for it any more, is free
	// again soon.
	for what, reserve := range map[string]func(ctx context.Context, key string) error{
		"one": func(ctx context.Context, key string) error {
			_, _, err := s.Reserve(ctx, key, "1:x", idemmail.NoExpiry)
			return err
		},
		"many": func(ctx context.Context, key string) error {
			r := s.ReserveMany(ctx, []idemmail.ReserveRequest{
				{Key: key, Fingerprint: "1:x", Lease: idemmail.NoExpiry}, {Key: "hang:more", Fingerprint: "1:x", Lease: idemmail.NoExpiry},
			})
			return errors.Join(r[0].Err, r[1].Err)
		},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		hung := make(chan struct{})
		done := make(chan error, 1)
		tap.set(func(statement string, do func() (driver.Rows, error)) (driver.Rows, error) {
			if !isReserve(statement) {
				return do()
			}
			cancel()
			<-hung
			rows, err := do()
			done <- err
			return rows, err
		})
		require.ErrorIs(t, reserve(ctx, "hang:"+what), context.Canceled)
		close(hung)
		require.NoError(t, <-done)
		for _, key := range []string{"hang:" + what, "hang:more"} {
			require.Eventually(t, func() bool { return stored(t, aside, key) == nil }, 10*time.Second, 10*time.Millisecond, key)
		}
	}

	hung := make(chan struct{})
	defer close(hung)
	tap.set(func(string, func() (driver.Rows, error)) (driver.Rows, error) {
		<-hung
		return nil, errLost
	})
	short := func() context.Context {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
		t.Cleanup(cancel)
		return ctx
	}
	for what, err := range touches(short, s, "hang:held", token) {
		require.ErrorIs(t, err, context.DeadlineExceeded, what)
	}
	_, err := s.DeleteExpired(short(), 1)
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

// A driver's panic is an error of the call, on whichever goroutine it was.
func TestPanic(t *testing.T) {
	db, tap := sqliteServer.tapped(t, sqliteServer.dsn(t))
	s := sqliteServer.on(t, db)
	token := reserve(t, s, "panic:key", time.Minute)
	tap.set(func(string, func() (driver.Rows, error)) (driver.Rows, error) { panic("at the disco") })
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for _, c := range []func() context.Context{context.Background, func() context.Context { return ctx }} {
		for what, err := range touches(c, s, "panic:key", token) {
			require.ErrorContains(t, err, "at the disco", what)
		}
	}
	tap.set(nil)
	require.Equal(t, idemmail.StatePending, holder(t, s, "panic:key").State)
}

// The deadline of a connection may come a moment before the context's.
func TestDeadline(t *testing.T) {
	db, tap := sqliteServer.tapped(t, sqliteServer.dsn(t))
	s := sqliteServer.on(t, db)
	tap.set(func(string, func() (driver.Rows, error)) (driver.Rows, error) { return nil, os.ErrDeadlineExceeded })
	for _, err := range touches(func() context.Context { return lateContext{t.Context()} }, s, "late:key", "token") {
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	}
}

// A lateContext has not noticed yet that its deadline has passed.
type lateContext struct{ context.Context }

func (lateContext) Deadline() (time.Time, bool) { return time.Now().Add(-time.Millisecond), true }

func testPoolExhausted(t *testing.T, srv server) {
	db := srv.open(t, srv.dsn(t))
	db.SetMaxOpenConns(1)
	s := srv.on(t, db)
	taken, err := db.Conn(t.Context())
	require.NoError(t, err)
	short := func() context.Context {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
		t.Cleanup(cancel)
		return ctx
	}
	for what, err := range touches(short, s, "pool:key", "token") {
		require.ErrorIs(t, err, context.DeadlineExceeded, what)
	}
	require.NoError(t, taken.Close())
	require.Eventually(t, func() bool { return stored(t, db, "pool:key") == nil }, 10*time.Second, 10*time.Millisecond)
	reserve(t, s, "pool:key", time.Minute)
}

// turnedAway is an error as drivers for PostgreSQL have it, and resultCode as
// modernc.org/sqlite has it.
type turnedAway string

func (e turnedAway) Error() string    { return "turned away" }
func (e turnedAway) SQLState() string { return string(e) }

type resultCode int

func (e resultCode) Error() string { return "turned away" }
func (e resultCode) Code() int     { return int(e) }

func TestTurnedAway(t *testing.T) {
	db, tap := sqliteServer.tapped(t, sqliteServer.dsn(t))
	s := sqliteServer.on(t, db)
	turn := func(times int, err error) (tries *int) {
		tries = new(int)
		tap.set(func(statement string, do func() (driver.Rows, error)) (driver.Rows, error) {
			if !isFree(statement) { // which comes after a failure
				if *tries++; *tries <= times {
					return nil, fmt.Errorf("wrapped: %w", err)
				}
			}
			return do()
		})
		return tries
	}
	for i, err := range []error{turnedAway("40001"), turnedAway("40P01"), resultCode(5), resultCode(6), resultCode(5 | 2<<8)} {
		tries := turn(5, err)
		reserve(t, s, fmt.Sprint("away:", i), time.Minute)
		require.Equal(t, 6, *tries)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		turn(1e9, err)
		_, _, failed := s.Reserve(ctx, "away:never", "1:x", time.Minute)
		cancel()
		require.ErrorIs(t, failed, context.DeadlineExceeded)
		tap.set(nil)
		require.Nil(t, stored(t, db, "away:never"))
	}
	for _, err := range []error{turnedAway("23505"), turnedAway("57014"), resultCode(1), resultCode(13), errLost} {
		tries := turn(1, err)
		_, _, failed := s.Reserve(t.Context(), "away:other", "1:x", time.Minute)
		require.ErrorIs(t, failed, err)
		require.Equal(t, 1, *tries)
	}
}
