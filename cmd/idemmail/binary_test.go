package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
)

// The program, as it is built and as a script runs it.
func TestBinary(t *testing.T) {
	program := filepath.Join(t.TempDir(), "idemmail.exe")
	out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput()
	require.NoError(t, err, string(out))
	b := redisBed(t)
	b.done("orders:1", unknown)
	b.done("orders:2", unknown)

	command := func(args ...string) (*exec.Cmd, *bytes.Buffer, *bytes.Buffer) {
		cmd := exec.Command(program, args...)
		cmd.Env = append(os.Environ(), storeVariable+"="+b.url)
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		return cmd, &stdout, &stderr
	}
	run := func(stdin string, args ...string) result {
		t.Helper()
		cmd, stdout, stderr := command(args...)
		cmd.Stdin = strings.NewReader(stdin)
		err := cmd.Run()
		if _, exited := err.(*exec.ExitError); !exited {
			require.NoError(t, err)
		}
		return result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
	}

	require.ElementsMatch(t, []string{"orders:1", "orders:2"}, listed(t, run("", "list", "--json")))
	require.Equal(t, exitUnsettled, run("", "list", "--exit-code").code)
	r := run("n\n", "resolve", "orders:1")
	require.Equal(t, exitNotConfirmed, r.code)
	require.Empty(t, r.stdout)
	require.Equal(t, exitDone, run("y\n", "resolve", "orders:1").code)
	require.Equal(t, idemmail.StatusSent, b.lookup("orders:1").Record.Receipt.Status)
	require.Equal(t, exitRefused, run("", "forget", "orders:1", "--yes").code)
	require.Equal(t, exitNotFound, run("", "show", "orders:3").code)
	require.Equal(t, exitUsage, run("", "show", "orders").code)
	require.Equal(t, exitDone, run("", "check").code)
	require.Equal(t, exitFailed, run("", "list", "--store", "redis://127.0.0.1:1?max_retries=-1").code)
	require.Contains(t, run("", "--version").stdout, "idemmail ")

	t.Run("interrupted while it asks", func(t *testing.T) {
		if runtime.GOOS == "windows" {
			t.Skip("processes cannot be interrupted on Windows")
		}
		cmd, stdout, _ := command("forget", "orders:2")
		stdin, err := cmd.StdinPipe() // stays open: nobody answers
		require.NoError(t, err)
		defer stdin.Close()
		cmd.Stderr = nil
		stderr, err := cmd.StderrPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		var asked bytes.Buffer
		for buf := make([]byte, 512); !strings.Contains(asked.String(), "[y/N]"); {
			n, err := stderr.Read(buf)
			require.NoError(t, err)
			asked.Write(buf[:n])
		}
		require.NoError(t, cmd.Process.Signal(os.Interrupt))
		asked.ReadFrom(stderr)
		require.Error(t, cmd.Wait())
		require.Equal(t, exitNotConfirmed, cmd.ProcessState.ExitCode())
		require.Empty(t, stdout.String())
		require.NotNil(t, b.lookup("orders:2"))
	})
}
