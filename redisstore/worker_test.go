package redisstore_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/redisstore"
)

// workerEnv has this test binary work as one of several processes: it holds
// the addresses of the servers, with commas between.
const workerEnv = "IDEMMAIL_REDISSTORE_WORKER"

const (
	workers       = 2
	workerSenders = 32 // goroutines of each
	workerKeys    = 1000
)

// work sends each of many keys from many goroutines until each has its
// receipt, and prints the keys that it sent.
func work() int {
	client := redis.NewUniversalClient(&redis.UniversalOptions{Addrs: strings.Split(os.Getenv(workerEnv), ",")})
	defer client.Close()
	guard, err := idemmail.NewGuard(idemmail.Options{
		Store:        redisstore.New(client, redisstore.Options{}),
		Namespace:    "race",
		StoreTimeout: time.Minute,
		WaitInFlight: time.Minute,
		Logger:       slog.New(slog.DiscardHandler),
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	// All processes begin when the test says so.
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	var mu sync.Mutex // of the output
	var all sync.WaitGroup
	for range workerSenders {
		all.Go(func() {
			for _, i := range rand.Perm(workerKeys) {
				key := strconv.Itoa(i)
				r, err := guard.Do(context.Background(), key, "", func(context.Context) (*idemmail.Receipt, error) {
					mu.Lock()
					defer mu.Unlock()
					fmt.Println("sent", key)
					return nil, nil
				})
				if err != nil || r.Status != idemmail.StatusSent {
					mu.Lock()
					fmt.Println("failed", key, err)
					mu.Unlock()
				}
			}
		})
	}
	all.Wait()
	return 0
}

// testProcesses has processes race for the same keys: each is sent once.
func testProcesses(t *testing.T, addrs []string) {
	var outputs [workers]strings.Builder
	var cmds [workers]*exec.Cmd
	var begin []io.Writer
	for i := range cmds {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), workerEnv+"="+strings.Join(addrs, ","))
		cmd.Stdout, cmd.Stderr = &outputs[i], os.Stderr
		stdin, err := cmd.StdinPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		cmds[i] = cmd
		begin = append(begin, stdin)
	}
	_, err := io.WriteString(io.MultiWriter(begin...), "\n")
	require.NoError(t, err)
	sent := map[string]int{}
	for i, cmd := range cmds {
		require.NoError(t, cmd.Wait())
		n := 0
		for line := range strings.Lines(outputs[i].String()) {
			key, ok := strings.CutPrefix(strings.TrimSpace(line), "sent ")
			require.True(t, ok, line)
			sent[key]++
			n++
		}
		t.Logf("process %d sent %d", i, n)
		require.NotZero(t, n, "each process must have taken part")
	}
	require.Len(t, sent, workerKeys)
	for key, n := range sent {
		require.Equal(t, 1, n, "key %s was sent more than once", key)
	}
}
