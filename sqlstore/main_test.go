package sqlstore_test

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	_ "github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/internal/testserver"
	"github.com/idemmail/idemmail/sqlstore"
)

func TestMain(m *testing.M) {
	if os.Getenv(workerEnv) != "" {
		os.Exit(work())
	}
	goleak.VerifyTestMain(m)
}

// A server makes databases to test on.
type server struct {
	dialect sqlstore.Dialect
	driver  string
	dsn     func(t testing.TB) string // of a new, empty database
}

// A test of this package that needs a database.
type test struct {
	name string
	run  func(t *testing.T, srv server)
}

// Those that concern both kinds.
var tests = []test{
	{"contract", testContract},
	{"every value of the golden rows", testGolden},
	{"rows that are not records are bad records and untouched", testForeign},
	{"durations", testDurations},
	{"a lease is never shorter than asked for", testNeverEarly},
	{"texts that a database would refuse or change", testTexts},
	{"a taken-over row shows nothing of the old", testTakenOver},
	{"many keys of each fate", testFates},
	{"batches take a constant number of statements", testBatchStatements},
	{"statements of each call", testStatements},
	{"a driver that writes twice meets itself", testOwnToken},
	{"a holder that is gone when it is read", testVanished},
	{"a holder that is gone each time ends in an error", testUnsteady},
	{"a lost answer frees the key", testLostAnswer},
	{"a call returns when its context ends", testHangs},
	{"a call that waits for a connection returns when its context ends", testPoolExhausted},
	{"names of tables", testTables},
	{"schema races", testSchemaRace},
	{"delete expired", testDeleteExpired},
	{"delete expired leaves what is taken over meanwhile", testDeleteExpiredRace},
	{"listing holds no connection", testListing},
	{"guard reconciles", testGuardReconciles},
	{"a reservation stands if and only if the transaction is committed", testTransaction},
	{"an order and its mail", testOrder},
	{"one reservation is taken up once", testClaimOnce},
	{"a reservation that is not to be taken up", testClaimRefused},
	{"a transaction that waits for another", testTransactionsWait},
	{"others wait for a transaction", testOthersWait},
	{"one of 64 takers wins", testRace},
	{"batches that cross do not wait for each other", testCrossingBatches},
	{"two processes send each of a thousand keys once", testTwoProcesses},
	{"a process that is killed", testKilled},
}

func TestSQLite(t *testing.T) {
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) { test.run(t, sqliteServer) })
	}
}

var postgresTests = []test{
	{"a reserve that waits for longer than its lease", testWaitOutlastsLease},
	{"settings of the database", testSerializable},
	{"a transaction that sees what was", testRepeatableRead},
	{"a statement that waits for a row judges what it has become", testWaitsForRow},
	{"a locked table", testLocked},
}

func TestPostgreSQL(t *testing.T) {
	srv := postgresServer(t)
	for _, test := range slices.Concat(tests, postgresTests) {
		t.Run(test.name, func(t *testing.T) { test.run(t, srv) })
	}
}

var sqliteServer = server{
	dialect: sqlstore.SQLite,
	driver:  "sqlite",
	dsn: func(t testing.TB) string {
		return "file:" + filepath.Join(t.TempDir(), "keys.db") + "?_pragma=journal_mode(WAL)&_pragma=busy_timeout(5000)"
	},
}

var databases atomic.Int64

// postgresServer starts a server. Names in its databases sort by the rules of
// a language, which must not matter.
func postgresServer(t testing.TB) server {
	t.Helper()
	p := testserver.StartPostgres(t)
	admin, err := sql.Open("pgx", p.URL)
	require.NoError(t, err)
	t.Cleanup(func() { admin.Close() })
	return server{
		dialect: sqlstore.PostgreSQL,
		driver:  "pgx",
		dsn: func(t testing.TB) string {
			name := fmt.Sprint("test", databases.Add(1))
			_, err := admin.ExecContext(t.Context(),
				"CREATE DATABASE "+name+" TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE 'de-DE' LOCALE 'C.UTF-8'")
			require.NoError(t, err)
			u, err := url.Parse(p.URL)
			require.NoError(t, err)
			u.Path = "/" + name
			return u.String()
		},
	}
}

// open opens a database, again as another process would.
func (srv server) open(t testing.TB, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open(srv.driver, dsn)
	require.NoError(t, err)
	db.SetMaxOpenConns(20)
	db.SetMaxIdleConns(20)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}

// store answers a store on a new database, and the database.
func (srv server) store(t testing.TB) (*sqlstore.Store, *sql.DB) {
	t.Helper()
	db := srv.open(t, srv.dsn(t))
	return srv.on(t, db), db
}

// on answers a store on a database, whose table it makes.
func (srv server) on(t testing.TB, db *sql.DB) *sqlstore.Store {
	t.Helper()
	s, err := sqlstore.New(db, sqlstore.Options{Dialect: srv.dialect})
	require.NoError(t, err)
	require.NoError(t, s.EnsureSchema(context.Background()))
	return s
}

// reserve takes a key that must be free.
func reserve(t testing.TB, s *sqlstore.Store, key string, lease time.Duration) (token string) {
	t.Helper()
	token, held, err := s.Reserve(context.Background(), key, "1:"+key, lease)
	require.NoError(t, err)
	require.Nil(t, held)
	require.NotEmpty(t, token)
	return token
}

// holder answers what holds a key that must be held.
func holder(t testing.TB, s *sqlstore.Store, key string) *idemmail.Record {
	t.Helper()
	token, held, err := s.Reserve(context.Background(), key, "1:another", time.Minute)
	require.NoError(t, err)
	require.Empty(t, token)
	require.NotNil(t, held)
	return held
}

// sent is a done record of a message that was sent.
func sent(key string) idemmail.Record {
	return idemmail.Record{
		State: idemmail.StateDone, Fingerprint: "1:" + key,
		Receipt: &idemmail.Receipt{Status: idemmail.StatusSent, ProviderID: key, At: time.Date(2026, 3, 4, 5, 6, 7, 89e6, time.UTC)},
	}
}

func unknown(key string) idemmail.Record {
	r := sent(key)
	r.Receipt.Status = idemmail.StatusUnknown
	return r
}
