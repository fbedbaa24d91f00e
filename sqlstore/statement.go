package sqlstore

import (
	"context"
	"database/sql"
	"math/bits"
	"strconv"
	"strings"
	"sync/atomic"
)

// The statements that a Store carries out. Those that change rows answer the
// keys of the rows that they changed.
//
// In them {rows} stands for a list of rows of parameters, of the types that it
// names: one for each key. The row that is in the table is h. {now} is asked
// for wherever it is needed, not once: the statement may have waited for a row.
const (
	// reserve takes keys that nothing holds within its time. It leaves those out
	// of its answer whose lease has ended already: the statement had waited for
	// a transaction that then was rolled back.
	reserveSQL = `
WITH r (id, token, fingerprint, life) AS (VALUES {rows text text text bigint})
INSERT INTO {table} AS h (key, format, state, token, fingerprint, at, expires)
SELECT id, 1, 'pending', token, fingerprint, {now}, {now} + life FROM r WHERE id IS NOT NULL
ON CONFLICT (key) DO UPDATE SET
	state = 'pending', token = excluded.token, fingerprint = excluded.fingerprint,
	at = {now}, expires = {now} + (excluded.expires - excluded.at), status = NULL, receipt = NULL
WHERE {known} AND h.expires < {now}
RETURNING CASE WHEN expires IS NULL OR expires >= {now} THEN key END`

	// complete takes such keys too, and those that the token holds.
	completeSQL = `
WITH r (id, token, fingerprint, life, status, receipt) AS (VALUES {rows text text text bigint text text})
INSERT INTO {table} AS h (key, format, state, token, fingerprint, at, expires, status, receipt)
SELECT id, 1, 'done', token, fingerprint, {now}, {now} + life, status, receipt FROM r WHERE id IS NOT NULL
ON CONFLICT (key) DO UPDATE SET
	state = 'done', token = excluded.token, fingerprint = excluded.fingerprint,
	at = {now}, expires = {now} + (excluded.expires - excluded.at), status = excluded.status, receipt = excluded.receipt
WHERE {known} AND (h.token = excluded.token OR h.expires < {now})
RETURNING key`

	// renew extends what the token holds pending.
	renewSQL = `
WITH r (id, token, life) AS (VALUES {rows text text bigint}),
mine AS (
	SELECT r.id, r.life FROM r {held} WHERE h.token = r.token AND {known} AND h.state = 'pending' AND {live}
)
UPDATE {table} AS h SET at = {now}, expires = {now} + mine.life FROM mine WHERE h.key = mine.id
RETURNING key`

	// free removes what the token holds in the state.
	freeSQL = `
WITH r (id, token, state) AS (VALUES {rows text text text}),
mine AS (
	SELECT r.id FROM r {held} WHERE h.token = r.token AND h.state = r.state AND {known} AND {live}
)
DELETE FROM {table} AS h WHERE h.key IN (SELECT id FROM mine)
RETURNING key`

	// claim gives a reservation of the same message a new token.
	claimSQL = `
WITH r (id, reservation, token, fingerprint, life) AS (VALUES {rows text text text text bigint})
UPDATE {table} AS h SET token = r.token, at = {now}, expires = {now} + r.life FROM r
WHERE h.key = r.id AND h.token = r.reservation AND h.fingerprint = r.fingerprint
	AND {known} AND h.state = 'pending'
RETURNING key`

	// resolve completes what a token holds in the state, under a new one.
	resolveSQL = `
WITH r (id, was, state, token, life, status, receipt) AS (VALUES {rows text text text text bigint text text})
UPDATE {table} AS h SET
	state = 'done', token = r.token, at = {now}, expires = {now} + r.life, status = r.status, receipt = r.receipt
FROM r
WHERE h.key = r.id AND h.token = r.was AND h.state = r.state AND {known} AND {live}
RETURNING key`

	// read answers what stands under the keys.
	readSQL = `
SELECT ` + columns + `, {now} FROM {table} AS h WHERE key IN ({rows text})`

	// list answers those, in the order of keys from one on, that may be
	// unsettled; see Unsettled.
	listSQL = `
WITH r (first, ended, age) AS (VALUES {rows text text bigint})
SELECT ` + columns + `, {now} FROM {table} AS h
WHERE h.key >= (SELECT first FROM r)`

	listEnd = ` AND h.key < (SELECT ended FROM r)`

	listRest = `
	AND (NOT {known} OR {live} AND (h.status <> 'sent' OR h.state = 'pending' AND {now} - h.at >= (SELECT age FROM r)))
ORDER BY h.key LIMIT {page}`

	// sweep removes records whose time has passed, the oldest first.
	sweepSQL = `
WITH r (size) AS (VALUES {rows bigint}),
old AS (
	SELECT h.key AS id FROM {table} AS h WHERE h.expires < (SELECT {now}) AND {known}
	ORDER BY h.expires LIMIT (SELECT size FROM r) {skip}
)
DELETE FROM {table} AS h WHERE h.key IN (SELECT id FROM old)
RETURNING key`
)

