package sqlstore

import "strconv"

// A Dialect is a kind of database.
type Dialect int

// The databases that a Store works on. The zero Dialect is none of them.
const (
	PostgreSQL Dialect = iota + 1
	SQLite
)

// String returns the database's name.
func (d Dialect) String() string {
	switch d {
	case PostgreSQL:
		return "PostgreSQL"
	case SQLite:
		return "SQLite"
	}
	return "Dialect(" + strconv.Itoa(int(d)) + ")"
}

// now is the database's clock, in milliseconds since 1970, cut down.
//
// PostgreSQL's now() is when the transaction began, a while ago perhaps, and
// statement_timestamp() when the statement did, before it waited for a lock;
// clock_timestamp() is when it is asked.
func (d Dialect) now() string {
	if d == PostgreSQL {
		return "floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
	}
	return "CAST(round(unixepoch('now', 'subsec') * 1000) AS INTEGER)"
}

// held joins the rows of parameters r with the rows of the table that have
// their keys, and keeps others from changing those meanwhile. PostgreSQL looks
// each of them up, in the order of r, whatever it believes of the table's
// size; so no two statements that take many keys wait for each other. SQLite
// has one lock for all.
func (d Dialect) held() string {
	if d == PostgreSQL {
		return "CROSS JOIN LATERAL (SELECT * FROM {table} AS h WHERE h.key = r.id FOR UPDATE) AS h"
	}
	return "JOIN {table} AS h ON h.key = r.id"
}

// skip ends a query for rows that are to be removed, but those that are in use,
// and keeps others from changing them meanwhile.
func (d Dialect) skip() string {
	if d == PostgreSQL {
		return "FOR UPDATE OF h SKIP LOCKED"
	}
	return ""
}

// appendParameter appends the parameter of that number, from 1. PostgreSQL is
// told its type, which it cannot always guess.
func (d Dialect) appendParameter(text []byte, number int, kind string) []byte {
	if d == PostgreSQL {
		text = append(text, '$')
		text = strconv.AppendInt(text, int64(number), 10)
		return append(append(text, "::"...), kind...)
	}
	return append(text, '?')
}
