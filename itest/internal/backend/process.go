//go:build unix

package backend

import (
	"os"
	"syscall"
	"testing"
)

// holding answers what holds a process and lets it go on.
func holding(p *os.Process) (hold, goOn func(t testing.TB)) {
	signal := func(s os.Signal) func(t testing.TB) {
		return func(t testing.TB) {
			t.Helper()
			if err := p.Signal(s); err != nil {
				t.Fatal(err)
			}
		}
	}
	return signal(syscall.SIGSTOP), signal(syscall.SIGCONT)
}
