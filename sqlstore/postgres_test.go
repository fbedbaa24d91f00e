package sqlstore_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/internal/testserver"
	"github.com/idemmail/idemmail/sqlstore"
)

// A reserve that has waited for a transaction longer than its lease must not
// be answered a token that holds nothing.
func testWaitOutlastsLease(t *testing.T, srv server) {
	s, db := srv.store(t)
	for _, commit := range []bool{false, true} {
		key := fmt.Sprint("wait:", commit)
		tx := begin(t, db)
		_, _, err := s.ReserveTx(t.Context(), tx, key, "1:first", time.Millisecond)
		require.NoError(t, err)
		var token string
		var group sync.WaitGroup
		group.Go(func() {
			var held *idemmail.Record
			var err error
			token, held, err = s.Reserve(t.Context(), key, "1:second", time.Second)
			if err != nil || held != nil {
				t.Errorf("held %v, error %v", held, err)
			}
		})
		time.Sleep(1200 * time.Millisecond)
		if commit {
			require.NoError(t, tx.Commit())
		} else {
			require.NoError(t, tx.Rollback())
		}
		group.Wait()
		require.NoError(t, s.Renew(t.Context(), key, token, time.Minute), "it holds the key")
	}
}

// The database's own settings do not matter.
func testSerializable(t *testing.T, srv server) {
	dsn := srv.dsn(t)
	admin := srv.open(t, dsn)
	execute(t, admin, "ALTER DATABASE "+databaseOf(t, admin)+" SET default_transaction_isolation = 'serializable'")
	execute(t, admin, "ALTER DATABASE "+databaseOf(t, admin)+" SET timezone = 'Asia/Kathmandu'")
	execute(t, admin, "ALTER DATABASE "+databaseOf(t, admin)+" SET datestyle = 'German'")
	db := srv.open(t, dsn)
	var level string
	require.NoError(t, db.QueryRow("SHOW transaction_isolation").Scan(&level))
	require.Equal(t, "serializable", level)
	s := srv.on(t, db)
	reserve(t, s, "serial:time", time.Minute)
	e, err := s.Lookup(t.Context(), "serial:time")
	require.NoError(t, err)
	require.WithinDuration(t, time.Now().Add(time.Minute), e.ExpiresAt, 20*time.Second)
	for round := range 5 {
		var won, lost int
		var mu sync.Mutex
		var group sync.WaitGroup
		for range 16 {
			group.Go(func() {
				token, held, err := s.Reserve(t.Context(), fmt.Sprint("serial:", round), "1:x", time.Minute)
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err != nil:
					t.Error(err)
				case token != "":
					won++
				case held != nil:
					lost++
				}
			})
		}
		group.Wait()
		require.Equal(t, []int{1, 15}, []int{won, lost})
	}
}

func databaseOf(t *testing.T, db *sql.DB) (name string) {
	t.Helper()
	require.NoError(t, db.QueryRow("SELECT current_database()").Scan(&name))
	return name
}

// A caller's transaction of a higher level is told that it has to be done anew,
// and not that a key is free.
func testRepeatableRead(t *testing.T, srv server) {
	s, db := srv.store(t)
	tx, err := db.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
	require.NoError(t, err)
	defer tx.Rollback()
	_, err = tx.Exec("SELECT count(*) FROM idemmail") // it sees what is there now
	require.NoError(t, err)
	token := reserve(t, s, "repeatable:key", time.Minute)
	_, held, err := s.ReserveTx(t.Context(), tx, "repeatable:key", "1:x", time.Minute)
	var state interface{ SQLState() string }
	require.ErrorAs(t, err, &state)
	require.Equal(t, "40001", state.SQLState())
	require.Nil(t, held)
	require.NoError(t, tx.Rollback())
	require.Equal(t, token, stored(t, db, "repeatable:key")["token"])
}

