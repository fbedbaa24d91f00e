package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
)

// rows splits a table into its cells.
func rows(table string) [][]string {
	var rows [][]string
	for line := range strings.Lines(table) {
		var cells []string
		for _, c := range strings.Split(strings.TrimSuffix(line, "\n"), "  ") {
			if c = strings.TrimSpace(c); c != "" {
				cells = append(cells, c)
			}
		}
		rows = append(rows, cells)
	}
	return rows
}

func TestListShowsWhatIsUnsettled(t *testing.T) {
	onEveryBed(t, func(t *testing.T, b *bed) {
		b.pending("orders:dead/1")
		b.age(21 * time.Minute)
		b.done("orders:order 1042", unknown)
		b.done("orders:sent/1", idemmail.Receipt{Status: idemmail.StatusSent})
		b.pending("orders:alive/1")
		b.age(90 * time.Second)

		r := b.run("list")
		require.Equal(t, exitDone, r.code, r.stderr)
		require.Empty(t, r.stderr)
		got := rows(r.stdout)
		require.Equal(t, []string{"UNSETTLED FOR", "STATE", "CODE", "TRANSPORT", "PROVIDER ID", "MESSAGE ID", "KEY"}, got[0])
		for i := range got[1:] {
			got[1+i][0], _, _ = strings.Cut(got[1+i][0], "m") // without the seconds
		}
		require.ElementsMatch(t, [][]string{
			{"22", "pending", "-", "-", "-", "-", "orders:dead/1"},
			{"1", "unknown", "idempotency.aborted", "ses", "0100", "abc@example.com", "orders:order 1042"},
		}, got[1:])
	})
}

func TestListColumnsAreAligned(t *testing.T) {
	b := redisBed(t)
	b.done("a:1", unknown)
	b.done("a:2", idemmail.Receipt{Status: idemmail.StatusUnknown, ProviderID: "a very long id, longer than others"})
	lines := strings.Split(strings.TrimSpace(b.run("list").stdout), "\n")
	require.Len(t, lines, 3)
	for _, line := range lines[1:] {
		require.Equal(t, strings.Index(lines[0], "KEY"), strings.Index(line, "a:"), line)
	}
}

func TestListNothing(t *testing.T) {
	onEveryBed(t, func(t *testing.T, b *bed) {
		require.Equal(t, result{}, b.run("list"))
		require.Equal(t, result{}, b.run("list", "--json"))
		require.Equal(t, result{}, b.run("list", "--exit-code"))
		b.terminal = true
		require.Equal(t, result{stderr: "Nothing is unsettled.\n"}, b.run("list"))
	})
}

func TestListOlderThan(t *testing.T) {
	onEveryBed(t, func(t *testing.T, b *bed) {
		b.pending("orders:1")
		b.age(6 * time.Minute)
		b.done("orders:2", unknown) // listed whatever its age
		keys := func(args ...string) []string {
			t.Helper()
			return listed(t, b.run(append([]string{"list", "--json"}, args...)...))
		}
		require.Equal(t, []string{"orders:2"}, keys(), "10 minutes by default")
		require.Equal(t, []string{"orders:2"}, keys("--older-than", "7m"))
		require.ElementsMatch(t, []string{"orders:1", "orders:2"}, keys("--older-than", "5m"))
		require.ElementsMatch(t, []string{"orders:1", "orders:2"}, keys("--older-than", "0"))
		r := b.run("list", "--older-than", "-1s")
		require.Equal(t, exitUsage, r.code)
		require.Contains(t, r.stderr, "--older-than")
	})
}

// listed answers the keys of a listing in JSON.
func listed(t *testing.T, r result) []string {
	t.Helper()
	require.Equal(t, exitDone, r.code, r.stderr)
	var keys []string
	for line := range strings.Lines(r.stdout) {
		var e struct{ Key string }
		require.NoError(t, json.Unmarshal([]byte(line), &e))
		keys = append(keys, e.Key)
	}
	return keys
}

func TestListNamespace(t *testing.T) {
	onEveryBed(t, func(t *testing.T, b *bed) {
		b.done("orders:1", unknown)
		b.done("orders-staging:1", unknown)
		b.done("o*:1", unknown)
		require.Equal(t, []string{"orders:1"}, listed(t, b.run("list", "--json", "--namespace", "orders")))
		require.Equal(t, []string{"o*:1"}, listed(t, b.run("list", "--json", "--namespace", "o*")))
		require.Empty(t, listed(t, b.run("list", "--json", "--namespace", "order")))
		r := b.run("list", "--namespace", "orders:1")
		require.Equal(t, exitUsage, r.code)
		require.Contains(t, r.stderr, "--namespace")
	})
}

