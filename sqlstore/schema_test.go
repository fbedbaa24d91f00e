package sqlstore_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail/sqlstore"
)

func testTables(t *testing.T, srv server) {
	db := srv.open(t, srv.dsn(t))
	schema := "main"
	if srv.dialect == sqlstore.PostgreSQL {
		schema = "public"
		execute(t, db, `CREATE SCHEMA "Mail"`)
	}
	good := []string{"", "keys", "Keys2", "_k", "select", "order", schema + ".table", strings.Repeat("x", 55)}
	if srv.dialect == sqlstore.PostgreSQL {
		good = append(good, "Mail.keys", "Mail.idemmail")
	}
	var stores []*sqlstore.Store
	for _, name := range good {
		s, err := sqlstore.New(db, sqlstore.Options{Dialect: srv.dialect, Table: name})
		require.NoError(t, err, name)
		for range 2 {
			require.NoError(t, s.EnsureSchema(t.Context()), name)
		}
		// The text for migration tools makes the same, and finds it made.
		text, err := sqlstore.Schema(srv.dialect, name)
		require.NoError(t, err)
		execute(t, db, text)
		stores = append(stores, s)
	}
	for i, s := range stores {
		// Each has its own keys: Keys2 is SQLite's keys2, but nobody's here.
		reserve(t, s, "table:key", time.Minute)
		_, err := s.DeleteExpired(t.Context(), 1)
		require.NoError(t, err, good[i])
	}
	for _, name := range []string{
		" ", "a b", `a"`, `"a"`, "a'", "a;", "a--", "1a", "a.b.c", ".a", "a.", "a-b", "ä", "a\x00", "a\n", "$a", "%", "`a`", "[a]",
		strings.Repeat("x", 56), strings.Repeat("x", 64) + ".a", "a\nb", "a.b\n",
	} {
		_, err := sqlstore.New(db, sqlstore.Options{Dialect: srv.dialect, Table: name})
		require.ErrorContains(t, err, "table name", "%q", name)
		_, err = sqlstore.Schema(srv.dialect, name)
		require.ErrorContains(t, err, "table name", "%q", name)
	}
}

func TestSchemaText(t *testing.T) {
	for dialect, want := range map[sqlstore.Dialect][]string{
		sqlstore.PostgreSQL: {`CREATE TABLE IF NOT EXISTS "mail"."keys" (`, `key         text COLLATE "C" NOT NULL PRIMARY KEY`, `CREATE INDEX IF NOT EXISTS "keys_expires" ON "mail"."keys" (expires);`},
		sqlstore.SQLite:     {`CREATE TABLE IF NOT EXISTS "mail"."keys" (`, `) STRICT;`, `CREATE INDEX IF NOT EXISTS "mail"."keys_expires" ON "keys" (expires);`},
	} {
		text, err := sqlstore.Schema(dialect, "mail.keys")
		require.NoError(t, err)
		for _, w := range want {
			require.Contains(t, text, w)
		}
	}
}

// A table of something else under the name is found out before a mail goes.
func TestForeignTable(t *testing.T) {
	db := sqliteServer.open(t, sqliteServer.dsn(t))
	execute(t, db, "CREATE TABLE idemmail (id INTEGER PRIMARY KEY, expires INTEGER)")
	s, err := sqlstore.New(db, sqlstore.Options{Dialect: sqlstore.SQLite})
	require.NoError(t, err)
	require.NoError(t, s.EnsureSchema(t.Context()))
	_, _, err = s.Reserve(t.Context(), "a:b", "1:x", time.Minute)
	require.Error(t, err)
}

func testSchemaRace(t *testing.T, srv server) {
	for round := range 5 {
		dsn := srv.dsn(t)
		var group sync.WaitGroup
		start := make(chan struct{})
		errs := make([]error, 16)
		for i := range errs {
			db := srv.open(t, dsn) // as in another process
			db.SetMaxIdleConns(1)
			s, err := sqlstore.New(db, sqlstore.Options{Dialect: srv.dialect})
			require.NoError(t, err)
			group.Go(func() {
				<-start
				if errs[i] = s.EnsureSchema(t.Context()); errs[i] == nil {
					_, _, errs[i] = s.Reserve(t.Context(), fmt.Sprint("race:", i), "1:x", time.Minute)
				}
			})
		}
		close(start)
		group.Wait()
		for _, err := range errs {
			require.NoError(t, err, round)
		}
	}
}
