package main

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/sqlstore"
)

// findings reads what check writes, by what was checked.
func findings(t *testing.T, text string) map[string]string {
	t.Helper()
	found := make(map[string]string)
	for line := range strings.Lines(text) {
		var f struct{ Result, Check, Detail string }
		require.NoError(t, json.Unmarshal([]byte(line), &f))
		require.NotEmpty(t, f.Detail)
		found[f.Check] += f.Result + ": " + f.Detail + "\n"
	}
	return found
}

func TestCheckAStoreThatIsFine(t *testing.T) {
	onEveryBed(t, func(t *testing.T, b *bed) {
		r := b.run("check")
		require.Equal(t, exitDone, r.code, r.stdout+r.stderr)
		require.Empty(t, r.stderr)
		require.NotContains(t, r.stdout, "unsafe")
		require.Regexp(t, `(?m)^ok +use +`, r.stdout)

		r = b.run("check", "--json")
		require.Equal(t, exitDone, r.code)
		require.Contains(t, findings(t, r.stdout)["use"], "ok: ")
		require.Equal(t, result{}, b.run("list", "--older-than", "0"), "it leaves nothing behind")
	})
}

func TestCheckSaysWhatRedisDoesNotTell(t *testing.T) {
	b := redisBed(t) // miniredis knows no INFO memory
	got := findings(t, b.run("check", "--json").stdout)
	require.Contains(t, got["server"], "warning: it does not tell its maxmemory-policy")
	require.Contains(t, got["server clock"], "ok: ")
	require.Contains(t, got["redis"], "ok: ")
}

func TestCheckAStoreThatCannotBeReached(t *testing.T) {
	for _, url := range []string{
		"redis://127.0.0.1:1/0?max_retries=-1",
		"mongodb://127.0.0.1:1/db?collection=c",
		"postgres://127.0.0.1:1/db",
	} {
		r := operator{t: t, url: url}.run("check", "--timeout", "300ms")
		require.Equal(t, exitFailed, r.code, url)
		require.Empty(t, r.stdout)
		require.Contains(t, r.stderr, "could not be asked")
	}
}

// A brokenStore fails the nth step of what tryStore does.
type brokenStore struct {
	store
	step *int
}

var errBroken = errors.New("no right to do this")

func (s brokenStore) fails() bool { *s.step--; return *s.step == 0 }

func (s brokenStore) Reserve(ctx context.Context, key, fingerprint string, lease time.Duration) (string, *idemmail.Record, error) {
	if s.fails() {
		return "", nil, errBroken
	}
	return s.store.Reserve(ctx, key, fingerprint, lease)
}

func (s brokenStore) Renew(ctx context.Context, key, token string, lease time.Duration) error {
	if s.fails() {
		return errBroken
	}
	return s.store.Renew(ctx, key, token, lease)
}

func (s brokenStore) Complete(ctx context.Context, key, token string, rec idemmail.Record, ttl time.Duration) error {
	if s.fails() {
		return errBroken
	}
	return s.store.Complete(ctx, key, token, rec, ttl)
}

func (s brokenStore) Lookup(ctx context.Context, key string) (*idemmail.Entry, error) {
	if s.fails() {
		return nil, errBroken
	}
	return s.store.Lookup(ctx, key)
}

func (s brokenStore) Resolve(ctx context.Context, e idemmail.Entry, r *idemmail.Receipt, ttl time.Duration) error {
	if s.fails() {
		return errBroken
	}
	return s.store.Resolve(ctx, e, r, ttl)
}

func (s brokenStore) Forget(ctx context.Context, e idemmail.Entry) error {
	if s.fails() {
		return errBroken
	}
	return s.store.Forget(ctx, e)
}

// checkStore runs check on a store that nothing else is known of.
func checkStore(t *testing.T, s store) (text string, err error) {
	var stdout bytes.Buffer
	a := app{stdout: &stdout, timeout: time.Minute}
	examine := func(context.Context, *report) error { return nil }
	err = a.check(t.Context(), &openStore{store: s, examine: examine}, newReport(&a, false))
	return stdout.String(), err
}

func TestCheckTriesEverythingThatIsNeeded(t *testing.T) {
	for step, name := range []string{"reserve a key", "reserve it again", "renew it", "complete it", "look it up", "resolve it", "look it up", "forget it"} {
		n := step + 1
		text, err := checkStore(t, brokenStore{idemmail.NewMemStore(idemmail.MemStoreOptions{}), &n})
		var ended *exitError
		require.ErrorAs(t, err, &ended)
		require.Equal(t, exitUnsafe, ended.code)
		require.Regexp(t, `^unsafe +use +`+name+": no right to do this\n$", text)
	}
}

// amnesiac gives every key away to everybody.
type amnesiac struct{ store }

func (amnesiac) Reserve(context.Context, string, string, time.Duration) (string, *idemmail.Record, error) {
	return "token", nil, nil
}

func TestCheckSeesThatAKeyIsGivenAwayTwice(t *testing.T) {
	text, err := checkStore(t, amnesiac{idemmail.NewMemStore(idemmail.MemStoreOptions{})})
	require.Error(t, err)
	require.Contains(t, text, "given away again")
}

