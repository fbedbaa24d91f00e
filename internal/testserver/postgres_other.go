//go:build !unix

package testserver

import "testing"

// A Postgres is a server that is started on Unix only.
type Postgres struct{ URL string }

// StartPostgres ends the test through [Require] or [Missing].
func StartPostgres(t testing.TB) *Postgres {
	t.Helper()
	Require(t)
	Missing(t, "PostgreSQL", "it is started on Unix only")
	return nil
}

func (*Postgres) Start(testing.TB)    {}
func (*Postgres) Kill()               {}
func (*Postgres) Stop(testing.TB)     {}
func (*Postgres) Continue(testing.TB) {}
