package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail/examples/internal/exampletest"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

func TestExample(t *testing.T) {
	output, exitCode := exampletest.Run(t, nil)
	require.Zero(t, exitCode)
	lines := strings.Split(output, "\n")
	for i, line := range []string{
		`order/1, confirmation .* 1 +0 +sent by A +closed`,
		`order/2, confirmation .* 3 +0 +sent by A +closed`,
		`order/3, confirmation .* 3 +1 +sent by B +closed`,
		`order/4, confirmation .* 1 +1 +sent by B +closed`,
		`order/5, confirmation .* 1 +0 +unknown +closed`,
		`order/1, confirmation .* 0 +0 +sent before by A +closed`,
		`order/1, reminder .* 0 +0 +key reused +closed`,
		`order/5, confirmation .* 0 +0 +unknown, left alone +closed`,
		`order/6, confirmation .* 3 +3 +failed, try later +closed`,
		`order/7, confirmation .* 3 +3 +failed, try later +open`,
		`order/8, confirmation .* 0 +0 +not sent, try later +open`,
	} {
		require.Regexp(t, "^"+line+"$", lines[i+1])
	}
}
