package sqlstore

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/idemmail/idemmail"
)

// format is the version of the rows that this package writes, and the only one
// that it reads. It grows when what is known of a column changes its meaning;
// further columns do not make a new one.
const format = 1

// A row is one of the table as it was read. Its format is in docs/formats.md
// and in testdata.
type row struct {
	key                string
	format             int64
	state              idemmail.State
	token, fingerprint string
	at                 int64         // reserved, renewed or completed; milliseconds by the database's clock
	expires            sql.NullInt64 // the last millisecond of its time; NULL: never ends
	status             sql.NullString
	receipt            sql.NullString // JSON
	now                int64          // the database's time when it was read

	decoded *idemmail.Receipt
	err     error // wraps ErrBadRecord: it is not a record
}

func scanRow(rows *sql.Rows) (row, error) {
	var r row
	err := rows.Scan(&r.key, &r.format, &r.state, &r.token, &r.fingerprint, &r.at, &r.expires, &r.status, &r.receipt, &r.now)
	if err == nil {
		r.decode()
	}
	return r, err
}

// decode looks whether r is a record, and reads its receipt.
func (r *row) decode() {
	bad := func(why string) {
		r.err = fmt.Errorf("%w: %s", idemmail.ErrBadRecord, why)
	}
	switch {
	case r.format != format:
		bad(fmt.Sprintf("format %d", r.format))
	case r.state == idemmail.StatePending:
	case r.state != idemmail.StateDone:
		bad("unknown state")
	case !r.status.Valid || !r.receipt.Valid:
		bad("done without a status or a receipt")
	default:
		if err := json.Unmarshal([]byte(r.receipt.String), &r.decoded); err != nil {
			bad("receipt: " + err.Error())
		} else if r.decoded == nil || string(r.decoded.Status) != r.status.String {
			bad("receipt of another status")
		}
	}
}

// expired reports whether the time of r had passed when it was read.
func (r *row) expired() bool { return r.expires.Valid && r.expires.Int64 < r.now }

func (r *row) record() *idemmail.Record {
	return &idemmail.Record{
		State:       r.state,
		Fingerprint: r.fingerprint,
		Receipt:     r.decoded,
		Age:         time.Duration(max(0, r.now-r.at)) * time.Millisecond,
	}
}

func (r *row) entry() idemmail.Entry {
	e := idemmail.Entry{Key: r.key, Token: r.token, Record: *r.record()}
	if r.expires.Valid {
		e.ExpiresAt = time.UnixMilli(r.expires.Int64).UTC()
	}
	return e
}

// read answers the rows under the keys; a key without one is missing in the map.
func (s *Store) read(ctx context.Context, on session, keys []string) (map[string]*row, error) {
	found := make(map[string]*row, len(keys))
	for len(keys) > 0 {
		n := min(len(keys), maxRows)
		params := make([][]any, n)
		for i, key := range keys[:n] {
			params[i] = []any{key}
		}
		keys = keys[n:]
		rows, err := query(ctx, on, s.sql.read, params, scanRow)
		if err != nil {
			return nil, explain(ctx, err)
		}
		for i := range rows {
			found[rows[i].key] = &rows[i]
		}
	}
	return found, nil
}

// change carries out a statement that changes rows, and answers the keys of
// those that it changed.
func (s *Store) change(ctx context.Context, on session, st statement, params [][]any) (map[string]bool, error) {
	keys, err := query(ctx, on, st, params, func(rows *sql.Rows) (key sql.NullString, err error) {
		err = rows.Scan(&key)
		return key, err
	})
	if err != nil {
		return nil, explain(ctx, err)
	}
	changed := make(map[string]bool, len(keys))
	for _, key := range keys {
		if key.Valid {
			changed[key.String] = true
		}
	}
	return changed, nil
}

// encode answers the status and the receipt as they are stored. A time is kept
// in UTC and to the millisecond.
func encode(r *idemmail.Receipt) (status, receipt string, err error) {
	if r.Status == "" {
		return "", "", errors.New("receipt without a status")
	}
	stored := *r
	stored.At = r.At.UTC().Truncate(time.Millisecond)
	text, err := json.Marshal(stored)
	return string(r.Status), string(text), err
}

// life answers a lease or TTL in milliseconds, rounded up; nil for ever.
func life(d time.Duration) (any, error) {
	switch {
	case d == idemmail.NoExpiry:
		return nil, nil
	case d <= 0:
		return nil, fmt.Errorf("duration %v is neither positive nor NoExpiry", d)
	}
	return millis(d), nil
}

// millis is d, which is positive, in milliseconds, rounded up.
func millis(d time.Duration) int64 {
	n := d.Milliseconds()
	if d%time.Millisecond != 0 {
		n++
	}
	return n
}

// maxKey keeps keys below what an index takes: 2,700 bytes in PostgreSQL. Those
// that package idemmail makes have 577 at most.
const maxKey = 1024

// checkTexts refuses what a database would refuse or change.
func checkTexts(key string, others ...string) error {
	if key == "" || len(key) > maxKey {
		return fmt.Errorf("key has %d bytes: it must have 1 to %d", len(key), maxKey)
	}
	for _, text := range append(others, key) {
		if !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
			return errors.New("key, token, fingerprint or status is not valid UTF-8, or has NUL")
		}
	}
	return nil
}
