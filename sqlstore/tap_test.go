package sqlstore_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// A tap stands between database/sql and a driver: it counts the statements that
// are carried out, and may change what becomes of them.
type tap struct {
	mu         sync.Mutex
	statements []string
	deaf       bool // the driver hears nothing of contexts

	// around, if set, carries out each statement by do, or not.
	around func(statement string, do func() (driver.Rows, error)) (driver.Rows, error)
}

// tapped opens the database through a tap.
func (srv server) tapped(t testing.TB, dsn string) (*sql.DB, *tap) {
	t.Helper()
	plain, err := sql.Open(srv.driver, dsn)
	require.NoError(t, err)
	defer plain.Close()
	tap := &tap{}
	db := sql.OpenDB(tapConnector{plain.Driver(), dsn, tap})
	db.SetMaxIdleConns(20)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db, tap
}

// set lets what comes go by around.
func (p *tap) set(around func(statement string, do func() (driver.Rows, error)) (driver.Rows, error)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.around = around
}

// count answers the statements since it was last asked.
func (p *tap) count() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	statements := p.statements
	p.statements = nil
	return statements
}

func (p *tap) pass(ctx context.Context, statement string, do func(context.Context) (driver.Rows, error)) (driver.Rows, error) {
	p.mu.Lock()
	p.statements = append(p.statements, statement)
	around := p.around
	if p.deaf {
		ctx = context.WithoutCancel(ctx)
	}
	p.mu.Unlock()
	if around == nil {
		return do(ctx)
	}
	return around(statement, func() (driver.Rows, error) { return do(ctx) })
}

// drain carries a statement out to its end.
func drain(rows driver.Rows, err error) error {
	if err != nil {
		return err
	}
	row := make([]driver.Value, len(rows.Columns()))
	for err == nil {
		err = rows.Next(row)
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return errors.Join(err, rows.Close())
}

type tapConnector struct {
	driver driver.Driver
	dsn    string
	tap    *tap
}

func (c tapConnector) Driver() driver.Driver { return c.driver }

func (c tapConnector) Connect(context.Context) (driver.Conn, error) {
	conn, err := c.driver.Open(c.dsn)
	if err != nil {
		return nil, err
	}
	return &tapConn{conn, c.tap}, nil
}

type tapConn struct {
	driver.Conn
	tap *tap
}

func (c *tapConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	return c.tap.pass(ctx, query, func(ctx context.Context) (driver.Rows, error) {
		return c.Conn.(driver.QueryerContext).QueryContext(ctx, query, args)
	})
}

func (c *tapConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	return c.Conn.(driver.ExecerContext).ExecContext(ctx, query, args)
}

func (c *tapConn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	stmt, err := c.Conn.(driver.ConnPrepareContext).PrepareContext(ctx, query)
	if err != nil {
		return nil, err
	}
	return &tapStmt{stmt, query, c.tap}, nil
}

func (c *tapConn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	return c.Conn.(driver.ConnBeginTx).BeginTx(ctx, opts)
}

func (c *tapConn) ResetSession(ctx context.Context) error {
	if r, ok := c.Conn.(driver.SessionResetter); ok {
		return r.ResetSession(ctx)
	}
	return nil
}

func (c *tapConn) IsValid() bool {
	if v, ok := c.Conn.(driver.Validator); ok {
		return v.IsValid()
	}
	return true
}

func (c *tapConn) CheckNamedValue(v *driver.NamedValue) error {
	if n, ok := c.Conn.(driver.NamedValueChecker); ok {
		return n.CheckNamedValue(v)
	}
	return driver.ErrSkip
}

type tapStmt struct {
	driver.Stmt
	query string
	tap   *tap
}

func (s *tapStmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	return s.tap.pass(ctx, s.query, func(ctx context.Context) (driver.Rows, error) {
		return s.Stmt.(driver.StmtQueryContext).QueryContext(ctx, args)
	})
}
