package main

import (
	"bytes"
	"context"
	"database/sql"
	"io"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/sqlstore"
)

func TestMain(m *testing.M) {
	redis.SetLogger(silent{})
	goleak.VerifyTestMain(m)
}

// A result is what a run of the program left behind.
type result struct {
	code           int
	stdout, stderr string
}

// An operator runs the program on one store.
type operator struct {
	t        *testing.T
	url      string
	terminal bool
	stdin    io.Reader
}

func (o operator) run(args ...string) result {
	o.t.Helper()
	return o.runContext(o.t.Context(), args...)
}

func (o operator) runContext(ctx context.Context, args ...string) result {
	o.t.Helper()
	var stdout, stderr bytes.Buffer
	stdin := o.stdin
	if stdin == nil {
		stdin = strings.NewReader("")
	}
	a := app{stdin: stdin, stdout: &stdout, stderr: &stderr, terminal: o.terminal, getenv: func(name string) string {
		require.Equal(o.t, "IDEMMAIL_STORE", name)
		return o.url
	}}
	code := a.run(ctx, args)
	return result{code, stdout.String(), stderr.String()}
}

// answers gives the operator's answers to what the program asks.
func (o operator) answers(text string) operator {
	o.stdin = strings.NewReader(text)
	return o
}

// A bed is a store with records in it, and the operator of it.
type bed struct {
	operator
	store store

	// age lets time pass for the records that are there.
	age func(d time.Duration)

	// foreign puts data under a key that is no record; nil: it cannot be.
	foreign func(key string)
}

// beds are the stores that need no server of their own.
var beds = map[string]func(t *testing.T) *bed{
	"redis":  redisBed,
	"sqlite": sqliteBed,
}

// onEveryBed runs a test on each of them.
func onEveryBed(t *testing.T, test func(t *testing.T, b *bed)) {
	for name, open := range beds {
		t.Run(name, func(t *testing.T) { test(t, open(t)) })
	}
}

// newBed opens a store by its URL, as the program does.
func newBed(t *testing.T, url string) *bed {
	u, err := parseStoreURL(url)
	require.NoError(t, err)
	s, err := u.open(10 * time.Second)
	require.NoError(t, err)
	t.Cleanup(s.close)
	return &bed{operator: operator{t: t, url: url}, store: s.store}
}

func redisBed(t *testing.T) *bed {
	m := miniredis.RunT(t)
	now := time.Now()
	m.SetTime(now)
	b := newBed(t, "redis://"+m.Addr()+"/0")
	b.age = func(d time.Duration) {
		now = now.Add(d)
		m.SetTime(now)
	}
	b.foreign = func(key string) { require.NoError(t, m.Set(key, "something else")) }
	return b
}

func sqliteBed(t *testing.T) *bed {
	path := filepath.Join(t.TempDir(), "a key store #1 %41.db")
	db, err := sql.Open("sqlite", "file:"+url.PathEscape(path)+"?_pragma=journal_mode(WAL)")
	require.NoError(t, err)
	t.Cleanup(func() { db.Close() })
	store, err := sqlstore.New(db, sqlstore.Options{Dialect: sqlstore.SQLite, Table: "keys"})
	require.NoError(t, err)
	require.NoError(t, store.EnsureSchema(t.Context()))
	b := newBed(t, "sqlite:"+path+"?table=keys")
	b.age = func(d time.Duration) {
		_, err := db.Exec(`UPDATE keys SET at = at - $1`, d.Milliseconds())
		require.NoError(t, err)
	}
	b.foreign = func(key string) {
		_, err := db.Exec(`INSERT INTO keys (key, format, state, token, fingerprint, at) VALUES ($1, 99, 'other', '', '', 0)`, key)
		require.NoError(t, err)
	}
	return b
}

// pending reserves a key for ever, as a sender under AtMostOnce does.
func (b *bed) pending(key string) (token string) {
	b.t.Helper()
	token, held, err := b.store.Reserve(b.t.Context(), key, "1:f", idemmail.NoExpiry)
	require.NoError(b.t, err)
	require.Nil(b.t, held)
	return token
}

// done completes a key with a receipt of the status.
func (b *bed) done(key string, r idemmail.Receipt) {
	b.t.Helper()
	rec := idemmail.Record{State: idemmail.StateDone, Fingerprint: "1:f", Receipt: &r}
	require.NoError(b.t, b.store.Complete(b.t.Context(), key, b.pending(key), rec, 48*time.Hour))
}

// unknown is the receipt of a message that may have gone.
var unknown = idemmail.Receipt{
	Status:     idemmail.StatusUnknown,
	Transport:  "ses",
	MessageID:  "abc@example.com",
	ProviderID: "0100",
	Response:   "250 maybe",
	Accepted:   []string{"ada@example.org"},
	Rejected:   []idemmail.Rejection{{Address: "bob@example.org", Code: 550, Reason: "no such user"}},
	At:         time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
	Code:       idemmail.CodeAborted,
	Category:   idemmail.CategoryTimeout,
	Detail:     "no answer in time",
}

// lookup answers what the store holds; nil: nothing.
func (b *bed) lookup(key string) *idemmail.Entry {
	b.t.Helper()
	e, err := b.store.Lookup(b.t.Context(), key)
	require.NoError(b.t, err)
	return e
}
