package sqlstore_test

import (
	"context"
	"database/sql"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/sqlstore"
	"github.com/idemmail/idemmail/storetest"
)

func testContract(t *testing.T, srv server) {
	s, _ := srv.store(t)
	storetest.Run(t, storetest.Config{Open: func() (idemmail.Store, error) { return s, nil }})
}

// All rules again on SQLite as it comes: without a write-ahead log, where
// readers and writers keep each other out, and without waiting for locks.
func TestSQLitePlain(t *testing.T) {
	dsn, _, _ := strings.Cut(sqliteServer.dsn(t), "?")
	db := sqliteServer.open(t, dsn)
	db.SetMaxOpenConns(4)
	s := sqliteServer.on(t, db)
	storetest.Run(t, storetest.Config{Open: func() (idemmail.Store, error) { return s, nil }})
}

// stored answers the row under the key, by the names of its columns; nil: none.
func stored(t testing.TB, db *sql.DB, key string) map[string]any {
	t.Helper()
	rows, err := db.Query("SELECT * FROM idemmail WHERE key = '" + strings.ReplaceAll(key, "'", "''") + "'")
	require.NoError(t, err)
	defer rows.Close()
	if !rows.Next() {
		require.NoError(t, rows.Err())
		return nil
	}
	names, err := rows.Columns()
	require.NoError(t, err)
	values := make([]any, len(names))
	pointers := make([]any, len(names))
	for i := range values {
		pointers[i] = &values[i]
	}
	require.NoError(t, rows.Scan(pointers...))
	row := map[string]any{}
	for i, name := range names {
		row[name] = values[i]
	}
	return row
}

func execute(t testing.TB, db *sql.DB, statement string) {
	t.Helper()
	_, err := db.Exec(statement)
	require.NoError(t, err)
}

func testDurations(t *testing.T, srv server) {
	s, db := srv.store(t)
	ctx := t.Context()
	for _, d := range []time.Duration{0, -2, -time.Hour, math.MinInt64} {
		_, _, err := s.Reserve(ctx, "time:none", "1:x", d)
		require.Error(t, err)
		require.Error(t, s.Complete(ctx, "time:none", "token", sent("time:none"), d))
		require.Nil(t, stored(t, db, "time:none"))
	}
	token := reserve(t, s, "time:held", time.Minute)
	before := stored(t, db, "time:held")
	for _, d := range []time.Duration{0, -2} {
		require.Error(t, s.Renew(ctx, "time:held", token, d))
		require.Error(t, s.Complete(ctx, "time:held", token, sent("time:held"), d))
		entry, err := s.Lookup(ctx, "time:held")
		require.NoError(t, err)
		require.Error(t, s.Resolve(ctx, *entry, sent("time:held").Receipt, d))
	}
	require.Equal(t, before, stored(t, db, "time:held"))

	for key, d := range map[string]time.Duration{
		"time:ns": 1, "time:ms": time.Millisecond, "time:over": time.Hour + 1, "time:huge": math.MaxInt64, "time:ever": idemmail.NoExpiry,
	} {
		reserve(t, s, key, d)
		row := stored(t, db, key)
		if d == idemmail.NoExpiry {
			require.Nil(t, row["expires"])
			continue
		}
		// The two times may be read one after the other.
		lasts := row["expires"].(int64) - row["at"].(int64)
		want := int64(math.Ceil(float64(d) / 1e6))
		require.GreaterOrEqual(t, lasts, want, key)
		require.Less(t, lasts, want+1000, key)
	}
	entry, err := s.Lookup(ctx, "time:ever")
	require.NoError(t, err)
	require.Zero(t, entry.ExpiresAt)
	entry, err = s.Lookup(ctx, "time:huge")
	require.NoError(t, err)
	require.Greater(t, entry.ExpiresAt.Year(), 2300)
	require.Equal(t, time.UTC, entry.ExpiresAt.Location())

	// From ever to a lease and back, by renewing.
	token = reserve(t, s, "time:renewed", idemmail.NoExpiry)
	require.NoError(t, s.Renew(ctx, "time:renewed", token, time.Minute))
	require.NotNil(t, stored(t, db, "time:renewed")["expires"])
	require.NoError(t, s.Renew(ctx, "time:renewed", token, idemmail.NoExpiry))
	require.Nil(t, stored(t, db, "time:renewed")["expires"])
}

// The database's time is cut to the millisecond, so a lease that began late in
// one must not end early in another.
func testNeverEarly(t *testing.T, srv server) {
	s, _ := srv.store(t)
	for i := range 30 {
		key := fmt.Sprint("early:", i)
		const lease = 20 * time.Millisecond
		began := time.Now()
		reserve(t, s, key, lease)
		for {
			token, _, err := s.Reserve(t.Context(), key, "1:x", lease)
			require.NoError(t, err)
			if token != "" {
				break
			}
		}
		require.GreaterOrEqual(t, time.Since(began), lease)
	}
}