func TestListJSON(t *testing.T) {
	onEveryBed(t, func(t *testing.T, b *bed) {
		receipt := unknown
		receipt.Detail = "<timeout> & more"
		b.done("orders:<1>", receipt)
		b.age(90 * time.Second)
		r := b.run("list", "--json")
		require.Equal(t, exitDone, r.code, r.stderr)
		require.Equal(t, 1, strings.Count(r.stdout, "\n"))
		require.Contains(t, r.stdout, "orders:<1>")
		var got entryLine
		require.NoError(t, json.Unmarshal([]byte(r.stdout), &got))
		require.InDelta(t, 90, got.AgeSeconds, 30)
		require.False(t, got.ExpiresAt.IsZero())
		require.Equal(t, entryLine{
			Key: "orders:<1>", State: idemmail.StateDone, AgeSeconds: got.AgeSeconds, ExpiresAt: got.ExpiresAt,
			Fingerprint: "1:f", ProviderKey: idemmail.ProviderKey("orders", "<1>"), Receipt: &receipt,
		}, got)
		require.NotContains(t, r.stdout, b.lookup("orders:<1>").Token)
	})
}

func TestListGoesOnAfterAForeignRecord(t *testing.T) {
	onEveryBed(t, func(t *testing.T, b *bed) {
		b.foreign("orders:a")
		b.done("orders:b", unknown)
		b.foreign("orders:c")

		r := b.run("list")
		require.Equal(t, exitBadRecord, r.code)
		require.Empty(t, r.stderr)
		states := map[string]string{}
		for _, row := range rows(r.stdout)[1:] {
			states[row[6]] = row[1]
			if row[1] == "bad record" {
				require.Contains(t, row[7], "not a record", "its error is shown")
			}
		}
		require.Equal(t, map[string]string{"orders:a": "bad record", "orders:b": "unknown", "orders:c": "bad record"}, states)

		r = b.run("list", "--json", "--exit-code")
		require.Equal(t, exitUnsettled, r.code, "what is unsettled matters more")
		bad := 0
		for line := range strings.Lines(r.stdout) {
			var e entryLine
			require.NoError(t, json.Unmarshal([]byte(line), &e))
			if e.Error != "" {
				bad++
				require.Equal(t, entryLine{Key: e.Key, Error: e.Error}, e)
			}
		}
		require.Equal(t, 2, bad)
	})
}

func TestListExitCode(t *testing.T) {
	b := redisBed(t)
	b.done("orders:1", unknown)
	require.Equal(t, exitDone, b.run("list").code)
	require.Equal(t, exitUnsettled, b.run("list", "--exit-code").code)
}

func TestListManyPages(t *testing.T) {
	onEveryBed(t, func(t *testing.T, b *bed) {
		const n = 2*rowsPerPage + 7
		for i := range n {
			b.done("orders:"+strings.Repeat("x", i), unknown)
		}
		r := b.run("list")
		require.Equal(t, exitDone, r.code, r.stderr)
		require.Equal(t, n, strings.Count(r.stdout, " unknown "))
		require.Equal(t, 1, strings.Count(r.stdout, "STATE"))
		b.terminal = true
		r = b.run("list")
		require.Equal(t, n, strings.Count(r.stdout, " unknown "))
	})
}

func TestListTakesTerminalsNoCommands(t *testing.T) {
	b := redisBed(t)
	b.foreign("orders:\x1b[31mred\nrow\ttab\xff")
	b.done("orders:rtl\u202egnp", idemmail.Receipt{Status: idemmail.StatusUnknown, ProviderID: "a\x1b]0;title\x07"})
	r := b.run("list")
	require.NotContains(t, r.stdout, "\x1b")
	require.NotContains(t, r.stdout, "\u202e")
	require.Equal(t, 3, strings.Count(r.stdout, "\n"))
	require.Contains(t, r.stdout, `orders:\x1b[31mred\nrow\ttab\xff`)
	require.Contains(t, r.stdout, `orders:rtl\u202egnp`)
}
