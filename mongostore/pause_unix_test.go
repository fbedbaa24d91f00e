//go:build unix

package mongostore_test

import (
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// pauseProcess stops the process until the test ends.
func pauseProcess(t *testing.T, p *os.Process) {
	t.Helper()
	require.NoError(t, p.Signal(syscall.SIGSTOP))
	t.Cleanup(func() { p.Signal(syscall.SIGCONT) })
}