func TestCheckSQLite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys.db")
	db, err := sql.Open("sqlite", "file:"+path)
	require.NoError(t, err)
	defer db.Close()
	made, err := sqlstore.New(db, sqlstore.Options{Dialect: sqlstore.SQLite})
	require.NoError(t, err)
	require.NoError(t, made.EnsureSchema(t.Context()))
	o := operator{t: t, url: "sqlite:" + path}
	do := func(statement string) {
		t.Helper()
		_, err := db.Exec(statement)
		require.NoError(t, err)
	}
	check := func() (int, map[string]string) {
		r := o.run("check", "--json")
		return r.code, findings(t, r.stdout)
	}

	code, got := check()
	require.Equal(t, exitDone, code)
	require.Contains(t, got["table"], "ok: idemmail")
	require.Contains(t, got["indexes"], "ok: ")
	require.Contains(t, got["journal"], "warning: journal_mode is delete")

	do(`PRAGMA journal_mode = WAL`)
	do(`DROP INDEX idemmail_expires`)
	code, got = check()
	require.Equal(t, exitDone, code)
	require.Contains(t, got["indexes"], "warning: ")
	require.NotContains(t, got, "journal")

	do(`CREATE UNIQUE INDEX second ON idemmail (fingerprint)`)
	code, got = check()
	require.Equal(t, exitUnsafe, code)
	require.Contains(t, got["indexes"], "unsafe: second is unique")

	do(`DROP TABLE idemmail`)
	code, got = check()
	require.Equal(t, exitUnsafe, code)
	require.Contains(t, got["table"], "unsafe: there is no table idemmail")
}

func TestCheckMongoIndexes(t *testing.T) {
	key := func(field string) bson.D { return bson.D{{Key: field, Value: 1}} }
	seconds := func(n int64) *int64 { return &n }
	id := mongoIndex{Name: "_id_", Key: key("_id")}
	ttl := mongoIndex{Name: "expires_1", Key: key("expires"), ExpireAfterSeconds: seconds(0)}
	const ok, missing = "ok: what has expired is removed by the TTL index\n", "warning: there is no TTL index, so the collection grows for ever: call EnsureIndexes\n"
	for name, c := range map[string]struct {
		indexes []mongoIndex
		want    string
	}{
		"as EnsureIndexes makes them": {[]mongoIndex{id, ttl}, ok},
		"kept for longer":             {[]mongoIndex{id, {Name: "x", Key: key("expires"), ExpireAfterSeconds: seconds(60)}}, ok},
		"_id's may be called unique":  {[]mongoIndex{{Name: "_id_", Key: key("_id"), Unique: true}, ttl}, ok},
		"none":                        {[]mongoIndex{id}, missing},
		"no TTL":                      {[]mongoIndex{id, {Name: "x", Key: key("expires")}}, missing},
		"a second unique one":         {[]mongoIndex{id, ttl, {Name: "x", Key: key("token"), Unique: true}}, "unsafe: x is unique: keys that have nothing to do with each other collide\n" + ok},
		"_id and more, unique":        {[]mongoIndex{id, ttl, {Name: "x", Key: append(key("_id"), key("at")...), Unique: true}}, "unsafe: x is unique: keys that have nothing to do with each other collide\n" + ok},
		"by another date":             {[]mongoIndex{id, {Name: "x", Key: key("at"), ExpireAfterSeconds: seconds(0)}}, "unsafe: x removes documents by another date than expires\n" + missing},
		"too early":                   {[]mongoIndex{id, {Name: "x", Key: key("expires"), ExpireAfterSeconds: seconds(-1)}}, "unsafe: x removes documents before their time\n" + missing},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			r := newReport(&app{stdout: &out}, true)
			judgeMongoIndexes(r, c.indexes)
			require.Equal(t, c.want, findings(t, out.String())["indexes"])
			require.Equal(t, strings.Contains(c.want, "unsafe"), r.isUnsafe)
		})
	}
}

func TestCheckMongoCollection(t *testing.T) {
	for _, c := range []struct {
		told bson.D
		want string
	}{
		{bson.D{{Key: "name", Value: "c"}, {Key: "type", Value: "collection"}, {Key: "options", Value: bson.D{}}}, "ok: "},
		{bson.D{{Key: "name", Value: "c"}}, "ok: "},
		{bson.D{{Key: "name", Value: "c"}, {Key: "type", Value: "view"}}, "unsafe: c is a view"},
		{bson.D{{Key: "name", Value: "c"}, {Key: "options", Value: bson.D{{Key: "capped", Value: true}}}}, "unsafe: c is capped"},
		{bson.D{{Key: "name", Value: "c"}, {Key: "options", Value: bson.D{{Key: "collation", Value: bson.D{{Key: "locale", Value: "de"}}}}}}, "unsafe: c has a collation"},
	} {
		raw, err := bson.Marshal(c.told)
		require.NoError(t, err)
		var told mongoCollection
		require.NoError(t, bson.Unmarshal(raw, &told))
		var out bytes.Buffer
		judgeMongoCollection(newReport(&app{stdout: &out}, true), told)
		require.Contains(t, findings(t, out.String())["collection"], c.want)
	}
}

func TestCheckClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			server time.Duration // when it read its clock, by its own
			trip   time.Duration
			ahead  time.Duration
			want   string
		}{
			{0, 0, 0, "ok: 0s ahead of this machine's, give or take 0s"},
			{2 * time.Second, 100 * time.Millisecond, 1950 * time.Millisecond, "ok: 1.95s ahead of this machine's, give or take 50ms"},
			{-3 * time.Second, 0, -3 * time.Second, "ok: 3s behind this machine's, give or take 0s"},
			{11 * time.Second, 0, 11 * time.Second, "warning: 11s ahead of this machine's"},
			{-time.Hour, 0, -time.Hour, "warning: 1h0m0s behind this machine's"},
		} {
			var out bytes.Buffer
			r := newReport(&app{stdout: &out}, true)
			before := time.Now()
			server := before.Add(c.server)
			time.Sleep(c.trip)
			require.Equal(t, c.ahead, r.clock("clock", server, before))
			require.Contains(t, findings(t, out.String())["clock"], c.want)
			require.False(t, r.isUnsafe)
		}
	})
}
