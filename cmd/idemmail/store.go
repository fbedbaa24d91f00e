package main

import (
	"context"
	"fmt"
	"time"

	"github.com/idemmail/idemmail"
)

// A store is what the commands need of one.
type store interface {
	idemmail.Store
	idemmail.Renewer
	idemmail.Reconciler
}

// An openStore is the store that a URL names.
type openStore struct {
	store store

	// examine reports what there is to say of the server, beside what check
	// tries on every store. An error means that it could not be asked.
	examine func(ctx context.Context, r *report) error

	// watch answers what tells how far a listing that begins now has come; nil:
	// that cannot be told.
	watch func(ctx context.Context) func() string

	close func()
}

// open opens the store, but does not talk to it yet. The timeout is for finding
// a server, where the URL does not say it.
func (u *storeURL) open(timeout time.Duration) (*openStore, error) {
	switch u.scheme {
	case "redis", "rediss", "unix", "redis+cluster", "rediss+cluster", "redis+sentinel", "rediss+sentinel":
		return u.openRedis()
	case "mongodb", "mongodb+srv":
		return u.openMongo(timeout)
	case "postgres", "postgresql":
		return u.openPostgres()
	case "sqlite":
		return u.openSQLite()
	}
	return nil, fmt.Errorf("unknown scheme %q", u.scheme)
}
