package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"net/url"
	"path/filepath"
	"strings"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite"

	"github.com/idemmail/idemmail/internal/testserver"
	"github.com/idemmail/idemmail/sqlstore"
)

const (
	sqlFirst    = "speed of the store's reserve and complete, against a bare INSERT and UPDATE"
	sqlSend     = "speed of a first send, 1 KB, against the same"
	sqlReplay   = "speed of a replay, 1 KB, against a bare INSERT that meets the key and a SELECT"
	sqlInFlight = "speed of an in-flight answer, 1 KB, against the same"
)

func postgresChapter() chapter {
	return sqlChapter("PostgreSQL", openPostgres)
}

func openPostgres(t testing.TB) *sqlBase {
	return openSQL(t, sqlstore.PostgreSQL, "pgx", testserver.StartPostgres(t).URL)
}

func sqliteChapter() chapter {
	return sqlChapter("SQLite", openSQLite)
}

func openSQLite(t testing.TB) *sqlBase {
	file := url.URL{Scheme: "file", Path: filepath.Join(t.TempDir(), "keys.db")}
	return openSQL(t, sqlstore.SQLite, "sqlite", file.String()+"?_pragma=journal_mode(WAL)&_pragma=busy_timeout(5000)")
}

func sqlChapter(title string, open func(t testing.TB) *sqlBase) chapter {
	return chapter{
		title: title,
		text: "`IdempotencyTransport` on a `sqlstore.Store` over a transport that does nothing, and the bare statements through the same `database/sql`, " +
			"into a table with the same indexes.",
		rows: []row{
			{id: "P1", what: "statements: 1 to reserve, 1 to complete, 2 for a replay", test: "testStatements"},
			{id: "P1", what: sqlFirst, atLeast: 0.8, why: "its statements check more than the bare ones do, and each call has a goroutine of its own (see R1)"},
			{what: sqlSend},
			{what: sqlReplay},
			{what: sqlInFlight},
			{what: batchRow(100, "")},
			{what: turnRow(100, "")},
			{what: batchRow(1000, "")},
			{what: turnRow(1000, "")},
		},
		measure: func(t testing.TB, s scale, f *findings) { measureSQL(t, s, f, open(t)) },
	}
}

func measureSQL(t testing.TB, s scale, f *findings, base *sqlBase) {
	f.versions = append(f.versions, f.chapter.title+" "+base.version(t))
	store := base.store(t, "")

	direct := newKeys(func(key string) { must(t, sendNew(t.Context(), store, key, theReceipt)) })
	taken := s.compare(t, s.slow, base.sends(t), direct, sends(t, guarded(t, transport, store), kilobyte))
	f.add(t, sqlFirst, taken[0].over(taken[1]))
	f.add(t, sqlSend, taken[0].over(taken[2]))

	replays, inFlight := repeatedSends(t, store, 100)
	taken = s.compare(t, s.slow, base.repeats(t), replays, inFlight)
	f.add(t, sqlReplay, taken[0].over(taken[1]))
	f.add(t, sqlInFlight, taken[0].over(taken[2]))

	measureBatches(t, s.once(), s.slower, f, store, "")
}

// A sqlBase is a database, and the statements that a send cannot do without.
type sqlBase struct {
	*sql.DB
	dialect                   sqlstore.Dialect
	reserve, complete, lookup string
}

func openSQL(t testing.TB, dialect sqlstore.Dialect, driver, name string) *sqlBase {
	db, err := sql.Open(driver, name)
	must(t, err)
	t.Cleanup(func() { db.Close() })
	db.SetMaxIdleConns(64) // by default all but two are closed after each use
	b := &sqlBase{
		DB:      db,
		dialect: dialect,
		reserve: `INSERT INTO floor AS h (key, state, token, fingerprint, at, expires) VALUES ($1, 'pending', $2, $3, {now}, {now} + $4)
			ON CONFLICT (key) DO UPDATE SET token = excluded.token, fingerprint = excluded.fingerprint, at = excluded.at, expires = excluded.expires
			WHERE h.expires < {now} RETURNING key`,
		complete: `UPDATE floor SET state = 'done', at = {now}, expires = {now} + $3, receipt = $4 WHERE key = $1 AND token = $2`,
		lookup:   `SELECT state, fingerprint, receipt, at FROM floor WHERE key = $1`,
	}
	now := "CAST(round(unixepoch('now', 'subsec') * 1000) AS INTEGER)"
	if dialect == sqlstore.PostgreSQL {
		now = "floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
	}
	for _, statement := range []*string{&b.reserve, &b.complete} {
		*statement = strings.ReplaceAll(*statement, "{now}", now)
	}
	for _, statement := range []string{
		`CREATE TABLE floor (key text NOT NULL PRIMARY KEY, state text NOT NULL, token text NOT NULL, fingerprint text NOT NULL,
			at bigint NOT NULL, expires bigint, receipt text)`,
		`CREATE INDEX floor_expires ON floor (expires)`,
	} {
		_, err := db.ExecContext(t.Context(), statement)
		must(t, err)
	}
	return b
}

// store makes a store on a table of its own.
func (b *sqlBase) store(t testing.TB, table string) *sqlstore.Store {
	store, err := sqlstore.New(b.DB, sqlstore.Options{Dialect: b.dialect, Table: table})
	must(t, err)
	must(t, store.EnsureSchema(t.Context()))
	return store
}

func (b *sqlBase) version(t testing.TB) string {
	query := "SELECT sqlite_version()"
	if b.dialect == sqlstore.PostgreSQL {
		query = "SHOW server_version"
	}
	var version string
	must(t, b.QueryRowContext(t.Context(), query).Scan(&version))
	return version
}

// take reserves a key, and answers sql.ErrNoRows where something holds it.
func (b *sqlBase) take(ctx context.Context, key string) error {
	return b.QueryRowContext(ctx, b.reserve, key, someToken, someFingerprint, lease.Milliseconds()).Scan(&key)
}

func (b *sqlBase) keep(ctx context.Context, key, receipt string) error {
	_, err := b.ExecContext(ctx, b.complete, key, someToken, ttl.Milliseconds(), receipt)
	return err
}

// sends are a reservation and a completion each.
func (b *sqlBase) sends(t testing.TB) way {
	receipt, err := json.Marshal(theReceipt)
	must(t, err)
	return newKeys(func(key string) {
		must(t, b.take(t.Context(), key))
		must(t, b.keep(t.Context(), key, string(receipt)))
	})
}

// repeats are reservations of keys that are done, whose receipts are read.
func (b *sqlBase) repeats(t testing.TB) way {
	var keys fresh
	keys.prepare(100)
	for _, key := range keys.keys {
		must(t, b.take(t.Context(), key))
		must(t, b.keep(t.Context(), key, "{}"))
	}
	return eachOf(keys.keys, func(key string) {
		if err := b.take(t.Context(), key); !errors.Is(err, sql.ErrNoRows) {
			t.Fatal("a key that is held can be reserved: ", err)
		}
		var state, fingerprint string
		var receipt []byte
		var at int64
		must(t, b.QueryRowContext(t.Context(), b.lookup, key).Scan(&state, &fingerprint, &receipt, &at))
	})
}
