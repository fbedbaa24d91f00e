package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

func TestPasswordsAreNeverPrinted(t *testing.T) {
	for _, url := range []string{
		"redis://user:hunter2@127.0.0.1:1/0?max_retries=-1",
		"redis://:hunter2@127.0.0.1:1/0?max_retries=-1",
		"redis://user:hunter2@127.0.0.1:1/0?bogus=1",
		"redis://user:hunter2@127.0.0.1:port/0",
		"redis://user:hunter2@127.0.0.1:1/nodb",
		"redis://user:hun/ter2@127.0.0.1:1/0",
		"redis://user:hun?ter2@127.0.0.1:1/0",
		"redis://user:hun#ter2@127.0.0.1:1/0",
		"redis://user:hun%ter2@127.0.0.1:1/0",
		"redis://user:hun ter2@127.0.0.1:1/0",
		"redis://user:hun\x7fter2@127.0.0.1:1/0",
		"redis://user:hun@ter2@127.0.0.1:1/0?max_retries=-1",
		"redis://user:hun%40ter2@127.0.0.1:1/0?bogus=1",
		"redis+cluster://user:hunter2@127.0.0.1:1?max_retries=-1&max_redirects=-1",
		"redis+cluster://user:hunter2@127.0.0.1:1?bogus=hunter2",
		"redis+sentinel://user:hunter2@127.0.0.1:1/0?master_name=m&username=u&password=sec%20ret&max_retries=-1",
		"redis+sentinel://user:hunter2@127.0.0.1:1/0?master_name=m&password=sec+ret&bogus=1",
		"mongodb://user:hunter2@127.0.0.1:1/db?collection=c&serverSelectionTimeoutMS=50",
		"mongodb://user:hunter2@127.0.0.1:port/db?collection=c",
		"mongodb://user:hunter2@127.0.0.1:1/db",
		"mongodb://user:hunter2@127.0.0.1:1/db?collection=c&authMechanism=bogus",
		"mongodb://user:hun:ter2@127.0.0.1:1/db?collection=c&serverSelectionTimeoutMS=50",
		"mongodb+srv://user:hunter2@127.0.0.1:1/db?collection=c",
		"postgres://user:hunter2@127.0.0.1:1/db",
		"postgres://user:hunter2@127.0.0.1:port/db",
		"postgres://user:hunter2@127.0.0.1:1/db?sslmode=bogus",
		"postgres://user@127.0.0.1:1/db?password=hunter2&sslmode=bogus",
		"postgresql://user:hun%40ter2@127.0.0.1:1/db?table=bad-name",
		"bogus://user:hunter2@127.0.0.1:1/db",
	} {
		t.Run(url, func(t *testing.T) {
			for _, args := range [][]string{{"list"}, {"show", "a:b"}, {"check"}} {
				r := operator{t: t, url: url}.run(append(args, "--timeout", "300ms")...)
				require.Contains(t, []int{exitUsage, exitFailed}, r.code)
				require.NotEmpty(t, r.stderr)
				for _, secret := range []string{"hunter2", "hun/", "hun?", "hun#", "hun%", "hun ", "hun@", "hun:", "ter2", "hun", "sec ret", "sec%20ret", "sec+ret"} {
					require.NotContains(t, r.stdout+r.stderr, secret)
				}
			}
		})
	}
}

func TestStoreURLsThatAreWrong(t *testing.T) {
	for url, want := range map[string]string{
		"":                           "--store",
		"redis":                      "scheme",
		"redis:/127.0.0.1":           "//",
		"mysql://h/db":               "mysql",
		"redis+bogus://h":            "redis+bogus",
		"redis://h/0?key_prefix=":    "key_prefix",
		"redis://h/0?key_prefix=%zz": "key_prefix",
		"redis+sentinel://h/0":       "master_name",
		"redis+sentinel://h/0?master_name=m&replica_only=true":     "replicas",
		"redis+sentinel://h/0?master_name=m&route_by_latency=true": "replicas",
		"redis+sentinel://h/0?master_name=m&route_randomly=true":   "replicas",
		"mongodb://h":                   "collection",
		"mongodb://h/db":                "collection",
		"mongodb://h?collection=c":      "database",
		"mongodb://h/?collection=c":     "database",
		"postgres://h/db?table=no-name": "no-name",
		"sqlite:":                       "PATH",
		"sqlite://host/path":            "host",
		"sqlite:a.db?tables=x":          "table",
		"sqlite:a.db?table=":            "table",
	} {
		r := operator{t: t, url: url}.run("list")
		require.Equal(t, exitUsage, r.code, url)
		require.Contains(t, r.stderr, want, url)
	}
}

