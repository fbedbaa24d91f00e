//go:build !unix

package mongostore_test

import (
	"os"
	"testing"
)

func pauseProcess(t *testing.T, _ *os.Process) { t.Skip("no way to pause a process here") }
