package sqlstore_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/mail"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/sqlstore"
)

func begin(t testing.TB, db *sql.DB) *sql.Tx {
	t.Helper()
	tx, err := db.BeginTx(context.Background(), nil)
	require.NoError(t, err)
	t.Cleanup(func() { tx.Rollback() })
	return tx
}

func testTransaction(t *testing.T, srv server) {
	s, db := srv.store(t)
	ctx := t.Context()
	execute(t, db, "CREATE TABLE orders (id TEXT PRIMARY KEY)")
	orders := func() (n int) {
		require.NoError(t, db.QueryRow("SELECT count(*) FROM orders").Scan(&n))
		return n
	}

	tx := begin(t, db)
	_, err := tx.ExecContext(ctx, "INSERT INTO orders VALUES ('1')")
	require.NoError(t, err)
	_, held, err := s.ReserveTx(ctx, tx, "orders:1", "1:x", time.Minute)
	require.NoError(t, err)
	require.Nil(t, held)
	require.NoError(t, tx.Rollback())
	require.Zero(t, orders())
	require.Nil(t, stored(t, db, "orders:1"), "neither the order nor the reservation")

	tx = begin(t, db)
	_, err = tx.ExecContext(ctx, "INSERT INTO orders VALUES ('1')")
	require.NoError(t, err)
	token, held, err := s.ReserveTx(ctx, tx, "orders:1", "1:x", time.Minute)
	require.NoError(t, err)
	require.Nil(t, held)
	require.Nil(t, stored(t, db, "orders:1"), "not before the commit")
	require.NoError(t, tx.Commit())
	require.Equal(t, 1, orders())
	require.Equal(t, token, stored(t, db, "orders:1")["token"], "both")
	require.Equal(t, idemmail.StatePending, holder(t, s, "orders:1").State)

	// A later transaction finds it held.
	tx = begin(t, db)
	token, held, err = s.ReserveTx(ctx, tx, "orders:1", "1:other", time.Minute)
	require.NoError(t, err)
	require.Empty(t, token)
	require.Equal(t, "1:x", held.Fingerprint)
	require.NoError(t, tx.Rollback())

	// What is refused leaves the transaction as it is.
	tx = begin(t, db)
	_, _, err = s.ReserveTx(ctx, tx, "orders:2", "1:x", 0)
	require.Error(t, err)
	_, _, err = s.ReserveTx(ctx, tx, "orders:\x00", "1:x", time.Minute)
	require.Error(t, err)
	_, err = tx.ExecContext(ctx, "INSERT INTO orders VALUES ('2')")
	require.NoError(t, err)
	require.NoError(t, tx.Commit())

	ended, cancel := context.WithCancel(ctx)
	cancel()
	tx = begin(t, db)
	_, _, err = s.ReserveTx(ended, tx, "orders:2", "1:x", time.Minute)
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, tx.Rollback())

	// An expired one is taken over with the order, or not.
	reserve(t, s, "orders:3", time.Nanosecond)
	time.Sleep(10 * time.Millisecond)
	before := stored(t, db, "orders:3")
	tx = begin(t, db)
	_, held, err = s.ReserveTx(ctx, tx, "orders:3", "1:x", time.Minute)
	require.NoError(t, err)
	require.Nil(t, held)
	require.NoError(t, tx.Rollback())
	require.Equal(t, before, stored(t, db, "orders:3"))
}

