package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"math/rand/v2"
	"time"
)

const (
	// patience is how long a statement is tried again that the database turned
	// away for the moment.
	patience = 5 * time.Second

	// cleanUp bounds a try of what is done, best effort, after a failure.
	cleanUp = time.Second
)

// A session is what statements are carried out on: the database, or the
// caller's transaction.
type session struct {
	db *sql.DB
	tx *sql.Tx // instead of db

	// turn, on SQLite, holds an element while a statement is carried out. It
	// has one lock for all anyway, and those who wait for that poll, so that
	// now and then one waits too long; here they queue. A transaction does not,
	// since it may be what the others wait for.
	turn chan struct{}
}

func newSession(d Dialect, db *sql.DB) session {
	s := session{db: db}
	if d == SQLite {
		s.turn = make(chan struct{}, 1)
	}
	return s
}

// query carries out a statement for one row of parameters or more, and answers
// what scan makes of each row of the result.
func query[T any](ctx context.Context, on session, s statement, params [][]any, scan func(*sql.Rows) (T, error)) (answers []T, err error) {
	once := func() error {
		if on.turn != nil {
			select {
			case on.turn <- struct{}{}:
				defer func() { <-on.turn }()
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		rows, err := s.query(ctx, on, params)
		if err != nil {
			return err
		}
		answers, err = scanAll(rows, scan)
		return err
	}
	if on.tx != nil {
		err = once() // the whole transaction has to be begun anew, if anything
	} else {
		err = repeat(ctx, once)
	}
	return answers, err
}

func scanAll[T any](rows *sql.Rows, scan func(*sql.Rows) (T, error)) (answers []T, err error) {
	defer rows.Close()
	for rows.Next() {
		answer, err := scan(rows)
		if err != nil {
			return nil, err
		}
		answers = append(answers, answer)
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	return answers, rows.Close() // SQLite may commit, and fail, as late as here
}

// repeat does something again, with growing pauses, while the database turns
// it away for the moment: for as long as patience and ctx last.
func repeat(ctx context.Context, do func() error) error {
	start := time.Now()
	for try := 1; ; try++ {
		err := do()
		if err == nil || !passes(err) || time.Since(start) > patience || pause(ctx, try) != nil {
			return err
		}
	}
}

// passes reports whether the database has done nothing and may do it soon.
// Drivers for PostgreSQL tell the SQLSTATE in a method of this name, and
// modernc.org/sqlite SQLite's result code in the other.
func passes(err error) bool {
	const (
		serializationFailure = "40001"
		deadlockDetected     = "40P01"

		busy   = 5
		locked = 6
	)
	var postgres interface{ SQLState() string }
	if errors.As(err, &postgres) {
		return postgres.SQLState() == serializationFailure || postgres.SQLState() == deadlockDetected
	}
	var sqlite interface{ Code() int }
	if errors.As(err, &sqlite) {
		code := sqlite.Code() & 0xff // the rest is detail
		return code == busy || code == locked
	}
	return false
}

// pause waits before a further try: up to 1 ms, 2 ms, and so on up to 64 ms, at
// random, so that those who were turned away together do not come back so.
func pause(ctx context.Context, try int) error {
	longest := time.Millisecond << min(try-1, 6)
	timer := time.NewTimer(rand.N(longest) + 1)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
