package main

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail/examples/internal/exampletest"
)

func TestMain(m *testing.M) {
	// The workers wait for leases and for the disk, most of the time: many at
	// once, unless the command line says otherwise.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	exampletest.Main(m, main)
}

// An outcome is what became of a mail: how often the provider took it, and the
// state of its jobs.
type outcome struct {
	copies int
	state  string
}

// ordinary is what becomes of the mails of a run without a crash.
var ordinary = map[string][]outcome{
	"order-1001": {{1, done}},
	"order-1002": {{1, done}},   // the provider was busy at first
	"order-1003": {{0, parked}}, // refused
	"order-1004": {{1, parked}}, // its answer was lost
	"order-1005": {{1, done}},
}

// crashes are the steps, and those mails at whose step a crash makes a
// difference. Where it makes none, the outcomes are the ordinary ones.
var crashes = []struct {
	at, mail    string
	atLeastOnce []outcome
	atMostOnce  []outcome
}{
	{at: "before-reserve", mail: "order-1001"},
	{at: "mid-reserve", mail: "order-1001", atMostOnce: []outcome{{1, done}, {0, parked}}},
	{at: "after-reserve", mail: "order-1001", atMostOnce: []outcome{{0, parked}}},
	{at: "mid-send", mail: "order-1001", atMostOnce: []outcome{{0, parked}}},
	// The documented case: taken, and not kept.
	{"after-accept", "order-1001", []outcome{{2, done}}, []outcome{{1, parked}}},
	{"after-accept", "order-1004", []outcome{{2, parked}}, []outcome{{1, parked}}},
	{"before-complete", "order-1001", []outcome{{2, done}}, []outcome{{1, parked}}},
	{"before-complete", "order-1004", []outcome{{2, parked}}, []outcome{{1, parked}}},
	{"mid-complete", "order-1001", []outcome{{1, done}, {2, done}}, []outcome{{1, done}, {1, parked}}},
	{"mid-complete", "order-1004", []outcome{{1, parked}, {2, parked}}, []outcome{{1, parked}}},
	{at: "after-complete", mail: "order-1001"},
	{at: "after-complete", mail: "order-1004"},
	{at: "before-release", mail: "order-1002", atMostOnce: []outcome{{0, parked}}},
	{at: "before-release", mail: "order-1003"},
	{at: "mid-release", mail: "order-1002", atMostOnce: []outcome{{1, done}, {0, parked}}},
	{at: "after-release", mail: "order-1002"},
	{at: "before-ack", mail: "order-1001"},
	{at: "mid-ack", mail: "order-1001"},
	{at: "after-ack", mail: "order-1001"},
	{at: "before-park", mail: "order-1003"},
	{at: "before-park", mail: "order-1004"},
	{at: "mid-park", mail: "order-1004"},
	{at: "after-park", mail: "order-1003"},
}

// Killed at any of its steps, and started again, the worker loses no mail, and
// within the promise sends none twice.
func TestCrash(t *testing.T) {
	tried := make(map[string]bool)
	for _, c := range crashes {
		tried[c.at] = true
		for _, mode := range []struct {
			flag     string
			outcomes []outcome
		}{
			{"-at-most-once=false", c.atLeastOnce},
			{"-at-most-once=true", c.atMostOnce},
		} {
			t.Run(c.at+", "+c.mail+", "+mode.flag, func(t *testing.T) {
				t.Parallel()
				dir := t.TempDir()
				output, exitCode := work(t, dir, mode.flag, "-crash-at", c.at+"/"+c.mail)
				require.Equal(t, -1, exitCode, "killed")
				require.Contains(t, output, c.mail+": killed "+c.at)
				output, exitCode = work(t, dir, mode.flag)
				require.Zero(t, exitCode)

				want := make(map[string][]outcome)
				for mail, outcomes := range ordinary {
					want[mail] = outcomes
				}
				if mode.outcomes != nil {
					want[c.mail] = mode.outcomes
				}
				requireOutcomes(t, dir, want, output)
			})
		}
	}
	for _, step := range steps {
		require.True(t, tried[step], step)
	}
}