func testTexts(t *testing.T, srv server) {
	s, db := srv.store(t)
	ctx := t.Context()
	for _, bad := range []string{"text:\xff", "text:\x00", "text:\xed\xa0\x80", "text:" + strings.Repeat("x", 1020)} {
		_, _, err := s.Reserve(ctx, bad, "1:x", time.Minute)
		require.Error(t, err)
		require.Error(t, s.Complete(ctx, bad, "token", sent("x"), time.Minute))
		require.Error(t, s.Release(ctx, bad, "token"))
		require.Error(t, s.Renew(ctx, bad, "token", time.Minute))
		require.Error(t, s.Forget(ctx, idemmail.Entry{Key: bad, Token: "token"}))
		_, err = s.Lookup(ctx, bad)
		require.Error(t, err)
	}
	for _, bad := range []string{"\xff", "\x00"} {
		_, _, err := s.Reserve(ctx, "text:good", bad, time.Minute)
		require.Error(t, err)
		rec := sent("text:good")
		rec.Fingerprint = bad
		require.Error(t, s.Complete(ctx, "text:good", "token", rec, time.Minute))
		require.Error(t, s.Complete(ctx, "text:good", bad, sent("text:good"), time.Minute))
		require.Error(t, s.Release(ctx, "text:good", bad))
	}
	for _, rec := range []idemmail.Record{
		{}, {State: idemmail.StateDone, Fingerprint: "1:x"}, {State: idemmail.StatePending, Receipt: sent("").Receipt},
		{State: idemmail.StateDone, Receipt: &idemmail.Receipt{Detail: "no status"}},
	} {
		require.Error(t, s.Complete(ctx, "text:good", "token", rec, time.Minute))
	}
	require.Error(t, s.Complete(ctx, "text:good", "", sent("text:good"), time.Minute))
	require.Nil(t, stored(t, db, "text:good"))
	reserve(t, s, "text:"+strings.Repeat("x", 1019), time.Minute)

	// One that is refused fails no other.
	many := s.ReserveMany(ctx, []idemmail.ReserveRequest{
		{Key: "text:\x00", Fingerprint: "1:x", Lease: time.Minute},
		{Key: "text:zero", Fingerprint: "1:x"},
		{Key: "text:good", Fingerprint: "1:x", Lease: time.Minute},
	})
	require.Error(t, many[0].Err)
	require.Error(t, many[1].Err)
	require.NotEmpty(t, many[2].Token)
	require.NoError(t, many[2].Err)
}

func testTakenOver(t *testing.T, srv server) {
	s, db := srv.store(t)
	execute(t, db, "ALTER TABLE idemmail ADD COLUMN later TEXT") // of a later version
	token := reserve(t, s, "old:key", time.Minute)
	require.NoError(t, s.Complete(t.Context(), "old:key", token, unknown("old:key"), time.Nanosecond))
	time.Sleep(10 * time.Millisecond)
	fresh, held, err := s.Reserve(t.Context(), "old:key", "1:new", idemmail.NoExpiry)
	require.NoError(t, err)
	require.Nil(t, held)
	row := stored(t, db, "old:key")
	require.IsType(t, int64(0), row["at"])
	delete(row, "at")
	require.EqualValues(t, map[string]any{"key": "old:key", "format": row["format"], "state": "pending", "token": fresh,
		"fingerprint": "1:new", "expires": nil, "status": nil, "receipt": nil, "later": nil}, row)
}

