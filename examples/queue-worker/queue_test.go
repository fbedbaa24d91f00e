package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// What was written is found again, wherever a crash has cut the last line.
func TestQueue(t *testing.T) {
	name := filepath.Join(t.TempDir(), "queue.jsonl")
	q, err := openQueue(name)
	require.NoError(t, err)
	require.NoError(t, q.add(order{1, "ada@example.org"}, order{2, "bob@example.org"}, order{3, "cay@example.org"}))
	require.NoError(t, q.ack(q.jobs[0]))
	require.NoError(t, q.close())
	before, err := os.ReadFile(name)
	require.NoError(t, err)

	q, err = openQueue(name)
	require.NoError(t, err)
	require.NoError(t, q.park(q.jobs[1], "unknown"))
	require.NoError(t, q.close())
	after, err := os.ReadFile(name)
	require.NoError(t, err)

	for cut := len(before); cut <= len(after); cut++ {
		require.NoError(t, os.WriteFile(name, after[:cut], 0o600))
		q, err := openQueue(name)
		require.NoError(t, err)
		require.Equal(t, done, q.jobs[0].state)
		if cut == len(after) {
			require.Equal(t, job{2, order{2, "bob@example.org"}, parked, "unknown"}, *q.jobs[1])
			require.Equal(t, []*job{q.jobs[2]}, q.pending())
		} else {
			require.Equal(t, job{2, order{2, "bob@example.org"}, pending, ""}, *q.jobs[1])
			require.Equal(t, []*job{q.jobs[1], q.jobs[2]}, q.pending())
		}
		require.NoError(t, q.ack(q.jobs[2]))
		require.NoError(t, q.close())

		q, err = openQueue(name)
		require.NoError(t, err, "the next line does not join the cut one")
		require.Equal(t, done, q.jobs[2].state)
		require.NoError(t, q.close())
	}
}

// A file that makes no sense is left alone.
func TestBadQueue(t *testing.T) {
	for _, content := range []string{
		"{\n",
		`{"job":1,"state":"done"}` + "\n",
		`{"job":1,"state":"pending"}` + "\n",
		`{"job":2,"state":"pending","order":{"id":1}}` + "\n",
		`{"job":1,"state":"pending","order":{"id":1}}` + "\n" + `{"job":1,"state":"odd"}` + "\n",
	} {
		name := filepath.Join(t.TempDir(), "queue.jsonl")
		require.NoError(t, os.WriteFile(name, []byte(content), 0o600))
		_, err := openQueue(name)
		require.Error(t, err, content)
		left, err := os.ReadFile(name)
		require.NoError(t, err)
		require.Equal(t, content, string(left))
	}
}
