package main

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite"

	"github.com/idemmail/idemmail/sqlstore"
)

func (u *storeURL) openPostgres() (*openStore, error) {
	table, err := u.take("table")
	if err != nil {
		return nil, err
	}
	config, err := pgx.ParseConfig(u.as(u.scheme))
	if err != nil {
		return nil, err
	}
	return openSQL(stdlib.OpenDB(*config), sqlstore.PostgreSQL, table, examinePostgres)
}

func (u *storeURL) openSQLite() (*openStore, error) {
	table, err := u.take("table")
	if err != nil {
		return nil, err
	}
	if u.query != "" {
		return nil, errors.New("after the PATH of a SQLite database there can only be ?table=TABLE")
	}
	path := u.rest
	if strings.HasPrefix(path, "//") {
		if path = path[2:]; !strings.HasPrefix(path, "/") {
			return nil, errors.New("a SQLite database has no host: sqlite:PATH, or sqlite:///PATH from the root")
		}
	}
	if path == "" {
		return nil, errors.New("the PATH of the SQLite database is missing")
	}
	// Not with mode rwc, which would make a database of a mistyped name.
	path = strings.NewReplacer("%", "%25", "?", "%3f", "#", "%23").Replace(path)
	db, err := sql.Open("sqlite", "file:"+path+"?mode=rw&_pragma=busy_timeout(5000)")
	if err != nil {
		return nil, err
	}
	return openSQL(db, sqlstore.SQLite, table, examineSQLite)
}

// An examiner reports what there is to say of a database and a table.
type examiner func(ctx context.Context, r *report, db *sql.DB, table string) error

func openSQL(db *sql.DB, dialect sqlstore.Dialect, table string, examine examiner) (*openStore, error) {
	store, err := sqlstore.New(db, sqlstore.Options{Dialect: dialect, Table: table})
	if err != nil {
		db.Close()
		return nil, err
	}
	return &openStore{
		store: store,
		examine: func(ctx context.Context, r *report) error {
			return examine(ctx, r, db, cmp.Or(table, "idemmail"))
		},
		close: func() { db.Close() },
	}, nil
}

func examinePostgres(ctx context.Context, r *report, db *sql.DB, table string) error {
	var (
		number                         int
		version, encoding, synchronous string
		standby                        bool
		now                            time.Time
	)
	before := time.Now()
	err := db.QueryRowContext(ctx, `SELECT current_setting('server_version_num')::int, current_setting('server_version'),
		current_setting('server_encoding'), current_setting('synchronous_commit'), pg_is_in_recovery(), clock_timestamp()`).
		Scan(&number, &version, &encoding, &synchronous, &standby, &now)
	if err != nil {
		return err
	}
	switch {
	case number < 120000:
		r.unsafe("server", "PostgreSQL %s: 12 or later is needed", version)
	case standby:
		r.unsafe("server", "PostgreSQL %s, a standby: keys are kept by the primary", version)
	default:
		r.ok("server", "PostgreSQL %s", version)
	}
	r.clock("clock", now, before)
	if encoding != "UTF8" {
		r.unsafe("encoding", "it is %s: it must be UTF8", encoding)
	}
	if synchronous == "off" {
		r.warn("durability", "synchronous_commit is off: a crash forgets the last commits, and those messages may go twice")
	}

	name := `"` + strings.ReplaceAll(table, ".", `"."`) + `"`
	var collation sql.NullString
	err = db.QueryRowContext(ctx, `SELECT collname FROM pg_attribute a LEFT JOIN pg_collation c ON c.oid = a.attcollation
		WHERE a.attrelid = to_regclass($1) AND a.attname = 'key'`, name).Scan(&collation)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		r.unsafe("table", "there is no table %s with a column key: call EnsureSchema, or give the table's name", table)
		return nil
	case err != nil:
		return err
	case collation.String != "C":
		r.unsafe("table", `%s.key has the collation %q: it must be "C", or listings miss keys`, table, collation.String)
	default:
		r.ok("table", "%s", table)
	}
	return examineSQLIndexes(ctx, r, db, `SELECT c.relname, i.indisunique AND NOT i.indisprimary,
		coalesce((SELECT string_agg(a.attname, ',') FROM pg_attribute a WHERE a.attrelid = i.indexrelid), '')
		FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid WHERE i.indrelid = to_regclass($1)`, name)
}

func examineSQLite(ctx context.Context, r *report, db *sql.DB, table string) error {
	var version, encoding, journal string
	err := errors.Join(
		db.QueryRowContext(ctx, `SELECT sqlite_version()`).Scan(&version),
		db.QueryRowContext(ctx, `PRAGMA encoding`).Scan(&encoding),
		db.QueryRowContext(ctx, `PRAGMA journal_mode`).Scan(&journal),
	)
	if err != nil {
		return err
	}
	r.ok("database", "this program's SQLite is %s", version)
	r.ok("clock", "this machine's")
	if encoding != "UTF-8" {
		r.unsafe("encoding", "it is %s: it must be UTF-8", encoding)
	}
	if journal != "wal" {
		r.warn("journal", "journal_mode is %s: with WAL, readers and the writer do not wait for each other", journal)
	}

	name := strings.TrimPrefix(table, "main.")
	var columns int
	if err := db.QueryRowContext(ctx, `SELECT count(*) FROM pragma_table_info($1) WHERE name = 'key'`, name).Scan(&columns); err != nil {
		return err
	}
	if columns == 0 {
		r.unsafe("table", "there is no table %s with a column key: call EnsureSchema, or give the table's name", table)
		return nil
	}
	r.ok("table", "%s", table)
	return examineSQLIndexes(ctx, r, db, `SELECT l.name, l."unique" AND l.origin <> 'pk',
		coalesce((SELECT group_concat(i.name) FROM pragma_index_info(l.name) i), '')
		FROM pragma_index_list($1) l`, name)
}

// examineSQLIndexes reports on a table's indexes: the query answers the name
// of each, whether it is unique though not the primary key, and its columns.
func examineSQLIndexes(ctx context.Context, r *report, db *sql.DB, query, table string) error {
	rows, err := db.QueryContext(ctx, query, table)
	if err != nil {
		return err
	}
	defer rows.Close()
	sweeps := false
	for rows.Next() {
		var name, columns string
		var unique bool
		if err := rows.Scan(&name, &unique, &columns); err != nil {
			return err
		}
		if unique {
			r.unsafe("indexes", "%s is unique: keys that have nothing to do with each other collide", name)
		}
		sweeps = sweeps || columns == "expires"
	}
	if sweeps {
		r.ok("indexes", "what has expired can be found")
	} else {
		r.warn("indexes", "there is none on expires: DeleteExpired reads the whole table")
	}
	return rows.Err()
}