// The whole way: the order and the reservation in one transaction, then the
// mail, by a transport that knows nothing of it.
func testOrder(t *testing.T, srv server) {
	s, db := srv.store(t)
	ctx := t.Context()
	sends := 0
	transport, err := idemmail.New(idemmail.TransportFunc(func(context.Context, *idemmail.Message) (*idemmail.Receipt, error) {
		sends++
		return &idemmail.Receipt{Status: idemmail.StatusSent, ProviderID: fmt.Sprint(sends)}, nil
	}), idemmail.Options{Store: s, Namespace: "orders", Lease: time.Hour})
	require.NoError(t, err)
	message := func() *idemmail.Message {
		return &idemmail.Message{From: mail.Address{Address: "shop@example.com"}, To: []mail.Address{{Address: "a@example.com"}},
			Subject: "Your order 1042", IdempotencyKey: "order/1042"}
	}
	const key = "orders:order/1042"

	tx := begin(t, db)
	token, held, err := s.ReserveTx(ctx, tx, key, idemmail.Fingerprint(message()), time.Minute)
	require.NoError(t, err)
	require.Nil(t, held)
	require.NoError(t, tx.Commit())

	_, err = transport.Send(ctx, message())
	require.ErrorIs(t, err, idemmail.ErrInFlight, "it is for who made the reservation")
	other := message()
	other.Subject = "Your order 1043"
	_, err = transport.Send(sqlstore.WithReservation(ctx, key, token), other)
	require.ErrorIs(t, err, idemmail.ErrKeyReused, "and for this message")
	require.Zero(t, sends)

	for i := range 3 {
		receipt, err := transport.Send(sqlstore.WithReservation(ctx, key, token), message())
		require.NoError(t, err)
		require.Equal(t, "1", receipt.ProviderID)
		require.Equal(t, i > 0, receipt.Replayed)
	}
	require.Equal(t, 1, sends)
	require.Equal(t, idemmail.StateDone, holder(t, s, key).State)

	// A send that fails frees the key, as it always does, and the next goes
	// with or without the reservation.
	tx = begin(t, db)
	token, _, err = s.ReserveTx(ctx, tx, "orders:do", "c:f", time.Minute)
	require.NoError(t, err)
	require.NoError(t, tx.Commit())
	g, err := idemmail.NewGuard(idemmail.Options{Store: s, Namespace: "orders"})
	require.NoError(t, err)
	refused := errors.New("refused")
	_, err = g.Do(sqlstore.WithReservation(ctx, "orders:do", token), "do", "f", func(context.Context) (*idemmail.Receipt, error) {
		return nil, idemmail.NotSent(refused)
	})
	require.ErrorIs(t, err, refused)
	require.Nil(t, stored(t, db, "orders:do"))
	_, err = g.Do(sqlstore.WithReservation(ctx, "orders:do", token), "do", "f", func(context.Context) (*idemmail.Receipt, error) {
		return nil, nil
	})
	require.NoError(t, err)
}

func committed(t testing.TB, s *sqlstore.Store, db *sql.DB, key string, lease time.Duration) (token string) {
	t.Helper()
	tx := begin(t, db)
	token, held, err := s.ReserveTx(context.Background(), tx, key, "1:"+key, lease)
	require.NoError(t, err)
	require.Nil(t, held)
	require.NoError(t, tx.Commit())
	return token
}

func testClaimOnce(t *testing.T, srv server) {
	s, db := srv.store(t)
	for round := range 10 {
		key := fmt.Sprint("claim:", round)
		ctx := sqlstore.WithReservation(t.Context(), key, committed(t, s, db, key, time.Minute))
		tokens := make([]string, 8)
		var group sync.WaitGroup
		for i := range tokens {
			group.Go(func() {
				var err error
				var held *idemmail.Record
				if i%2 == 0 {
					tokens[i], held, err = s.Reserve(ctx, key, "1:"+key, time.Hour)
				} else {
					r := s.ReserveMany(ctx, []idemmail.ReserveRequest{
						{Key: key, Fingerprint: "1:" + key, Lease: time.Hour},
						{Key: fmt.Sprint(key, "/", i), Fingerprint: "1:x", Lease: time.Hour},
					})
					tokens[i], held, err = r[0].Token, r[0].Held, r[0].Err
					if r[1].Token == "" {
						t.Errorf("a key of its own: %v", r[1].Err)
					}
				}
				if err != nil || (tokens[i] == "") == (held == nil) {
					t.Errorf("token %q, held %v, error %v", tokens[i], held, err)
				}
			})
		}
		group.Wait()
		won := ""
		for _, token := range tokens {
			if token != "" {
				require.Empty(t, won, "two took it up")
				won = token
			}
		}
		require.NotEmpty(t, won)
		row := stored(t, db, key)
		require.Equal(t, won, row["token"])
		require.Greater(t, row["expires"].(int64)-row["at"].(int64), int64(3599_000), "for the lease that it was taken up with")
		require.NoError(t, s.Complete(ctx, key, won, sent(key), time.Hour))
		_, held, err := s.Reserve(ctx, key, "1:"+key, time.Hour)
		require.NoError(t, err)
		require.Equal(t, idemmail.StateDone, held.State)
	}
}

