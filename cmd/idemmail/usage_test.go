package main

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWrongUse(t *testing.T) {
	b := redisBed(t)
	b.done("orders:1", unknown)
	for _, args := range [][]string{
		{"bogus"},
		{"--bogus"},
		{"list", "orders:1"},
		{"list", "--older-than", "soon"},
		{"list", "--older-than"},
		{"show"},
		{"show", "orders:1", "orders:2"},
		{"resolve", "--yes"},
		{"resolve", "orders:1", "--ttl", "0", "--yes"},
		{"resolve", "orders:1", "--ttl", "-1s", "--yes"},
		{"resolve", "orders:1", "--ttl", "1d", "--yes"},
		{"resolve", "orders:1", "--lease", "0", "--yes"},
		{"forget", "orders:1", "--lease", "-1ns", "--yes"},
		{"forget", "orders:1", "--provider-id", "x"},
		{"check", "orders:1"},
		{"list", "--timeout", "0"},
		{"list", "--timeout", "-1s"},
	} {
		r := b.run(args...)
		require.Equal(t, exitUsage, r.code, args)
		require.Empty(t, r.stdout, args)
		require.True(t, strings.HasPrefix(r.stderr, "idemmail: "), r.stderr)
		require.Contains(t, r.stderr, "--help", args)
	}
	require.NotNil(t, b.lookup("orders:1"))
}

func TestHelpNeedsNoStore(t *testing.T) {
	for _, args := range [][]string{{}, {"--help"}, {"help"}, {"list", "--help"}, {"--version"}} {
		r := operator{t: t}.run(args...)
		require.Equal(t, exitDone, r.code, args)
		require.NotEmpty(t, r.stdout, args)
		require.Empty(t, r.stderr, args)
	}
}

// The exit codes are in the help and in the README, and are the same there.
func TestExitCodesAreDocumented(t *testing.T) {
	help := operator{t: t}.run("--help").stdout
	require.Contains(t, help, exitHelp)
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	for code := exitDone; code <= exitUnsettled; code++ {
		number := string(rune('0' + code))
		require.Contains(t, help, "\n  "+number+"  ")
		require.Contains(t, string(readme), "\n| "+number+" | ")
	}
}

func TestAnInterruptEndsAListing(t *testing.T) {
	onEveryBed(t, func(t *testing.T, b *bed) {
		b.done("orders:1", unknown)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		r := b.runContext(ctx, "list")
		require.Equal(t, exitFailed, r.code)
		require.Contains(t, r.stderr, "context canceled")
	})
}

// What cannot be written was not said.
func TestOutputThatCannotBeWritten(t *testing.T) {
	b := redisBed(t)
	b.done("orders:1", unknown)
	for _, args := range [][]string{{"list"}, {"list", "--json"}, {"show", "orders:1"}, {"show", "orders:1", "--json"}, {"check"}, {"check", "--json"}, {"forget", "orders:1", "--dry-run"}} {
		var stderr strings.Builder
		a := app{stdin: strings.NewReader(""), stdout: fullDisk{}, stderr: &stderr, getenv: func(string) string { return b.url }}
		require.Equal(t, exitFailed, a.run(t.Context(), args), args)
		require.Contains(t, stderr.String(), "disk is full")
	}
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errors.New("disk is full") }