func TestWithoutCrash(t *testing.T) {
	for _, mode := range []string{"-at-most-once=false", "-at-most-once=true"} {
		dir := t.TempDir()
		output, exitCode := work(t, dir, mode)
		require.Zero(t, exitCode)
		requireOutcomes(t, dir, ordinary, output)
		require.Contains(t, output, "job 6, order-1001: sent before\n")
	}
}

// Killed at moments that nobody has chosen, again and again.
func TestCrashAtAnyMoment(t *testing.T) {
	const kills = 12
	for _, mode := range []string{"-at-most-once=false", "-at-most-once=true"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			for range kills {
				ctx, cancel := context.WithTimeout(t.Context(), rand.N(400*time.Millisecond))
				out, err := exampletest.Command(ctx, t, nil, "-dir", dir, "-lease", lease, mode).CombinedOutput()
				if ctx.Err() == nil { // it was done before
					require.NoError(t, err, "%s", out)
				}
				cancel()
			}
			output, exitCode := work(t, dir, mode)
			require.Zero(t, exitCode)

			copies, jobs := mailbox(t, dir), open(t, dir)
			require.NotEmpty(t, jobs)
			for _, j := range jobs {
				n := copies[j.order.key()]
				switch {
				case j.state == done:
					require.GreaterOrEqual(t, n, 1, "%+v is lost", j)
				case j.state == parked && j.order.To == refused:
					require.Zero(t, n, "%+v", j)
				case j.state == parked:
					require.Contains(t, output, "unsettled: "+j.order.key()+",", "nobody is told of it")
				default:
					require.Fail(t, "neither done nor parked", "%+v", j)
				}
				most := 1
				if mode == "-at-most-once=false" {
					most += kills
				}
				require.LessOrEqual(t, n, most, "%+v", j)
			}
		})
	}
}

// lease is short, so that the tests need not wait for long.
const lease = "500ms"

func work(t *testing.T, dir string, args ...string) (output string, exitCode int) {
	t.Helper()
	return exampletest.Run(t, nil, append([]string{"-dir", dir, "-lease", lease}, args...)...)
}

// requireOutcomes holds the jobs and the mailbox against what each mail may
// have become.
func requireOutcomes(t *testing.T, dir string, want map[string][]outcome, output string) {
	t.Helper()
	copies, jobs := mailbox(t, dir), open(t, dir)
	require.Len(t, jobs, len(want)+1, "the first mail was enqueued twice")
	for _, j := range jobs {
		mail := j.order.key()
		require.Contains(t, want[mail], outcome{copies[mail], j.state}, "job %d, %s", j.id, mail)
		if j.state == parked {
			require.NotEmpty(t, j.why)
		}
		if j.state == parked && j.order.To != refused {
			require.Contains(t, output, "unsettled: "+mail+",", "nobody is told of it")
		}
	}
}

// mailbox counts what the provider took, by key. All copies of a mail have the
// same Message-ID.
func mailbox(t *testing.T, dir string) map[string]int {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(dir, "mailbox"))
	if !os.IsNotExist(err) {
		require.NoError(t, err)
	}
	copies, ids := make(map[string]int), make(map[string]string)
	for line := range strings.Lines(string(content)) {
		var key, id string
		_, err := fmt.Sscanln(line, &key, &id)
		require.NoError(t, err)
		if copies[key]++; copies[key] == 1 {
			ids[key] = id
		}
		require.Equal(t, ids[key], id)
	}
	return copies
}

// open reads the queue.
func open(t *testing.T, dir string) []*job {
	t.Helper()
	q, err := openQueue(filepath.Join(dir, "queue.jsonl"))
	require.NoError(t, err)
	require.NoError(t, q.close())
	return q.jobs
}
