package main

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/internal/testserver"
	"github.com/idemmail/idemmail/mongostore"
	"github.com/idemmail/idemmail/sqlstore"
)

// operate goes through all commands on a real server.
func operate(t *testing.T, b *bed) {
	for i := range 30 {
		b.done(fmt.Sprintf("orders:sent/%d", i), idemmail.Receipt{Status: idemmail.StatusSent})
	}
	b.done("orders:order/1", unknown)
	b.done("orders:order/2", unknown)
	b.done("other:order/1", unknown)
	b.pending("orders:pending/1")
	b.pending("orders:pending/2")

	r := b.run("check")
	require.Equal(t, exitDone, r.code, r.stdout+r.stderr)
	require.NotContains(t, r.stdout, "unsafe")
	require.ElementsMatch(t, []string{"orders:order/1", "orders:order/2", "other:order/1"}, listed(t, b.run("list", "--json")))
	all := []string{"orders:order/1", "orders:order/2", "orders:pending/1", "orders:pending/2"}
	require.ElementsMatch(t, all, listed(t, b.run("list", "--json", "--namespace", "orders", "--older-than", "0")))
	require.Equal(t, "unknown for 0s", fields(b.run("show", "orders:order/1").stdout)["state"])

	require.Equal(t, exitRefused, b.run("forget", "orders:pending/1", "--yes").code)
	require.Equal(t, exitRefused, b.run("resolve", "orders:pending/1", "--yes").code)
	require.Equal(t, exitRefused, b.run("forget", "orders:sent/1", "--yes").code)
	require.Equal(t, exitNotFound, b.run("show", "orders:none").code)
	require.Equal(t, exitDone, b.run("resolve", "orders:order/1", "--dry-run").code)
	require.ElementsMatch(t, all, listed(t, b.run("list", "--json", "--namespace", "orders", "--older-than", "0")), "nothing has changed")

	require.Equal(t, exitDone, b.answers("y\n").run("resolve", "orders:order/1", "--provider-id", "new").code)
	require.Equal(t, exitDone, b.answers("y\n").run("forget", "orders:order/2").code)
	require.Equal(t, exitDone, b.run("resolve", "orders:pending/1", "--lease", "never", "--yes").code)
	require.Equal(t, exitDone, b.run("forget", "orders:pending/2", "--lease", "never", "--yes").code)
	require.Equal(t, "new", b.lookup("orders:order/1").Record.Receipt.ProviderID)
	require.Equal(t, idemmail.StatusSent, b.lookup("orders:pending/1").Record.Receipt.Status)
	require.Nil(t, b.lookup("orders:order/2"))
	require.Nil(t, b.lookup("orders:pending/2"))
	require.Empty(t, listed(t, b.run("list", "--json", "--namespace", "orders", "--older-than", "0")))

	b.terminal = true
	require.Equal(t, []string{"other:order/1"}, listed(t, b.run("list", "--json")))
}

