package sqlstore_test

import (
	"bufio"
	"context"
	"database/sql"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/sqlstore"
)

func testRace(t *testing.T, srv server) {
	dsn := srv.dsn(t)
	// Two databases opened, as in two processes.
	stores := []*sqlstore.Store{srv.on(t, srv.open(t, dsn)), srv.on(t, srv.open(t, dsn))}
	for _, kind := range []string{"fresh", "expired pending", "expired done"} {
		for round := range 3 {
			key := fmt.Sprintf("race:%s/%d", kind, round)
			switch kind {
			case "expired pending":
				reserve(t, stores[0], key, time.Millisecond)
			case "expired done":
				finish(t, stores[0], key, sent(key).Receipt, time.Millisecond)
			}
			time.Sleep(10 * time.Millisecond)
			var won, held atomic.Int32
			var group sync.WaitGroup
			start := make(chan struct{})
			for i := range 64 {
				group.Go(func() {
					<-start
					token, record, err := stores[i%2].Reserve(t.Context(), key, "1:new", time.Hour)
					switch {
					case err != nil:
						t.Errorf("reserve: %v", err)
					case token != "" && record == nil:
						won.Add(1)
					case token == "" && record != nil && record.State == idemmail.StatePending &&
						record.Fingerprint == "1:new" && record.Receipt == nil:
						held.Add(1)
					default:
						t.Errorf("token %q, record %+v", token, record)
					}
				})
			}
			close(start)
			group.Wait()
			require.EqualValues(t, 1, won.Load())
			require.EqualValues(t, 63, held.Load())
		}
	}
}

// Batches of the same keys in different orders, of all kinds, at the same time.
func testCrossingBatches(t *testing.T, srv server) {
	s, _ := srv.store(t)
	const keys, rounds = 40, 15
	var group sync.WaitGroup
	var held [keys]atomic.Int32
	for worker := range 4 {
		group.Go(func() {
			for round := range rounds {
				reqs := make([]idemmail.ReserveRequest, keys)
				for i := range reqs {
					n := i
					if worker%2 == 1 {
						n = keys - 1 - i
					}
					reqs[i] = idemmail.ReserveRequest{Key: fmt.Sprintf("cross:%02d", n), Fingerprint: "1:x", Lease: time.Hour}
				}
				var renews []idemmail.RenewRequest
				var releases []idemmail.ReleaseRequest
				for i, r := range s.ReserveMany(t.Context(), reqs) {
					if r.Err != nil {
						t.Errorf("reserve: %v", r.Err)
					}
					if r.Token == "" {
						continue
					}
					n, _ := strconv.Atoi(reqs[i].Key[len("cross:"):])
					if held[n].Add(1) != 1 {
						t.Errorf("two hold %s", reqs[i].Key)
					}
					renews = append(renews, idemmail.RenewRequest{Key: reqs[i].Key, Token: r.Token, Lease: time.Hour})
					releases = append(releases, idemmail.ReleaseRequest{Key: reqs[i].Key, Token: r.Token})
				}
				for i, err := range s.RenewMany(t.Context(), renews) {
					if err != nil {
						t.Errorf("round %d, renew %s: %v", round, renews[i].Key, err)
					}
				}
				for _, r := range releases {
					n, _ := strconv.Atoi(r.Key[len("cross:"):])
					held[n].Add(-1)
				}
				for i, err := range s.ReleaseMany(t.Context(), releases) {
					if err != nil {
						t.Errorf("round %d, release %s: %v", round, releases[i].Key, err)
					}
				}
			}
		})
	}
	group.Wait()
}

const (
	workerEnv  = "IDEMMAIL_SQLSTORE_WORKER" // set in the processes that the tests start
	workerKeys = 1000
)

// A worker is another process, which works on a database.
type worker struct {
	*exec.Cmd
	in  io.Closer
	out *bufio.Scanner
}

func startWorker(t *testing.T, srv server, dsn, job string) worker {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), workerEnv+"="+strings.Join([]string{job, srv.driver, strconv.Itoa(int(srv.dialect)), dsn}, " "))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { cmd.Process.Kill() })
	w := worker{cmd, in, bufio.NewScanner(out)}
	require.True(t, w.out.Scan()) // it is ready
	return w
}

