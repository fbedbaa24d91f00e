package sqlstore_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/sqlstore"
)

// A send and a replay through the store, and the bare statements that they come
// down to, in turn. The ratio is the bare ones' time by the store's.

func BenchmarkSQLite(b *testing.B) { benchmark(b, sqliteServer) }

func BenchmarkPostgreSQL(b *testing.B) { benchmark(b, postgresServer(b)) }

func benchmark(b *testing.B, srv server) {
	db := srv.open(b, srv.dsn(b))
	s := srv.on(b, db)
	bare := newBare(b, srv, db)
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour) // as StoreTimeout gives it
	defer cancel()
	for name, run := range map[string]func(key string) (store, bare func()){
		"send": func(key string) (func(), func()) {
			return func() {
					token, _, err := s.Reserve(ctx, key, "1:f", time.Hour)
					require.NoError(b, err)
					require.NoError(b, s.Complete(ctx, key, token, sent(key), time.Hour))
				}, func() {
					bare.send(ctx, "bare:"+key, sent(key).Receipt)
				}
		},
		"replay": func(key string) (func(), func()) {
			token, _, err := s.Reserve(ctx, key, "1:f", time.Hour)
			require.NoError(b, err)
			require.NoError(b, s.Complete(ctx, key, token, sent(key), time.Hour))
			return func() {
					_, held, err := s.Reserve(ctx, key, "1:f", time.Hour)
					require.NoError(b, err)
					require.NotNil(b, held)
				}, func() {
					bare.replay(ctx, key)
				}
		},
	} {
		b.Run(name, func(b *testing.B) {
			var inStore, inBare, ratios []float64
			for i := range b.N {
				store, bare := run(fmt.Sprintf("bench:%s/%d/%d/%s", name, b.N, i, rand.Text()))
				began := time.Now()
				store()
				mid := time.Now()
				bare()
				inStore = append(inStore, float64(mid.Sub(began)))
				inBare = append(inBare, float64(time.Since(mid)))
				ratios = append(ratios, inBare[i]/inStore[i])
			}
			b.ReportMetric(median(inStore), "ns/store")
			b.ReportMetric(median(inBare), "ns/bare")
			b.ReportMetric(median(ratios), "x")
		})
	}
}

func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}

// bare is what one would write by hand.
type bare struct {
	b                         *testing.B
	db                        *sql.DB
	reserve, complete, lookup string
}

func newBare(b *testing.B, srv server, db *sql.DB) *bare {
	now, p := "CAST(round(unixepoch('now', 'subsec') * 1000) AS INTEGER)", func(int) string { return "?" }
	if srv.dialect == sqlstore.PostgreSQL {
		now, p = "floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint", func(n int) string { return fmt.Sprint("$", n) }
	}
	return &bare{b: b, db: db,
		reserve: "INSERT INTO idemmail AS h (key, format, state, token, fingerprint, at, expires) VALUES (" + p(1) + ", 1, 'pending', " + p(2) + ", " + p(3) + ", " + now + ", " + now + " + " + p(4) + ")" +
			" ON CONFLICT (key) DO UPDATE SET state = 'pending', token = excluded.token, fingerprint = excluded.fingerprint, at = excluded.at, expires = excluded.expires" +
			" WHERE h.expires < " + now + " RETURNING token",
		complete: "UPDATE idemmail SET state = 'done', at = " + now + ", expires = " + now + " + " + p(1) + ", status = " + p(2) + ", receipt = " + p(3) + " WHERE key = " + p(4) + " AND token = " + p(5),
		lookup:   "SELECT state, fingerprint, receipt, at FROM idemmail WHERE key = " + p(1),
	}
}

func (r *bare) send(ctx context.Context, key string, receipt *idemmail.Receipt) {
	token := rand.Text()
	var got string
	require.NoError(r.b, r.db.QueryRowContext(ctx, r.reserve, key, token, "1:f", int64(3600000)).Scan(&got))
	text, err := json.Marshal(receipt)
	require.NoError(r.b, err)
	_, err = r.db.ExecContext(ctx, r.complete, int64(3600000), "sent", string(text), key, token)
	require.NoError(r.b, err)
}

func (r *bare) replay(ctx context.Context, key string) {
	var got, state, fingerprint, text string
	var at int64
	require.ErrorIs(r.b, r.db.QueryRowContext(ctx, r.reserve, key, rand.Text(), "1:f", int64(3600000)).Scan(&got), sql.ErrNoRows)
	require.NoError(r.b, r.db.QueryRowContext(ctx, r.lookup, key).Scan(&state, &fingerprint, &text, &at))
	var receipt idemmail.Receipt
	require.NoError(r.b, json.Unmarshal([]byte(text), &receipt))
}
