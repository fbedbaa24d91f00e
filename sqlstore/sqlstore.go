// Package sqlstore keeps idempotency keys in a table of a PostgreSQL or SQLite
// database, through database/sql. With PostgreSQL any number of processes
// share them; with SQLite those of one machine, and they survive its restarts.
// It imports no driver: open the database with one of your choice.
//
// All times are the database's: PostgreSQL's clock, or, with SQLite, that of
// the one machine. Each key is taken, completed, renewed or released by one
// statement of its own, outside any transaction, so that it stands before the
// message goes; [Store.ReserveTx] alone takes part in the caller's transaction.
//
// # PostgreSQL
//
// Version 12 or later, with the encoding UTF8. Where a server loses its last
// commits in a crash (synchronous_commit off, or a standby that was behind and
// takes over), their reservations and receipts are lost with them, and those
// messages may go twice.
//
// Set connect_timeout in the connection string: a pool that has reached its
// limit makes connections one at a time and without a deadline (see
// [sql.DB.SetMaxOpenConns]), so one that hangs while it is made, on a server
// that has stopped answering, would keep all keys from being reserved.
//
// # SQLite
//
// Version 3.42 or later, with the encoding UTF-8. Turn on its write-ahead log,
// and let it wait for locks; with modernc.org/sqlite:
//
//	sql.Open("sqlite", "file:keys.db?_pragma=journal_mode(WAL)&_pragma=busy_timeout(5000)")
//
// Leave synchronous at FULL, which is SQLite's default: with NORMAL the last
// commits may be lost in a power failure. Keep the file on a local disk.
// A database that is locked is tried again for some seconds, within the
// context, whether or not it waits by itself, if the driver's errors have a
// method Code() int, as those of modernc.org/sqlite do. Any limit of open
// connections will do; SQLite writes one at a time in any case.
package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/idemmail/idemmail"
)

// Options say what a Store works on.
type Options struct {
	// Dialect is the kind of database. It is required.
	Dialect Dialect

	// Table is the name of the table; empty: "idemmail". It may have a schema
	// in front ("mail.keys"; with SQLite, an attached database). Each part
	// begins with an ASCII letter or underscore and goes on with those and
	// digits; the table's has at most 55 bytes and the schema's at most 63. It
	// is quoted, so upper case counts in PostgreSQL.
	Table string
}

// A Store keeps keys in a table, one row each. It is an [idemmail.Store] with
// all the optional interfaces. It is safe for concurrent use. It does not close
// the database, and has nothing to close itself; with SQLite it keeps some
// statements prepared for as long as the database is open, so make one and keep
// it.
//
// Reserving a free key, and completing, renewing or releasing one, is one
// statement each; a key that is held is read by a second one. The methods for
// many keys need as many statements as those for one, per 512 keys.
//
// A method whose context ends returns at once, also where the driver goes on
// waiting: its statement is then left to a goroutine until the driver is done.
//
// Keys are at most 1,024 bytes long; keys, tokens and fingerprints are valid
// UTF-8 without NUL. Others are refused.
type Store struct {
	own   session
	table table
	sql   statements
}

var (
	_ idemmail.Store      = (*Store)(nil)
	_ idemmail.BatchStore = (*Store)(nil)
	_ idemmail.Renewer    = (*Store)(nil)
	_ idemmail.Reconciler = (*Store)(nil)
)

// New returns a Store on db, which it does not talk to yet. The table must be
// there before the first key is reserved: see [Store.EnsureSchema] and
// [Schema]. db stays the caller's.
func New(db *sql.DB, opts Options) (*Store, error) {
	if db == nil {
		return nil, errors.New("sqlstore: db is nil")
	}
	t, err := parseTable(opts.Dialect, opts.Table)
	if err != nil {
		return nil, err
	}
	return &Store{own: newSession(opts.Dialect, db), table: t, sql: newStatements(t)}, nil
}

// failure says what failed for which key.
func failure(what, key string, err error) error {
	return fmt.Errorf("sqlstore: %s key %q: %w", what, key, err)
}

// explain makes sure that the end of the context is found in an error that
// came of it. A connection with the context's deadline may have been faster.
func explain(ctx context.Context, err error) error {
	ended := ctx.Err()
	if deadline, ok := ctx.Deadline(); ended == nil && ok && !time.Now().Before(deadline) {
		ended = context.DeadlineExceeded
	}
	if err != nil && ended != nil && !errors.Is(err, ended) {
		return fmt.Errorf("%w: %w", ended, err)
	}
	return err
}