// work is such a process.
func work() int {
	args := strings.Fields(os.Getenv(workerEnv))
	db, err := sql.Open(args[1], args[3])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	db.SetMaxOpenConns(20)
	db.SetMaxIdleConns(20)
	dialect, _ := strconv.Atoi(args[2])
	s, err := sqlstore.New(db, sqlstore.Options{Dialect: sqlstore.Dialect(dialect)})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println("ready")
	bufio.NewReader(os.Stdin).ReadByte() // until all are
	if args[0] == "endless" {
		return workEndless(s)
	}
	return workOnce(s)
}

// workOnce tries with 64 goroutines to send every key, and prints those that
// it sent.
func workOnce(s *sqlstore.Store) int {
	ctx := context.Background()
	var failed atomic.Bool
	var next atomic.Int64
	var group sync.WaitGroup
	for range 64 {
		group.Go(func() {
			for n := next.Add(1); n <= 2*workerKeys; n = next.Add(1) {
				key := fmt.Sprintf("jobs:%d", n%workerKeys)
				token, held, err := s.Reserve(ctx, key, "1:"+key, time.Hour)
				if err == nil && token != "" {
					fmt.Println(key)
					err = s.Complete(ctx, key, token, sent(key), time.Hour)
				}
				if err != nil || token == "" && held == nil {
					fmt.Fprintln(os.Stderr, key, held, err)
					failed.Store(true)
				}
			}
		})
	}
	group.Wait()
	if failed.Load() {
		return 1
	}
	return 0
}

func testTwoProcesses(t *testing.T, srv server) {
	dsn := srv.dsn(t)
	s := srv.on(t, srv.open(t, dsn))
	workers := []worker{startWorker(t, srv, dsn, "once"), startWorker(t, srv, dsn, "once")}
	for _, w := range workers {
		require.NoError(t, w.in.Close()) // start
	}
	sends := map[string]int{}
	share := make([]int, len(workers))
	for i, w := range workers {
		for w.out.Scan() {
			sends[w.out.Text()]++
			share[i]++
		}
		require.NoError(t, w.Wait())
	}
	require.Len(t, sends, workerKeys)
	for key, n := range sends {
		require.Equal(t, 1, n, key)
		require.Equal(t, key, holder(t, s, key).Receipt.ProviderID)
	}
	t.Logf("sent by each process: %v", share)
}

// workEndless reserves and completes keys until it is killed. It prints each
// step once it has done it.
func workEndless(s *sqlstore.Store) int {
	ctx := context.Background()
	for i := 0; ; i++ {
		key := fmt.Sprint("killed:", i)
		token, _, err := s.Reserve(ctx, key, "1:"+key, time.Hour)
		if err == nil {
			fmt.Println("reserved", key, token)
			err = s.Complete(ctx, key, token, sent(key), time.Hour)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		fmt.Println("completed", key, token)
	}
}

// All that a process was told is there after it was killed, and at most what
// it was about to be told is there besides.
func testKilled(t *testing.T, srv server) {
	dsn := srv.dsn(t)
	s := srv.on(t, srv.open(t, dsn))
	for range 3 {
		execute(t, srv.open(t, dsn), "DELETE FROM idemmail")
		w := startWorker(t, srv, dsn, "endless")
		require.NoError(t, w.in.Close())
		steps := map[string][]string{}
		last := 0
		for w.out.Scan() {
			step := strings.Fields(w.out.Text())
			steps[step[1]] = append([]string{step[0]}, step[2])
			if last++; last == 40 {
				require.NoError(t, w.Process.Kill())
			}
		}
		_ = w.Wait()
		require.GreaterOrEqual(t, last, 40)

		// Another process goes on at once, whatever the first had open.
		fresh := srv.on(t, srv.open(t, dsn))
		begun := 0
		for key, step := range steps {
			e, err := fresh.Lookup(t.Context(), key)
			require.NoError(t, err)
			require.NotNil(t, e, key)
			require.Equal(t, step[1], e.Token)
			if step[0] == "completed" {
				require.Equal(t, idemmail.StateDone, e.Record.State, key)
				require.Equal(t, key, e.Record.Receipt.ProviderID)
			} else {
				begun++
				if e.Record.State == idemmail.StatePending {
					require.NoError(t, fresh.Complete(t.Context(), key, e.Token, sent(key), time.Hour), "the owner, come back")
				}
			}
		}
		require.LessOrEqual(t, begun, 1)
		more := 0
		for e, err := range s.Unsettled(t.Context(), "killed:", 0) {
			require.NoError(t, err)
			require.NotContains(t, steps, e.Key)
			more++
		}
		require.LessOrEqual(t, more, 1)
	}
}
