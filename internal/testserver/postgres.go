//go:build unix

package testserver

import (
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A Postgres is a PostgreSQL server of the test's own. Its superuser is
// postgres, who needs no password.
type Postgres struct {
	// URL names its database postgres, where names sort as bytes.
	URL string

	bin, dir   string
	port       string
	credential *syscall.Credential // nil: this process's
	cmd        *exec.Cmd
	ended      chan struct{} // closed when cmd has
}

// StartPostgres makes a database cluster in the test's folder and starts a
// server on it, which ends with the test. Run by root, it does both as the user
// postgres, since PostgreSQL refuses root. It ends the test through [Require]
// or [Missing] where no server is wanted or to be had.
func StartPostgres(t testing.TB) *Postgres {
	t.Helper()
	Require(t)
	bin, err := postgresBin()
	if err != nil {
		Missing(t, "PostgreSQL", err.Error())
	}
	port := FreePort(t)
	dir := t.TempDir()
	p := &Postgres{
		URL:  "postgres://postgres@" + loopback(port) + "/postgres?sslmode=disable",
		bin:  bin,
		dir:  filepath.Join(dir, "data"),
		port: strconv.Itoa(port),
	}
	if os.Getuid() == 0 {
		p.credential = postgresUser(t)
		if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(dir, int(p.credential.Uid), int(p.credential.Gid)); err != nil {
			t.Fatal(err)
		}
	}
	initdb := p.command("initdb", "--pgdata", p.dir, "--username", "postgres", "--auth", "trust",
		"--encoding", "UTF8", "--locale", "C.UTF-8", "--no-sync")
	if out, err := initdb.CombinedOutput(); err != nil {
		t.Fatalf("initdb: %v\n%s", err, out)
	}
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			log, _ := os.ReadFile(p.log())
			t.Logf("PostgreSQL:\n%s", log)
		}
	})
	p.Start(t)
	return p
}

// postgresBin answers the folder of the server's programs: where PATH has them,
// or of the newest version where Debian puts them.
func postgresBin() (string, error) {
	if path, err := exec.LookPath("initdb"); err == nil {
		if path, err = filepath.EvalSymlinks(path); err == nil { // to where the others are
			return filepath.Dir(path), nil
		}
	}
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if err != nil || len(found) == 0 {
		return "", fmt.Errorf("no initdb, neither on PATH nor in /usr/lib/postgresql")
	}
	version := func(initdb string) int {
		n, _ := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(initdb))))
		return n
	}
	newest := slices.MaxFunc(found, func(a, b string) int { return version(a) - version(b) })
	return filepath.Dir(newest), nil
}

func postgresUser(t testing.TB) *syscall.Credential {
	t.Helper()
	u, err := user.Lookup("postgres")
	if err != nil {
		Missing(t, "PostgreSQL", err.Error())
	}
	uid, _ := strconv.Atoi(u.Uid)
	gid, _ := strconv.Atoi(u.Gid)
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
}

func (p *Postgres) command(program string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(p.bin, program), args...)
	cmd.Dir = filepath.Dir(p.dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: p.credential, Setpgid: true} // a ^C is not for it
	return cmd
}

func (p *Postgres) log() string { return p.dir + ".log" }

// Start starts the server, again after Kill, and waits until it answers.
func (p *Postgres) Start(t testing.TB) {
	t.Helper()
	log, err := os.OpenFile(p.log(), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	// It survives a Kill without fsync, which only matters to a machine that dies.
	cmd := p.command("postgres", "-D", p.dir, "-p", p.port, "-c", "listen_addresses=127.0.0.1",
		"-c", "unix_socket_directories=", "-c", "fsync=off", "-c", "shared_buffers=32MB", "-c", "max_connections=200")
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatalf("cannot start PostgreSQL: %v", err)
	}
	p.cmd = cmd
	p.ended = make(chan struct{})
	go func(cmd *exec.Cmd, ended chan struct{}) {
		_ = cmd.Wait()
		close(ended)
	}(p.cmd, p.ended)
	for end := time.Now().Add(60 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if p.command("pg_isready", "--host", "127.0.0.1", "--port", p.port, "--quiet").Run() == nil {
			return
		}
		select {
		case <-p.ended:
			text, _ := os.ReadFile(p.log())
			t.Fatalf("PostgreSQL ended at once:\n%s", text)
		default:
		}
		if time.Now().After(end) {
			t.Fatal("PostgreSQL does not answer")
		}
	}
}

// Kill ends the server and all its processes at once, as a crash does: the next
// Start recovers what was committed. It may be called again.
func (p *Postgres) Kill() {
	if p.ended == nil {
		return // it was never started
	}
	_ = p.signal(syscall.SIGCONT)
	_ = p.cmd.Process.Signal(syscall.SIGQUIT) // of PostgreSQL's own: an immediate shutdown
	select {
	case <-p.ended:
	case <-time.After(20 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.ended
	}
}

// Stop holds the server and all its processes: connections stay, nothing is
// answered.
func (p *Postgres) Stop(t testing.TB) {
	t.Helper()
	if err := p.signal(syscall.SIGSTOP); err != nil {
		t.Fatalf("cannot stop the server: %v", err)
	}
}

// Continue lets a held server go on.
func (p *Postgres) Continue(t testing.TB) {
	t.Helper()
	if err := p.signal(syscall.SIGCONT); err != nil {
		t.Fatalf("cannot continue the server: %v", err)
	}
}

// signal signals the server, which then starts no further process, and those
// that it has started: each has a group of its own.
func (p *Postgres) signal(s syscall.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil {
		return err
	}
	out, err := exec.Command("ps", "-A", "-o", "pid=,ppid=").Output()
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(out)) {
		var pid, parent int
		if _, err := fmt.Sscan(line, &pid, &parent); err != nil {
			return err
		}
		if parent == p.cmd.Process.Pid {
			_ = syscall.Kill(pid, s) // it may have ended
		}
	}
	return nil
}
