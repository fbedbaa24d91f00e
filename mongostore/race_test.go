package mongostore_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/mongostore"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

func TestOneOf64TakersWins(t *testing.T) {
	srv := server(t)
	for _, kind := range []string{"fresh", "expired pending", "expired done"} {
		t.Run(kind, func(t *testing.T) {
			coll := collection(t, srv.URI)
			first := newStore(coll)
			// Two stores, as in two processes; both see the first one's lease as over.
			stores := []*mongostore.Store{newStore(coll), newStore(same(t, srv.URI, coll))}
			for round := range 5 {
				key := fmt.Sprintf("race:%s/%d", kind, round)
				if kind != "fresh" {
					old := reserve(t, first, key, time.Minute)
					if kind == "expired done" {
						require.NoError(t, first.Complete(t.Context(), key, old, sent(key), time.Minute))
					}
				}
				for _, s := range stores {
					if kind != "fresh" && round == 0 {
						s.Advance(time.Hour)
					}
				}
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
		})
	}
}

func TestReserveAndReleaseUnderContention(t *testing.T) {
	s := newStore(collection(t, server(t).URI))
	var inside, turns atomic.Int32
	var group sync.WaitGroup
	for range 16 {
		group.Go(func() {
			for done := 0; done < 5; {
				token, _, err := s.Reserve(t.Context(), "busy:key", "1:x", time.Hour)
				if err != nil {
					t.Errorf("reserve: %v", err)
					return
				}
				if token == "" {
					continue
				}
				if inside.Add(1) != 1 {
					t.Error("two owners at once")
				}
				turns.Add(1)
				done++
				inside.Add(-1)
				if err := s.Release(t.Context(), "busy:key", token); err != nil {
					t.Errorf("release: %v", err)
				}
			}
		})
	}
	group.Wait()
	require.EqualValues(t, 16*5, turns.Load())
}

const (
	workerEnv  = "IDEMMAIL_MONGOSTORE_WORKER" // set in the processes that TestTwoProcesses starts
	workerKeys = 1000
)

func TestTwoProcessesSendEachOfAThousandKeysOnce(t *testing.T) {
	srv := server(t)
	coll := collection(t, srv.URI)
	type process struct {
		*exec.Cmd
		in  io.Closer
		out *bufio.Scanner
	}
	var workers []process
	for range 2 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), workerEnv+"="+strings.Join([]string{srv.URI, coll.Database().Name(), coll.Name()}, " "))
		cmd.Stderr = os.Stderr
		in, err := cmd.StdinPipe()
		require.NoError(t, err)
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		t.Cleanup(func() { cmd.Process.Kill() })
		workers = append(workers, process{cmd, in, bufio.NewScanner(out)})
	}
	for _, w := range workers {
		require.True(t, w.out.Scan()) // it is ready
	}
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
	}
	t.Logf("sent by each process: %v", share)
}

// work is such a process: 64 goroutines that try to send every key, and print
// those that they sent.
func work() int {
	args := strings.Fields(os.Getenv(workerEnv))
	client, err := mongo.Connect(options.Client().ApplyURI(args[0]))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	s := newStore(client.Database(args[1]).Collection(args[2]))
	ctx := context.Background()
	fmt.Println("ready")
	bufio.NewReader(os.Stdin).ReadByte() // until both are

	var failed atomic.Bool
	var next atomic.Int64
	var group sync.WaitGroup
	for range 64 {
		group.Go(func() {
			for n := next.Add(1); n <= 2*workerKeys; n = next.Add(1) {
				key := fmt.Sprintf("jobs:%d", n%workerKeys)
				token, held, err := s.Reserve(ctx, key, "1:"+key, time.Minute)
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