func TestRedis(t *testing.T) {
	testserver.Require(t)
	server := testserver.StartRedis(t)
	operate(t, newBed(t, "redis://"+server.Addr+"/0"))

	check := func(url string) (int, map[string]string) {
		r := operator{t: t, url: url}.run("check", "--json")
		return r.code, findings(t, r.stdout)
	}
	do := func(words ...string) {
		t.Helper()
		_, err := server.Do(words...)
		require.NoError(t, err)
	}
	_, got := check("redis://" + server.Addr)
	require.Contains(t, got["server"], "ok: Redis ")
	require.Contains(t, got["server"], "noeviction")
	require.Contains(t, got["server durability"], "warning: appendonly is off")
	require.NotContains(t, got, "server list")

	t.Run("a policy that drops keys", func(t *testing.T) {
		do("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
		defer do("CONFIG", "SET", "maxmemory-policy", "noeviction")
		code, got := check("redis://" + server.Addr)
		require.Equal(t, exitUnsafe, code)
		require.Contains(t, got["redis"], "unsafe: ")
		require.Contains(t, got["redis"], "allkeys-lru")
	})
	t.Run("a user without the right to write", func(t *testing.T) {
		do("ACL", "SETUSER", "reader", "on", ">secret", "~*", "+@read", "+@connection", "+info")
		code, got := check("redis://reader:secret@" + server.Addr)
		require.Equal(t, exitUnsafe, code)
		require.Contains(t, got["use"], "unsafe: reserve a key")
		require.NotContains(t, fmt.Sprint(got), "secret")
	})
	t.Run("a user who may send and not list", func(t *testing.T) {
		do("ACL", "SETUSER", "sender", "on", ">secret", "~*", "+set", "+get", "+del", "+pttl", "+time", "+eval", "+evalsha", "+ping", "+hello", "+client")
		code, got := check("redis://sender:secret@" + server.Addr)
		require.Equal(t, exitDone, code)
		require.Contains(t, got["server"], "warning: it does not tell its maxmemory-policy")
		require.Contains(t, got["server list"], "warning: ")
		require.Contains(t, got["use"], "ok: ")
	})
	t.Run("a server that hangs", func(t *testing.T) {
		server.Stop(t)
		defer server.Continue(t)
		began := time.Now()
		r := operator{t: t, url: "redis://" + server.Addr + "?max_retries=-1&read_timeout=500ms"}.run("show", "a:b", "--timeout", "200ms")
		require.Equal(t, exitFailed, r.code)
		require.Less(t, time.Since(began), 20*time.Second)
	})
}

func TestRedisCluster(t *testing.T) {
	testserver.Require(t)
	cluster := testserver.StartRedisCluster(t, 0)
	b := newBed(t, "redis+cluster://"+cluster.Nodes[0].Addr+"?key_prefix=mail:")
	operate(t, b)
	got := findings(t, b.run("check", "--json").stdout)
	for _, addr := range cluster.Addrs() {
		require.Contains(t, got[addr], "ok: Redis ")
		require.Contains(t, got[addr+" clock"], "ok: ")
	}
	_, err := cluster.Nodes[2].Do("CONFIG", "SET", "maxmemory-policy", "volatile-ttl")
	require.NoError(t, err)
	require.Equal(t, exitUnsafe, b.run("check").code)
}

func TestRedisSentinel(t *testing.T) {
	testserver.Require(t)
	s := testserver.StartRedisSentinels(t)
	addrs := s.Addrs()
	operate(t, newBed(t, fmt.Sprintf("redis+sentinel://%s/0?master_name=%s&addr=%s&addr=%s", addrs[0], s.Name, addrs[1], addrs[2])))
}

func TestMongo(t *testing.T) {
	server := testserver.Mongo(t)
	client, err := mongo.Connect(options.Client().ApplyURI(server.URI))
	require.NoError(t, err)
	database := client.Database(fmt.Sprintf("idemmail_cmd_%d", os.Getpid()))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		database.Drop(ctx) // best effort
		client.Disconnect(ctx)
	})
	storeURL := func(collection string) string {
		base, query, _ := strings.Cut(server.URI, "?")
		scheme, hosts, _ := strings.Cut(base, "://")
		hosts, _, _ = strings.Cut(hosts, "/")
		return scheme + "://" + hosts + "/" + database.Name() + "?" + strings.TrimPrefix(query+"&collection="+url.QueryEscape(collection), "&")
	}
	check := func(collection string) (int, map[string]string) {
		r := operator{t: t, url: storeURL(collection)}.run("check", "--json")
		return r.code, findings(t, r.stdout)
	}

	code, got := check("nowhere")
	require.Equal(t, exitDone, code)
	require.Contains(t, got["collection"], "warning: there is no collection nowhere")

	coll := database.Collection("mail keys")
	require.NoError(t, mongostore.New(coll, mongostore.Options{}).EnsureIndexes(t.Context()))
	operate(t, newBed(t, storeURL("mail keys")))
	_, got = check("mail keys")
	require.Contains(t, got["server"], "ok: MongoDB ")
	require.Contains(t, got["clock"], "ok: ")
	require.Contains(t, got["collection"], "ok: ")

	_, err = coll.Indexes().CreateOne(t.Context(), mongo.IndexModel{Keys: bson.D{{Key: "token", Value: 1}}, Options: options.Index().SetUnique(true).SetName("second")})
	require.NoError(t, err)
	code, got = check("mail keys")
	require.Equal(t, exitUnsafe, code)
	require.Contains(t, got["indexes"], "unsafe: second is unique")
}

func TestPostgres(t *testing.T) {
	server := testserver.StartPostgres(t)
	db, err := sql.Open("pgx", server.URL)
	require.NoError(t, err)
	t.Cleanup(func() { db.Close() })
	do := func(statement string) {
		t.Helper()
		_, err := db.Exec(statement)
		require.NoError(t, err)
	}
	do(`CREATE SCHEMA mail`)
	storeURL := server.URL + "&table=mail.keys"
	check := func() (int, map[string]string) {
		r := operator{t: t, url: storeURL}.run("check", "--json")
		return r.code, findings(t, r.stdout)
	}

	code, got := check()
	require.Equal(t, exitUnsafe, code)
	require.Contains(t, got["table"], "unsafe: there is no table mail.keys")

	store, err := sqlstore.New(db, sqlstore.Options{Dialect: sqlstore.PostgreSQL, Table: "mail.keys"})
	require.NoError(t, err)
	require.NoError(t, store.EnsureSchema(t.Context()))
	operate(t, newBed(t, storeURL))
	code, got = check()
	require.Equal(t, exitDone, code)
	require.Contains(t, got["server"], "ok: PostgreSQL ")
	require.Contains(t, got["clock"], "ok: ")
	require.Contains(t, got["table"], "ok: mail.keys")
	require.Contains(t, got["indexes"], "ok: ")

	do(`ALTER TABLE mail.keys ALTER COLUMN key TYPE text COLLATE "default"`)
	do(`DROP INDEX mail.keys_expires`)
	do(`CREATE UNIQUE INDEX second ON mail.keys (token)`)
	do(`ALTER DATABASE postgres SET synchronous_commit = off`)
	code, got = check()
	require.Equal(t, exitUnsafe, code)
	require.Contains(t, got["table"], "unsafe: mail.keys.key has the collation")
	require.Contains(t, got["indexes"], "unsafe: second is unique")
	require.Contains(t, got["indexes"], "warning: there is none on expires")
	require.Contains(t, got["durability"], "warning: synchronous_commit is off")
}