func testFates(t *testing.T, srv server) {
	s, db := srv.store(t)
	ctx := t.Context()
	gone := reserve(t, s, "many:gone", time.Nanosecond)
	time.Sleep(10 * time.Millisecond)
	held := reserve(t, s, "many:held", time.Minute)
	done := reserve(t, s, "many:done", time.Minute)
	require.NoError(t, s.Complete(ctx, "many:done", done, sent("many:done"), time.Hour))
	reserve(t, s, "many:foreign", time.Minute)
	execute(t, db, "UPDATE idemmail SET format = 2 WHERE key = 'many:foreign'")

	reserved := s.ReserveMany(ctx, []idemmail.ReserveRequest{
		{Key: "many:held", Fingerprint: "1:a", Lease: time.Minute},
		{Key: "many:free", Fingerprint: "1:a", Lease: time.Minute},
		{Key: "many:foreign", Fingerprint: "1:a", Lease: time.Minute},
		{Key: "many:zero", Fingerprint: "1:a", Lease: 0},
		{Key: "many:done", Fingerprint: "1:a", Lease: time.Minute},
		{Key: "many:gone", Fingerprint: "1:a", Lease: time.Minute},
	})
	require.Equal(t, idemmail.StatePending, reserved[0].Held.State)
	require.NotEmpty(t, reserved[1].Token)
	require.ErrorIs(t, reserved[2].Err, idemmail.ErrBadRecord)
	require.Error(t, reserved[3].Err)
	require.Equal(t, "many:done", reserved[4].Held.Receipt.ProviderID)
	require.NotEmpty(t, reserved[5].Token)
	require.NotEqual(t, gone, reserved[5].Token)
	require.Nil(t, stored(t, db, "many:zero"))

	renewed := s.RenewMany(ctx, []idemmail.RenewRequest{
		{Key: "many:held", Token: "another", Lease: time.Hour},
		{Key: "many:free", Token: reserved[1].Token, Lease: time.Hour},
		{Key: "many:foreign", Token: "another", Lease: time.Hour},
		{Key: "many:free2", Token: "none", Lease: time.Hour},
		{Key: "many:done", Token: done, Lease: time.Hour},
		{Key: "many:gone", Token: reserved[5].Token, Lease: 0},
	})
	require.ErrorIs(t, renewed[0], idemmail.ErrLeaseLost)
	require.NoError(t, renewed[1])
	require.ErrorIs(t, renewed[2], idemmail.ErrBadRecord)
	require.ErrorIs(t, renewed[3], idemmail.ErrLeaseLost)
	require.ErrorIs(t, renewed[4], idemmail.ErrLeaseLost)
	require.Error(t, renewed[5])

	completed := s.CompleteMany(ctx, []idemmail.CompleteRequest{
		{Key: "many:held", Token: "another", Record: sent("x"), TTL: time.Hour},
		{Key: "many:free", Token: reserved[1].Token, Record: sent("free"), TTL: time.Hour},
		{Key: "many:foreign", Token: "another", Record: sent("x"), TTL: time.Hour},
		{Key: "many:nothing", Token: "mine", Record: sent("nothing"), TTL: time.Hour},
		{Key: "many:done", Token: done, Record: unknown("many:done"), TTL: time.Hour},
		{Key: "many:gone", Token: gone, Record: sent("x"), TTL: time.Hour},
	})
	require.ErrorIs(t, completed[0], idemmail.ErrLeaseLost)
	require.NoError(t, completed[1])
	require.ErrorIs(t, completed[2], idemmail.ErrBadRecord)
	require.NoError(t, completed[3])
	require.NoError(t, completed[4])
	require.ErrorIs(t, completed[5], idemmail.ErrLeaseLost)
	require.Equal(t, idemmail.StatusUnknown, holder(t, s, "many:done").Receipt.Status)
	require.Equal(t, "nothing", holder(t, s, "many:nothing").Receipt.ProviderID)

	released := s.ReleaseMany(ctx, []idemmail.ReleaseRequest{
		{Key: "many:held", Token: held},
		{Key: "many:free", Token: reserved[1].Token},
		{Key: "many:foreign", Token: "another"},
		{Key: "many:never", Token: "none"},
		{Key: "many:gone", Token: gone},
	})
	require.NoError(t, released[0])
	require.ErrorIs(t, released[1], idemmail.ErrLeaseLost)
	require.ErrorIs(t, released[2], idemmail.ErrBadRecord)
	require.NoError(t, released[3])
	require.ErrorIs(t, released[4], idemmail.ErrLeaseLost)
	require.Nil(t, stored(t, db, "many:held"))
	require.NotNil(t, stored(t, db, "many:gone"))

	require.Empty(t, s.ReserveMany(ctx, nil))
	require.Empty(t, s.CompleteMany(ctx, nil))
	require.Empty(t, s.ReleaseMany(ctx, nil))
	require.Empty(t, s.RenewMany(ctx, nil))
}

func TestOptions(t *testing.T) {
	db := sqliteServer.open(t, sqliteServer.dsn(t))
	for name, opts := range map[string]sqlstore.Options{
		"no dialect":      {},
		"unknown dialect": {Dialect: 3},
	} {
		_, err := sqlstore.New(db, opts)
		require.Error(t, err, name)
		_, err = sqlstore.Schema(opts.Dialect, opts.Table)
		require.Error(t, err, name)
	}
	_, err := sqlstore.New(nil, sqlstore.Options{Dialect: sqlstore.SQLite})
	require.Error(t, err)
	require.Equal(t, "PostgreSQL SQLite Dialect(0)", fmt.Sprint(sqlstore.PostgreSQL, " ", sqlstore.SQLite, " ", sqlstore.Dialect(0)))
}

// Without its table, nothing is reserved and nothing hangs.
func TestNoTable(t *testing.T) {
	db := sqliteServer.open(t, sqliteServer.dsn(t))
	s, err := sqlstore.New(db, sqlstore.Options{Dialect: sqlstore.SQLite})
	require.NoError(t, err)
	_, _, err = s.Reserve(t.Context(), "a:b", "1:x", time.Minute)
	require.ErrorContains(t, err, "idemmail")
	for _, err := range s.Unsettled(t.Context(), "", 0) {
		require.Error(t, err)
	}
	require.NoError(t, s.EnsureSchema(t.Context()))
	reserve(t, s, "a:b", time.Minute)
}

// A context that has ended ends every call, and nothing is written.
func TestEnded(t *testing.T) {
	s, db := sqliteServer.store(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for what, err := range touches(func() context.Context { return ctx }, s, "ended:key", "token") {
		require.ErrorIs(t, err, context.Canceled, what)
	}
	_, err := s.DeleteExpired(ctx, 1)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, s.EnsureSchema(ctx), context.Canceled)
	require.Nil(t, stored(t, db, "ended:key"))
}