// Each statement that changes a row waits for whoever changes it at that
// moment, and then goes by what it has become.
func testWaitsForRow(t *testing.T, srv server) {
	s, db := srv.store(t)
	var key, token string // of the row, before
	entry := func(state idemmail.State) idemmail.Entry {
		return idemmail.Entry{Key: key, Token: token, Record: idemmail.Record{State: state}}
	}
	const (
		taken = "token = 'new'" // by another owner, or operator
		alive = "expires = 4102444800000"
	)
	for _, c := range []struct {
		name    string
		expired bool
		become  string
		call    func(ctx context.Context) error
		want    error
	}{
		{"reserve", true, alive, func(ctx context.Context) error {
			_, held, err := s.Reserve(ctx, key, "1:x", time.Minute)
			return errors.Join(err, unless(held != nil))
		}, nil},
		{"reserve many", true, alive, func(ctx context.Context) error {
			r := s.ReserveMany(ctx, []idemmail.ReserveRequest{{Key: key, Fingerprint: "1:x", Lease: time.Minute}, {Key: key + "2", Fingerprint: "1:x", Lease: time.Minute}})
			return errors.Join(r[0].Err, unless(r[0].Held != nil && r[1].Token != ""))
		}, nil},
		{"claim", false, taken, func(ctx context.Context) error {
			_, held, err := s.Reserve(sqlstore.WithReservation(ctx, key, token), key, "1:"+key, time.Minute)
			return errors.Join(err, unless(held != nil))
		}, nil},
		{"complete", false, taken, func(ctx context.Context) error { return s.Complete(ctx, key, token, sent(key), time.Minute) }, idemmail.ErrLeaseLost},
		{"complete what has expired", true, taken + ", " + alive, func(ctx context.Context) error { return s.Complete(ctx, key, token, sent(key), time.Minute) }, idemmail.ErrLeaseLost},
		{"renew", false, taken, func(ctx context.Context) error { return s.Renew(ctx, key, token, time.Minute) }, idemmail.ErrLeaseLost},
		{"release", false, taken, func(ctx context.Context) error { return s.Release(ctx, key, token) }, idemmail.ErrLeaseLost},
		{"release what was completed", false, "state = 'done', status = 'sent', receipt = '{\"status\":\"sent\"}'",
			func(ctx context.Context) error { return s.Release(ctx, key, token) }, idemmail.ErrLeaseLost},
		{"resolve", false, taken, func(ctx context.Context) error { return s.Resolve(ctx, entry(idemmail.StatePending), nil, time.Minute) }, idemmail.ErrChanged},
		{"forget", false, taken, func(ctx context.Context) error { return s.Forget(ctx, entry(idemmail.StatePending)) }, idemmail.ErrChanged},
	} {
		t.Run(c.name, func(t *testing.T) {
			key = "row:" + c.name
			lease := time.Minute
			if c.expired {
				lease = time.Nanosecond
			}
			token = committed(t, s, db, key, lease)
			time.Sleep(10 * time.Millisecond)
			tx := begin(t, db)
			_, err := tx.Exec("UPDATE idemmail SET "+c.become+" WHERE key = $1", key)
			require.NoError(t, err)
			answer := make(chan error, 1)
			go func() { answer <- c.call(t.Context()) }()
			require.Eventually(t, func() bool {
				var waiting int
				require.NoError(t, db.QueryRow("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()").Scan(&waiting))
				return waiting > 0
			}, 10*time.Second, 5*time.Millisecond, "it waits")
			require.NoError(t, tx.Commit())
			before := stored(t, db, key)
			require.ErrorIs(t, <-answer, c.want)
			require.Equal(t, before, stored(t, db, key))
		})
	}

	// A sweep does not wait, and leaves it.
	reserve(t, s, "row:sweep", time.Nanosecond)
	reserve(t, s, "row:swept", time.Nanosecond)
	time.Sleep(10 * time.Millisecond)
	tx := begin(t, db)
	_, err := tx.Exec("UPDATE idemmail SET " + alive + " WHERE key = 'row:sweep'")
	require.NoError(t, err)
	n, err := s.DeleteExpired(t.Context(), 100)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.NoError(t, tx.Commit())
	require.NotNil(t, stored(t, db, "row:sweep"))
}

func unless(held bool) error {
	if held {
		return nil
	}
	return errors.New("not held")
}

// A server that does not answer, since somebody has locked the table.
func testLocked(t *testing.T, srv server) {
	s, db := srv.store(t)
	token := reserve(t, s, "locked:key", time.Minute)
	tx := begin(t, db)
	_, err := tx.Exec("LOCK TABLE idemmail IN ACCESS EXCLUSIVE MODE")
	require.NoError(t, err)
	short := func() context.Context {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
		t.Cleanup(cancel)
		return ctx
	}
	for what, err := range touches(short, s, "locked:key", token) {
		require.ErrorIs(t, err, context.DeadlineExceeded, what)
	}
	_, _, err = s.Reserve(short(), "locked:other", "1:x", idemmail.NoExpiry)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NoError(t, tx.Rollback())
	require.Eventually(t, func() bool { return stored(t, db, "locked:other") == nil }, 10*time.Second, 10*time.Millisecond)
	require.NoError(t, s.Complete(t.Context(), "locked:key", token, sent("locked:key"), time.Minute))
}

func TestPostgreSQLCrash(t *testing.T) {
	server := testserver.StartPostgres(t)
	db, err := sql.Open("pgx", server.URL)
	require.NoError(t, err)
	defer db.Close()
	s, err := sqlstore.New(db, sqlstore.Options{Dialect: sqlstore.PostgreSQL})
	require.NoError(t, err)
	require.NoError(t, s.EnsureSchema(t.Context()))
	pending := reserve(t, s, "crash:pending", time.Hour)
	finish(t, s, "crash:done", sent("crash:done").Receipt, time.Hour)

	server.Kill()
	for what, err := range touches(t.Context, s, "crash:key", "token") {
		require.Error(t, err, what)
		require.NotErrorIs(t, err, idemmail.ErrLeaseLost, what)
		require.NotErrorIs(t, err, idemmail.ErrChanged, what)
		require.NotErrorIs(t, err, idemmail.ErrBadRecord, what)
	}

	server.Start(t)
	require.Equal(t, "crash:done", holder(t, s, "crash:done").Receipt.ProviderID)
	require.NoError(t, s.Renew(t.Context(), "crash:pending", pending, time.Hour))
	require.NoError(t, s.Complete(t.Context(), "crash:pending", pending, sent("crash:pending"), time.Hour))
	reserve(t, s, "crash:key", time.Hour)
}
