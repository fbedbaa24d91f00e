package main

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestRun(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, run(context.Background(), &out))
	t.Log("\n" + out.String())
	lines := strings.Split(out.String(), "\n")
	require.Regexp(t, `^order/1001 +sent +sent before +sent before +1$`, lines[1])
	require.Regexp(t, `^order/1002 +unknown \(ses\.network\) +unknown, left alone +sent before +1$`, lines[2])
	require.Regexp(t, `^order/1003 +failed \(TooManyRequestsException\) +sent +sent before +1$`, lines[3])
	require.Contains(t, out.String(), "1 outcome settled by an event of SES.")
}
