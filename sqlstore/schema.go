package sqlstore

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"strings"

	"github.com/idemmail/idemmail/internal/await"
)

// defaultTable is the table where the options name none.
const defaultTable = "idemmail"

// tableName is what a table may be called. PostgreSQL cuts names after 63
// bytes, and the index's is the table's and "_expires".
var tableName = regexp.MustCompile(`^(?:([A-Za-z_][A-Za-z0-9_]{0,62})\.)?([A-Za-z_][A-Za-z0-9_]{0,54})$`)

// A table is the name of one, quoted.
type table struct {
	dialect Dialect
	schema  string // with the dot behind it; empty: none
	name    string
	index   string
}

func parseTable(d Dialect, name string) (table, error) {
	if d != PostgreSQL && d != SQLite {
		return table{}, fmt.Errorf("sqlstore: dialect is %v: it must be PostgreSQL or SQLite", d)
	}
	if name == "" {
		name = defaultTable
	}
	parts := tableName.FindStringSubmatch(name)
	if parts == nil {
		return table{}, fmt.Errorf("sqlstore: table name %q: it must be of ASCII letters, digits and underscores, and not too long; a schema and a dot may stand in front", name)
	}
	t := table{dialect: d, name: `"` + parts[2] + `"`, index: `"` + parts[2] + `_expires"`}
	if parts[1] != "" {
		t.schema = `"` + parts[1] + `".`
	}
	return t, nil
}

func (t table) String() string { return t.schema + t.name }

// create answers the statements that make the table and its index.
func (t table) create() []string {
	if t.dialect == PostgreSQL {
		return []string{`CREATE TABLE IF NOT EXISTS ` + t.String() + ` (
	key         text COLLATE "C" NOT NULL PRIMARY KEY,
	format      integer NOT NULL,
	state       text NOT NULL,
	token       text NOT NULL,
	fingerprint text NOT NULL,
	at          bigint NOT NULL,
	expires     bigint,
	status      text,
	receipt     text
)`,
			`CREATE INDEX IF NOT EXISTS ` + t.index + ` ON ` + t.String() + ` (expires)`,
		}
	}
	return []string{`CREATE TABLE IF NOT EXISTS ` + t.String() + ` (
	key         TEXT NOT NULL PRIMARY KEY,
	format      INTEGER NOT NULL,
	state       TEXT NOT NULL,
	token       TEXT NOT NULL,
	fingerprint TEXT NOT NULL,
	at          INTEGER NOT NULL,
	expires     INTEGER,
	status      TEXT,
	receipt     TEXT
) STRICT`,
		`CREATE INDEX IF NOT EXISTS ` + t.schema + t.index + ` ON ` + t.name + ` (expires)`,
	}
}

// Schema returns the statements that make the table and its index, for
// migration tools: each ends with a semicolon. They leave alone what is there.
// The name is as in [Options]; empty: "idemmail". What the columns mean is in
// docs/formats.md.
func Schema(d Dialect, table string) (string, error) {
	t, err := parseTable(d, table)
	if err != nil {
		return "", err
	}
	return strings.Join(t.create(), ";\n\n") + ";\n", nil
}

// schemaLock is the advisory lock of PostgreSQL that EnsureSchema holds:
// "idemmail" in ASCII.
const schemaLock = 0x6964656d6d61696c

// EnsureSchema makes the table and its index where they are missing, as
// [Schema] has them; it changes neither where they are there. It may be called
// any number of times, by many processes at once. It needs the right to create
// tables, also where it has nothing to do.
func (s *Store) EnsureSchema(ctx context.Context) error {
	err, ended := await.Call(ctx, func() error { return s.ensureSchema(ctx) }, nil)
	if err = explain(ctx, cmp.Or(ended, err)); err != nil {
		return fmt.Errorf("sqlstore: create table %v: %w", s.table, err)
	}
	return nil
}

func (s *Store) ensureSchema(ctx context.Context) error {
	statements := s.table.create()
	if s.table.dialect == PostgreSQL {
		// IF NOT EXISTS does not keep two from creating it at the same moment.
		statements = append([]string{fmt.Sprintf("SELECT pg_advisory_xact_lock(%d)", schemaLock)}, statements...)
	}
	return repeat(ctx, func() error {
		tx, err := s.own.db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		for _, statement := range statements {
			if _, err := tx.ExecContext(ctx, statement); err != nil {
				return err
			}
		}
		return tx.Commit()
	})
}