func TestStoreFlagComesBeforeTheEnvironment(t *testing.T) {
	b := redisBed(t)
	b.done("orders:1", unknown)
	require.Equal(t, []string{"orders:1"}, listed(t, operator{t: t, url: "bogus://"}.run("list", "--json", "--store", b.url)))
}

func TestRedisURLs(t *testing.T) {
	open := func(url string) redis.UniversalClient {
		t.Helper()
		u, err := parseStoreURL(url)
		require.NoError(t, err)
		_, err = u.take("key_prefix")
		require.NoError(t, err)
		client, err := u.redisClient(&scan{})
		require.NoError(t, err)
		t.Cleanup(func() { client.Close() })
		return client
	}
	single := open("rediss://ada:pass%3F@h:7000/3?read_timeout=2s&key_prefix=x").(*redis.Client).Options()
	require.Equal(t, "h:7000", single.Addr)
	require.Equal(t, "pass?", single.Password)
	require.Equal(t, 3, single.DB)
	require.Equal(t, 2*time.Second, single.ReadTimeout)
	require.NotNil(t, single.TLSConfig)
	require.True(t, single.ContextTimeoutEnabled)

	socket := open("unix:///run/redis.sock?db=2").(*redis.Client).Options()
	require.Equal(t, "/run/redis.sock", socket.Addr)
	require.Equal(t, 2, socket.DB)

	cluster := open("redis+cluster://ada:pass@h:7000?addr=h2:7001&key_prefix=x&addr=h3:7002").(*redis.ClusterClient).Options()
	require.Equal(t, []string{"h:7000", "h2:7001", "h3:7002"}, cluster.Addrs)
	require.Equal(t, "pass", cluster.Password)
	require.Nil(t, cluster.TLSConfig)
	require.True(t, cluster.ContextTimeoutEnabled)
	require.NotNil(t, open("rediss+cluster://h:7000").(*redis.ClusterClient).Options().TLSConfig)

	sentinel := open("rediss+sentinel://h:26379/1?master_name=m&password=pass&addr=h2:26379").(*redis.Client).Options()
	require.Equal(t, 1, sentinel.DB)
	require.Equal(t, "pass", sentinel.Password)
	require.True(t, sentinel.ContextTimeoutEnabled)
}

// Keys of senders with a KeyPrefix are called as those senders call them.
func TestRedisKeyPrefix(t *testing.T) {
	b := redisBed(t)
	prefixed := newBed(t, b.url+"?key_prefix=mail%3A")
	prefixed.done("orders:1", unknown)
	b.done("orders:2", unknown)
	require.Equal(t, []string{"orders:1"}, listed(t, prefixed.run("list", "--json")))
	require.Equal(t, exitDone, prefixed.run("resolve", "orders:1", "--yes").code)
	require.ElementsMatch(t, []string{"orders:2"}, listed(t, b.run("list", "--json")), "mail:orders:1 is settled")
}

// A name that was mistyped makes no database.
func TestSQLiteIsNotMade(t *testing.T) {
	path := t.TempDir() + "/none.db"
	for _, args := range [][]string{{"list"}, {"check"}, {"show", "a:b"}} {
		r := operator{t: t, url: "sqlite:" + path}.run(args...)
		require.Equal(t, exitFailed, r.code)
		require.Contains(t, r.stderr, "unable to open")
	}
	require.NoFileExists(t, path)
}

func TestSQLitePaths(t *testing.T) {
	b := sqliteBed(t)
	b.done("orders:1", unknown)
	path := strings.TrimPrefix(b.url, "sqlite:")
	require.Equal(t, []string{"orders:1"}, listed(t, operator{t: t, url: "sqlite://" + path}.run("list", "--json")))
	dir, file, _ := cutLast(path, "/")
	t.Chdir(dir)
	require.Equal(t, []string{"orders:1"}, listed(t, operator{t: t, url: "sqlite:" + file}.run("list", "--json")))
	r := operator{t: t, url: strings.Replace(b.url, "table=keys", "table=other", 1)}.run("list")
	require.Equal(t, exitFailed, r.code)
	require.Contains(t, r.stderr, "no such table")
}

func cutLast(s, sep string) (before, after string, found bool) {
	i := strings.LastIndex(s, sep)
	return s[:i], s[i+len(sep):], i >= 0
}

func TestPrintable(t *testing.T) {
	require.Equal(t, `a b\tc\u202e\x1b[0m\xffé日本`, cell("a b\tc\u202e\x1b[0m\xffé日本"))
	require.Equal(t, `two\nlines`, cell("two\nlines"))
	require.Equal(t, "-", cell(""))
	a := app{secrets: []string{"hunter2"}}
	require.Equal(t, "two\nlines of ***", a.printable("two\nlines of hunter2"))
	require.True(t, bytes.Contains([]byte(cell("\uFFFD")), []byte("\uFFFD")), "a character that is in the text is shown")
}
