package backend

import (
	"context"
	"database/sql"
	"net/url"
	"path/filepath"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib" // the drivers
	_ "modernc.org/sqlite"

	"github.com/idemmail/idemmail/internal/testserver"
	"github.com/idemmail/idemmail/sqlstore"
)

// startPostgres starts a server of the test's own.
func startPostgres(t testing.TB) *Server {
	p := testserver.StartPostgres(t)
	u, err := url.Parse(p.URL)
	if err != nil {
		t.Fatal(err)
	}
	makeTable(t, dialPostgres, p.URL)
	return &Server{
		URL:      p.URL,
		Addr:     u.Host,
		Hold:     p.Stop,
		Continue: p.Continue,
		Kill:     func(testing.TB) { p.Kill() },
		Restart:  p.Start,
	}
}

// startSQLite makes a database in a file of the test's own.
func startSQLite(t testing.TB) *Server {
	s := &Server{URL: "sqlite:" + filepath.Join(t.TempDir(), "keys.db")}
	makeTable(t, dialSQLite, s.URL)
	return s
}

// makeTable makes the table by way of dial.
func makeTable(t testing.TB, dial func(url string) (Store, func(), error), url string) {
	store, hangUp, err := dial(url)
	if err == nil {
		defer hangUp()
		err = store.(*sqlstore.Store).EnsureSchema(context.Background())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// dialPostgres bounds the making of a connection, as docs/operations.md says:
// one that hangs for ever keeps a pool that is full from making others.
func dialPostgres(url string) (Store, func(), error) {
	return dialSQL("pgx", url+"&connect_timeout=2", sqlstore.PostgreSQL)
}

func dialSQLite(url string) (Store, func(), error) {
	file := "file" + url[len("sqlite"):] + "?_pragma=journal_mode(WAL)&_pragma=busy_timeout(5000)"
	return dialSQL("sqlite", file, sqlstore.SQLite)
}

func dialSQL(driver, name string, dialect sqlstore.Dialect) (Store, func(), error) {
	db, err := sql.Open(driver, name)
	if err != nil {
		return nil, nil, err
	}
	db.SetMaxOpenConns(20) // the server has but so many for all
	db.SetMaxIdleConns(20)
	store, err := sqlstore.New(db, sqlstore.Options{Dialect: dialect})
	if err != nil {
		db.Close()
		return nil, nil, err
	}
	return store, func() { db.Close() }, nil
}