func testClaimRefused(t *testing.T, srv server) {
	s, db := srv.store(t)
	token := committed(t, s, db, "no:fingerprint", time.Minute)
	before := stored(t, db, "no:fingerprint")
	_, held, err := s.Reserve(sqlstore.WithReservation(t.Context(), "no:fingerprint", token), "no:fingerprint", "1:another", time.Minute)
	require.NoError(t, err)
	require.Equal(t, "1:no:fingerprint", held.Fingerprint)
	_, held, err = s.Reserve(sqlstore.WithReservation(t.Context(), "no:other", token), "no:fingerprint", "1:no:fingerprint", time.Minute)
	require.NoError(t, err)
	require.NotNil(t, held, "a reservation of another key")
	_, held, err = s.Reserve(sqlstore.WithReservation(t.Context(), "no:fingerprint", "guessed"), "no:fingerprint", "1:no:fingerprint", time.Minute)
	require.NoError(t, err)
	require.NotNil(t, held)
	require.Equal(t, before, stored(t, db, "no:fingerprint"))

	// What a send holds is not taken from it.
	token = reserve(t, s, "no:send", time.Minute)
	_, held, err = s.Reserve(sqlstore.WithReservation(t.Context(), "no:send", token), "no:send", "1:no:send", time.Minute)
	require.NoError(t, err)
	require.NotNil(t, held)
	require.Equal(t, token, stored(t, db, "no:send")["token"])

	// After its lease it holds nothing back, and is nobody's.
	token = committed(t, s, db, "no:lapsed", time.Nanosecond)
	time.Sleep(10 * time.Millisecond)
	fresh := reserve(t, s, "no:lapsed", time.Minute)
	_, held, err = s.Reserve(sqlstore.WithReservation(t.Context(), "no:lapsed", token), "no:lapsed", "1:no:lapsed", time.Minute)
	require.NoError(t, err)
	require.NotNil(t, held)
	require.Equal(t, fresh, stored(t, db, "no:lapsed")["token"])

	token = committed(t, s, db, "no:gone", time.Nanosecond)
	time.Sleep(10 * time.Millisecond)
	_, err = s.DeleteExpired(t.Context(), 100)
	require.NoError(t, err)
	taken, held, err := s.Reserve(sqlstore.WithReservation(t.Context(), "no:gone", token), "no:gone", "1:no:gone", time.Minute)
	require.NoError(t, err)
	require.Nil(t, held)
	require.NotEqual(t, token, taken)

	// One of two contexts made one from the other.
	a, b := committed(t, s, db, "no:a", time.Minute), committed(t, s, db, "no:b", time.Minute)
	ctx := sqlstore.WithReservation(sqlstore.WithReservation(t.Context(), "no:a", a), "no:b", b)
	for _, r := range s.ReserveMany(ctx, []idemmail.ReserveRequest{
		{Key: "no:a", Fingerprint: "1:no:a", Lease: time.Minute}, {Key: "no:b", Fingerprint: "1:no:b", Lease: time.Minute},
	}) {
		require.NoError(t, r.Err)
		require.NotEmpty(t, r.Token)
	}
}

// Two transactions for one order: the second waits, and then knows.
func testTransactionsWait(t *testing.T, srv server) {
	s, db := srv.store(t)
	for _, commit := range []bool{true, false} {
		key := fmt.Sprint("wait:", commit)
		first := begin(t, db)
		_, held, err := s.ReserveTx(t.Context(), first, key, "1:first", time.Minute)
		require.NoError(t, err)
		require.Nil(t, held)
		type answer struct {
			token string
			held  *idemmail.Record
			err   error
		}
		answers := make(chan answer, 2)
		go func() {
			second, err := db.BeginTx(t.Context(), nil)
			if err != nil {
				answers <- answer{err: err}
				return
			}
			defer second.Commit()
			token, held, err := s.ReserveTx(t.Context(), second, key, "1:second", time.Minute)
			answers <- answer{token, held, err}
		}()
		if commit {
			require.NoError(t, first.Commit())
		} else {
			require.NoError(t, first.Rollback())
		}
		a := <-answers
		require.NoError(t, a.err)
		if commit {
			require.Equal(t, "1:first", a.held.Fingerprint)
		} else {
			require.NotEmpty(t, a.token)
		}
	}
}

// Others wait for a transaction as long as their contexts last, and have taken
// nothing then.
func testOthersWait(t *testing.T, srv server) {
	s, db := srv.store(t)
	for _, commit := range []bool{true, false} {
		key := fmt.Sprint("wait:", commit)
		tx := begin(t, db)
		token, _, err := s.ReserveTx(t.Context(), tx, key, "1:first", time.Minute)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		_, _, err = s.Reserve(ctx, key, "1:other", idemmail.NoExpiry)
		cancel()
		require.ErrorIs(t, err, context.DeadlineExceeded)
		if commit {
			require.NoError(t, tx.Commit())
			require.Equal(t, token, stored(t, db, key)["token"])
			continue
		}
		require.NoError(t, tx.Rollback())
		require.Eventually(t, func() bool { return stored(t, db, key) == nil }, 10*time.Second, 10*time.Millisecond)
	}
}
