//go:build unix

package testserver

import (
	"os"
	"syscall"
)

// The signals that hold a process and let it go on.
var stopSignal, continueSignal os.Signal = syscall.SIGSTOP, syscall.SIGCONT
