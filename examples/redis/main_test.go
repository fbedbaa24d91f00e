package main

import (
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail/examples/internal/exampletest"
	"github.com/idemmail/idemmail/internal/testserver"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

func TestMiniredis(t *testing.T) {
	requireOnce(t, "REDIS_URL=")
}

func TestRedis(t *testing.T) {
	testserver.Require(t)
	url := "REDIS_URL=redis://" + testserver.StartRedis(t).Addr
	requireOnce(t, url)
	requireOnce(t, url) // what the first run left is no hindrance
}

// requireOnce runs the example: one worker sends each mail, and the other is
// answered with the receipt.
func requireOnce(t *testing.T, variable string) {
	t.Helper()
	output, exitCode := exampletest.Run(t, []string{variable})
	require.Zero(t, exitCode)
	for _, order := range orders {
		sent := regexp.MustCompile(`worker ([AB]), order `+order+`: sent, queue id (Q\d)\n`).FindAllStringSubmatch(output, -1)
		before := regexp.MustCompile(`worker ([AB]), order `+order+`: sent before, queue id (Q\d)\n`).FindAllStringSubmatch(output, -1)
		require.Len(t, sent, 1)
		require.Len(t, before, 1)
		require.NotEqual(t, sent[0][1], before[0][1])
		require.Equal(t, sent[0][2], before[0][2])
		require.Contains(t, output, "order "+order+": the mail server received it 1 time(s)\n")
	}
}

func TestNoRedis(t *testing.T) {
	output, exitCode := exampletest.Run(t, []string{"REDIS_URL=redis://127.0.0.1:1"})
	require.Equal(t, 1, exitCode)
	require.Contains(t, output, "refused")
}
