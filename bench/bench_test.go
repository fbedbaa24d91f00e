package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
)

// Everything is measured once, so that it can be when it counts: the servers
// too where the tests have them. What comes out means nothing.
func TestEveryRowIsMeasured(t *testing.T) {
	r := measure(t.Context(), quickScale, time.Now())
	require.NoError(t, r.err())
	folder := t.TempDir()
	require.NoError(t, r.write(folder))

	page, err := os.ReadFile(filepath.Join(folder, "performance.md"))
	require.NoError(t, err)
	for _, f := range r.chapters {
		if os.Getenv("IDEMMAIL_TEST_SERVERS") == "1" && os.Getenv("CI") == "true" {
			require.Empty(t, f.gap, f.chapter.title)
		}
		for _, row := range f.chapter.rows {
			require.Contains(t, string(page), "| "+row.what+" |")
			if f.gap == "" && row.test == "" {
				require.NotEmpty(t, f.samples[row.what], row.what)
			}
		}
		if f.gap != "" {
			require.Contains(t, string(page), f.gap)
		}
	}

	plot, err := os.Open(filepath.Join(folder, "performance.svg"))
	require.NoError(t, err)
	defer plot.Close()
	for decoder := xml.NewDecoder(plot); ; {
		_, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
	}
}

// Each target of the project has its row.
func TestEveryTargetHasARow(t *testing.T) {
	var ids []string
	for _, c := range chapters() {
		for _, row := range c.rows {
			ids = append(ids, row.id)
		}
	}
	require.Subset(t, ids, strings.Fields("F1 F2 F3 F4 S1 S2 S3 S4 S5 S6 D1 D1b D2 D3 D4 R1 R2 R3 R4 R5 M1 P1"))
}

// The tests that count what is not measured are there.
func TestCountingTestsExist(t *testing.T) {
	var source strings.Builder
	for _, pattern := range []string{"../*_test.go", "../*/*_test.go"} {
		files, err := filepath.Glob(pattern)
		require.NoError(t, err)
		for _, file := range files {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			source.Write(text)
		}
	}
	for _, c := range chapters() {
		for _, row := range c.rows {
			if row.test != "" {
				require.True(t, strings.Contains(source.String(), "func "+row.test+"("), row.test)
			}
		}
	}
}

// The floor of a fingerprint is the SHA-256 of the bytes that it hashes.
func TestFloorHashesTheSameBytes(t *testing.T) {
	for _, size := range []int{kilobyte, typical, kilobyte * kilobyte} {
		m := newMessage(size)
		text := canonical(m)
		sum := sha256.Sum256(text)
		require.Equal(t, idemmail.Fingerprint(m), "1:"+hex.EncodeToString(sum[:]))
		require.InDelta(t, size, len(text), 32)
	}
}

func TestMedianOfRounds(t *testing.T) {
	s := series{2, 9, 4, 8}.over(series{1, 3, 4, 2})
	require.Equal(t, sample{1, 2, 3, 4}, s)
	require.Equal(t, 2.5, s.median())
	require.Equal(t, 1.75, s.quantile(0.25))
	require.Equal(t, 4.0, s.quantile(1))
	require.Equal(t, 7.0, newSample(7).median())
}

func TestVerdict(t *testing.T) {
	for _, c := range []struct {
		row      row
		sample   sample
		measured string
		verdict  string
	}{
		{row{atMost: 1.2}, sample{1.1, 1.2, 1.3}, "1.20 x (1.15 to 1.25)", "met"},
		{row{atMost: 1.2, why: "it rains"}, sample{1.3}, "1.30 x", "**missed**: it rains"},
		{row{atLeast: 40}, sample{39.9}, "39.9 x", "**missed**"},
		{row{atLeast: 40}, sample{140}, "140 x", "met"},
		{row{atMost: 720, unit: "bytes"}, sample{567}, "567 bytes", "met"},
		{row{}, sample{1}, "1.00 x", ""},
		{row{atMost: 1}, nil, "not measured", ""},
		{row{test: "TestX"}, nil, "counted by `TestX`", "a test"},
	} {
		require.Equal(t, c.measured, c.row.measured(c.sample))
		require.Equal(t, c.verdict, c.row.verdict(c.sample))
	}
}

// What ends early is said, and cleaned up behind.
func TestStage(t *testing.T) {
	var folder string
	cleaned := 0
	play := func(end func(t testing.TB)) (string, bool) {
		return stage(t.Context(), "play", func(t testing.TB) {
			t.Cleanup(func() { cleaned++ })
			folder = t.TempDir()
			end(t)
		})
	}
	gap, failed := play(func(t testing.TB) { t.Skipf("no %s", "server") })
	require.Equal(t, "no server", gap)
	require.False(t, failed)
	require.NoDirExists(t, folder)
	gap, failed = play(func(t testing.TB) { t.Fatal("broken: ", io.EOF) })
	require.Equal(t, "broken: EOF", gap)
	require.True(t, failed)
	gap, failed = play(func(testing.TB) {})
	require.Empty(t, gap)
	require.False(t, failed)
	require.Equal(t, 3, cleaned)
}
