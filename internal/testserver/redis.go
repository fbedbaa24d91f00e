package testserver

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// redisPatience is how long a server may take to do what it was started for.
const redisPatience = 30 * time.Second

// A Redis is a redis-server of the test's own.
type Redis struct {
	Addr string // host:port

	binary string
	args   []string
	log    string // file
	cmd    *exec.Cmd
	ended  chan struct{} // closed when cmd has
}

// StartRedis starts a redis-server that keeps nothing on disk. args are further
// ones of its command line. It ends with the test.
func StartRedis(t testing.TB, args ...string) *Redis {
	t.Helper()
	return startRedis(t, "redis-server", FreePort(t), append([]string{"--save", "", "--appendonly", "no"}, args...)...)
}

// startRedis starts a server and waits until it answers. args may begin with a
// file of settings.
func startRedis(t testing.TB, binary string, port int, args ...string) *Redis {
	t.Helper()
	path, err := exec.LookPath(binary)
	if err != nil {
		Missing(t, binary, err.Error())
	}
	dir := t.TempDir()
	r := &Redis{
		Addr:   loopback(port),
		binary: path,
		log:    filepath.Join(dir, "log"),
	}
	own := []string{"--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--dir", dir, "--logfile", r.log}
	if len(args) > 0 && !strings.HasPrefix(args[0], "--") {
		r.args = append(append(r.args, args[0]), append(own, args[1:]...)...)
	} else {
		r.args = append(own, args...)
	}
	t.Cleanup(r.Kill)
	r.Start(t)
	return r
}

// Start starts the server, again after Kill, and waits until it answers.
func (r *Redis) Start(t testing.TB) {
	t.Helper()
	cmd := exec.Command(r.binary, r.args...)
	if err := cmd.Start(); err != nil {
		t.Fatalf("cannot start %s: %v", r.binary, err)
	}
	r.cmd = cmd
	r.ended = make(chan struct{})
	go func(cmd *exec.Cmd, ended chan struct{}) {
		_ = cmd.Wait()
		close(ended)
	}(r.cmd, r.ended)
	wait(t, r.binary+" to answer", func() bool {
		select {
		case <-r.ended:
			log, _ := os.ReadFile(r.log)
			t.Fatalf("%s ended at once:\n%s", r.binary, log)
		default:
		}
		answer, err := r.Do("PING")
		return err == nil && answer == "PONG"
	})
}

// Kill ends the server as a crash does. It may be called again.
func (r *Redis) Kill() {
	if r.ended == nil {
		return // it was never started
	}
	_ = r.cmd.Process.Signal(continueSignal)
	_ = r.cmd.Process.Kill()
	<-r.ended
}

// Stop holds the server: connections stay, nothing is answered.
func (r *Redis) Stop(t testing.TB) {
	t.Helper()
	if err := r.cmd.Process.Signal(stopSignal); err != nil {
		t.Fatalf("cannot stop the server: %v", err)
	}
}

// Continue lets a held server go on.
func (r *Redis) Continue(t testing.TB) {
	t.Helper()
	if err := r.cmd.Process.Signal(continueSignal); err != nil {
		t.Fatalf("cannot continue the server: %v", err)
	}
}

// Do sends a command, its words apart, on a connection of its own, and answers
// a reply that is a string or a number; of an array the head alone.
func (r *Redis) Do(words ...string) (string, error) {
	conn, err := net.DialTimeout("tcp", r.Addr, time.Second)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return "", err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(words))
	for _, w := range words {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(w), w)
	}
	if _, err := io.WriteString(conn, b.String()); err != nil {
		return "", err
	}
	answer := bufio.NewReader(conn)
	line, err := answer.ReadString('\n')
	if err != nil {
		return "", err
	}
	kind, text := line[0], strings.TrimRight(line[1:], "\r\n")
	switch kind {
	case '-':
		return "", fmt.Errorf("%s: %s", words[0], text)
	case '$':
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			return "", err
		}
		body := make([]byte, n)
		_, err = io.ReadFull(answer, body)
		return string(body), err
	}
	return text, nil
}

// wait waits until done, or fails the test saying for what it waited.
func wait(t testing.TB, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(redisPatience); !done(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}
