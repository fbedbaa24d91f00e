// Package backend opens the stores that the tests of this module run over, in
// the process of the test and in others that it starts.
package backend

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/idemmail/idemmail"
)

// A Backend is a kind of store.
type Backend struct {
	Name string

	// Start starts what a store keeps its keys in, which ends with the test.
	// It skips the test where that is a real server and none is wanted, or
	// none is to be had (see package testserver).
	Start func(t testing.TB) *Server

	// Scheme is that of the URLs of its servers, dial what opens a store on
	// one.
	Scheme string
	dial   func(url string) (Store, func(), error)
}

// All are the stores of this project. To add one, add its line.
var All = []Backend{
	{"memory", startMemory, "memory", dialMemory},
	{"miniredis", startMiniredis, "redis", dialRedis},
	{"Redis", startRedis, "redis", dialRedis},
	{"MongoDB", startMongo, "mongodb", dialMongo},
	{"PostgreSQL", startPostgres, "postgres", dialPostgres},
	{"SQLite", startSQLite, "sqlite", dialSQLite},
}

// A Store has all the optional interfaces, as those of this project do.
type Store interface {
	idemmail.Store
	idemmail.BatchStore
	idemmail.Renewer
	idemmail.Reconciler
}

// A Server is what stores keep their keys in: a process, a file, or memory.
type Server struct {
	URL  string // for Open and Dial
	Addr string // within URL, where a proxy's may stand instead; empty: there is no network in between

	// What can be done to the server's process; nil where it cannot. While it
	// is held, connections stay and nothing is answered. Killing is a crash;
	// a server that can be restarted has lost nothing that it had confirmed.
	Hold, Continue, Kill, Restart func(t testing.TB)
}

// Shared reports whether other processes can open the URL.
func (s *Server) Shared() bool { return !strings.HasPrefix(s.URL, "memory:") }

// Through answers the URL with another address in place of Addr.
func (s *Server) Through(addr string) string { return strings.Replace(s.URL, s.Addr, addr, 1) }

// Open opens a store with a client of its own, which the end of the test
// closes.
func Open(t testing.TB, url string) Store {
	t.Helper()
	store, hangUp, err := Dial(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(hangUp)
	return store
}

// Dial opens a store with a client of its own, which hangUp closes.
func Dial(url string) (store Store, hangUp func(), err error) {
	scheme, _, _ := strings.Cut(url, ":")
	for _, b := range All {
		if b.Scheme == scheme {
			return b.dial(url)
		}
	}
	return nil, nil, fmt.Errorf("no store has URLs like %q", url)
}

// Wanted are the stores that tests run over here: not miniredis where real
// servers are wanted.
func Wanted() []Backend {
	return slices.DeleteFunc(slices.Clone(All), func(b Backend) bool {
		return b.Name == "miniredis" && os.Getenv("IDEMMAIL_TEST_SERVERS") == "1"
	})
}

// Each runs a test over every store that is wanted, several at a time.
func Each(t *testing.T, test func(t *testing.T, s *Server)) { each(t, "", test) }

// EachShared is Each over the stores that several processes can share.
func EachShared(t *testing.T, test func(t *testing.T, s *Server)) { each(t, "memory", test) }

func each(t *testing.T, except string, test func(t *testing.T, s *Server)) {
	for _, b := range Wanted() {
		if b.Name == except {
			continue
		}
		t.Run(b.Name, func(t *testing.T) {
			t.Parallel()
			test(t, b.Start(t))
		})
	}
}
