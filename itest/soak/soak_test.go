package soak_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/internal/testserver"
	"github.com/idemmail/idemmail/itest/internal/soak"
	"github.com/idemmail/idemmail/redisstore"
)

// TestSoak prints its figures. IDEMMAIL_SOAK_SENDS is another number of sends.
func TestSoak(t *testing.T) {
	testserver.Require(t)
	count, processes := soak.Scaled(5_000, 1_000_000), soak.Scaled(2, 8)
	if n, err := strconv.Atoi(os.Getenv("IDEMMAIL_SOAK_SENDS")); err == nil {
		count = n
	}
	server := testserver.StartRedis(t)
	p := plan{Addr: server.Addr, Keys: count * duplicateOf / (duplicateOf + 1), Processes: processes}
	fates := make([]fate, p.Keys)
	began := time.Now()
	total, memory := p.start(t, fates)
	took := time.Since(began)

	var doubled, lost, unknowns, untold int
	for key, f := range fates {
		doubled += max(0, int(f.delivered)-1)
		answers := 1
		if key%duplicateOf == 0 {
			answers = 2
		}
		switch {
		case int(f.sent+f.unknown) != answers, f.sent > 0 && f.unknown > 0:
			untold++
		case f.unknown > 0:
			unknowns++
		case f.delivered == 0:
			lost++
		}
	}
	pending, listed := left(t, server.Addr)
	redisMemory := info(t, server, "used_memory_peak")

	t.Logf(`
sends                  %10d  of %d keys by %d processes in %v: %.0f a second
sent                   %10d
replayed               %10d
in flight              %10d  answers; asked again
failed                 %10d  answers; sent again
store failed           %10d  answers; sent again
unknown                %10d  keys, each listed for an operator
panics                 %10d
network faults         %10d
duplicates delivered   %10d
lost                   %10d
keys left pending      %10d
peak memory            %10d  KiB of the largest process
peak memory of Redis   %10d  KiB, %d bytes a key
`,
		total.Sends, p.Keys, processes, took.Round(time.Millisecond), float64(total.Sends)/took.Seconds(),
		total.Sent, total.Replayed, total.InFlight, total.Failed, total.StoreFailed, unknowns, total.Panics, total.NetworkFaults,
		doubled, lost, pending, memory, redisMemory>>10, redisMemory/int64(p.Keys))

	require.Zero(t, doubled, "duplicates delivered")
	require.Zero(t, lost, "lost: answered as sent, or not at all, and not delivered")
	require.Zero(t, pending, "keys left pending")
	require.Zero(t, untold, "each call is told one and the same")
	require.Equal(t, unknowns, listed, "each unknown outcome is listed, and nothing else")
	require.EqualValues(t, count, total.Sends)
	require.NotZero(t, total.NetworkFaults)
	require.NotZero(t, total.Failed)
	require.NotZero(t, unknowns)
	require.Less(t, memory, int64(256<<10), "KiB: a sender's memory does not grow with what it has sent")
}

// start runs the senders, and answers what they counted and the memory of the
// largest at its peak, in KiB.
func (p plan) start(t *testing.T, fates []fate) (total figures, memory int64) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(soak.Scaled(2, 30))*time.Minute)
	defer cancel()
	dir := t.TempDir()
	cmds := make([]*exec.Cmd, p.Processes)
	outputs := make([]bytes.Buffer, p.Processes)
	for i := range cmds {
		p.Process, p.Ledger = i, filepath.Join(dir, fmt.Sprintf("ledger%d", i))
		config, err := json.Marshal(p)
		require.NoError(t, err)
		cmd := exec.CommandContext(ctx, os.Args[0])
		cmd.Env = append(os.Environ(), planEnv+"="+string(config))
		cmd.Stdout, cmd.Stderr = &outputs[i], os.Stderr
		require.NoError(t, cmd.Start())
		cmds[i] = cmd
	}
	for i, cmd := range cmds {
		require.NoError(t, cmd.Wait(), "a sender failed, or was not done in time")
		var f figures
		require.NoError(t, json.Unmarshal(outputs[i].Bytes(), &f))
		total.add(f)
		memory = max(memory, cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss)
		require.NoError(t, readLedger(filepath.Join(dir, fmt.Sprintf("ledger%d", i)), fates))
	}
	return total, memory
}

// left counts the keys that are pending, and those that are done and unknown.
func left(t *testing.T, addr string) (pending, unknown int) {
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer client.Close()
	guard, err := idemmail.NewGuard(idemmail.Options{Store: redisstore.New(client, redisstore.Options{}), Namespace: "soak"})
	require.NoError(t, err)
	for e, err := range guard.Unsettled(t.Context(), 0) {
		require.NoError(t, err)
		if e.Record.State == idemmail.StatePending {
			pending++
		} else {
			unknown++
		}
	}
	return pending, unknown
}

// info answers a number that Redis tells of itself.
func info(t *testing.T, server *testserver.Redis, field string) int64 {
	text, err := server.Do("INFO", "memory")
	require.NoError(t, err)
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), field+":"); ok {
			n, err := strconv.ParseInt(value, 10, 64)
			require.NoError(t, err)
			return n
		}
	}
	t.Fatalf("Redis does not tell %s", field)
	return 0
}