const (
	// columns are what scanRow reads, before the database's time.
	columns = "key, format, state, token, fingerprint, at, expires, status, receipt"

	// known matches rows that may be written over: no others are taken for
	// records by decode, which looks at the receipt too.
	known = "(h.format = 1 AND (h.state = 'pending' OR h.state = 'done' AND h.status IS NOT NULL AND h.receipt IS NOT NULL))"

	// maxRows is how many keys one statement takes. Six parameters for each
	// are fewer than the 32,766 that SQLite allows, and PostgreSQL's 65,535.
	maxRows = 512

	// pageSize is how many rows of a listing are in memory at once.
	pageSize = 100
)

// A statement is one of those above for a dialect and a table.
type statement struct {
	dialect    Dialect
	head, tail string   // before and after the rows
	kinds      []string // types of a row's parameters
	one        string   // the text for one row

	// prepared is one, once it was needed, on SQLite. There, with a driver that
	// prepares what it is given each time, that takes longer than to carry it
	// out. Clients of PostgreSQL do it by themselves where a pooler before the
	// server lets them.
	prepared *atomic.Pointer[sql.Stmt]
}

func newStatement(t table, template string) statement {
	now := t.dialect.now()
	template = strings.ReplaceAll(template, "{held}", t.dialect.held())
	template = strings.NewReplacer(
		"{table}", t.String(),
		"{known}", known,
		"{live}", "(h.expires IS NULL OR h.expires >= "+now+")",
		"{now}", now,
		"{skip}", t.dialect.skip(),
		"{page}", strconv.Itoa(pageSize),
	).Replace(template)
	head, rest, _ := strings.Cut(template, "{rows ")
	kinds, tail, _ := strings.Cut(rest, "}")
	s := statement{dialect: t.dialect, head: head, tail: tail, kinds: strings.Fields(kinds)}
	s.one = s.write(1)
	s.prepared = new(atomic.Pointer[sql.Stmt])
	return s
}

// query carries out the statement for one row of parameters or more.
func (s statement) query(ctx context.Context, on session, params [][]any) (*sql.Rows, error) {
	if on.tx != nil || len(params) > 1 || s.dialect != SQLite {
		text, args := s.text(params)
		if on.tx != nil {
			return on.tx.QueryContext(ctx, text, args...)
		}
		return on.db.QueryContext(ctx, text, args...)
	}
	prepared := s.prepared.Load()
	if prepared == nil {
		var err error
		if prepared, err = on.db.PrepareContext(ctx, s.one); err != nil {
			return nil, err
		}
		if !s.prepared.CompareAndSwap(nil, prepared) {
			prepared.Close() // another was faster
			prepared = s.prepared.Load()
		}
	}
	return prepared.QueryContext(ctx, params[0]...)
}

// text answers the statement and its arguments for one row or more. There are
// only as many texts as powers of two up to maxRows, since drivers keep what
// they have prepared: the list is filled up with NULL, a key that none equals.
func (s statement) text(rows [][]any) (string, []any) {
	if len(rows) == 1 {
		return s.one, rows[0]
	}
	n := 1 << bits.Len(uint(len(rows)-1))
	args := make([]any, 0, n*len(s.kinds))
	for _, row := range rows {
		args = append(args, row...)
	}
	return s.write(n), args[:cap(args)]
}

func (s statement) write(n int) string {
	text := make([]byte, 0, len(s.head)+16*n*len(s.kinds)+len(s.tail))
	text = append(text, s.head...)
	for i := range n * len(s.kinds) {
		switch {
		case i == 0:
			text = append(text, '(')
		case i%len(s.kinds) == 0:
			text = append(text, "), ("...)
		default:
			text = append(text, ", "...)
		}
		text = s.dialect.appendParameter(text, i+1, s.kinds[i%len(s.kinds)])
	}
	text = append(text, ')')
	return string(append(text, s.tail...))
}

// statements are those of one Store.
type statements struct {
	reserve, complete, renew, free, claim, resolve, read, list, listToEnd, sweep statement
}

func newStatements(t table) statements {
	return statements{
		reserve:   newStatement(t, reserveSQL),
		complete:  newStatement(t, completeSQL),
		renew:     newStatement(t, renewSQL),
		free:      newStatement(t, freeSQL),
		claim:     newStatement(t, claimSQL),
		resolve:   newStatement(t, resolveSQL),
		read:      newStatement(t, readSQL),
		list:      newStatement(t, listSQL+listRest),
		listToEnd: newStatement(t, listSQL+listEnd+listRest),
		sweep:     newStatement(t, sweepSQL),
	}
}
