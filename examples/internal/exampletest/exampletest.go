// Package exampletest runs an example as a process of its own, as "go run"
// does, from the example's test.
package exampletest

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// variable makes the test's executable the example.
const variable = "IDEMMAIL_EXAMPLE"

// patience is how long an example may take.
const patience = 2 * time.Minute

// Main is for TestMain: it runs the tests or, in a process that Run or the
// example itself has started, the example.
func Main(m *testing.M, main func()) {
	if os.Getenv(variable) == "" {
		goleak.VerifyTestMain(m) // ends the process
		return
	}
	main()
}

// Command returns the example with the arguments, not yet started. The
// environment is this process's and the variables ("NAME=value").
func Command(ctx context.Context, t *testing.T, variables []string, args ...string) *exec.Cmd {
	t.Helper()
	executable, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	example := exec.CommandContext(ctx, executable, args...)
	example.Env = append(os.Environ(), variable+"=1",
		"GORACE=atexit_sleep_ms=0 "+os.Getenv("GORACE")) // else the race detector waits a second before it ends
	example.Env = append(example.Env, variables...)
	example.WaitDelay = time.Second // for the output of processes that it left behind
	return example
}

// Run runs it, and returns what it printed and its exit code, -1 where it was
// killed.
func Run(t *testing.T, variables []string, args ...string) (output string, exitCode int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	example := Command(ctx, t, variables, args...)
	out, err := example.CombinedOutput()
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	if ctx.Err() != nil {
		t.Fatalf("not done after %v:\n%s", patience, out)
	}
	t.Logf("exit code %d:\n%s", example.ProcessState.ExitCode(), out)
	return string(out), example.ProcessState.ExitCode()
}
