package testserver

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A MongoServer is a running MongoDB, or what stands in for one.
type MongoServer struct {
	URI string

	// Process is the server's, for tests that stop or kill it; nil for a
	// server that was running already.
	Process *os.Process
}

// Mongo answers the server that MONGODB_URI names; else it starts the mongod on
// PATH; else the stand-in, mongo-java-server, which Maven fetches once into the
// user's cache folder. It ends the test through [Require] or [Missing] where no
// server is wanted or to be had.
//
// Use a database of your own name in it: the server may be somebody's.
func Mongo(t testing.TB) *MongoServer {
	t.Helper()
	Require(t)
	if uri := os.Getenv("MONGODB_URI"); uri != "" {
		return &MongoServer{URI: uri}
	}
	if program, err := exec.LookPath("mongod"); err == nil {
		return startMongod(t, program)
	}
	classpath, err := mongoStandIn()
	if err != nil {
		Missing(t, "MongoDB", "no MONGODB_URI, no mongod on PATH, no stand-in: "+err.Error())
	}
	return startMongoStandIn(t, classpath)
}

func startMongod(t testing.TB, program string) *MongoServer {
	t.Helper()
	address := loopback(FreePort(t))
	_, port, _ := net.SplitHostPort(address)
	cmd := exec.Command(program, "--dbpath", t.TempDir(), "--bind_ip", "127.0.0.1", "--port", port, "--nounixsocket")
	start(t, cmd)
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		c, err := net.Dial("tcp", address)
		if err == nil {
			c.Close()
			return &MongoServer{URI: "mongodb://" + address, Process: cmd.Process}
		}
		if time.Now().After(deadline) {
			t.Fatalf("mongod does not answer: %v", err)
		}
	}
}

func startMongoStandIn(t testing.TB, classpath string) *MongoServer {
	t.Helper()
	cmd := exec.Command("java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", classpath, "StandIn")
	// Never written to: its end, at the latest when this process dies, ends the server.
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	start(t, cmd)
	port, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		cmd.Process.Kill()
		cmd.Wait()
		t.Fatalf("the MongoDB stand-in did not start: %v\n%s", err, &stderr)
	}
	return &MongoServer{URI: "mongodb://127.0.0.1:" + strings.TrimSpace(port), Process: cmd.Process}
}

// start starts the server and has it killed and waited for when the test ends.
func start(t testing.TB, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
}

// mongoFiles are the stand-in's launcher, and the list of what it needs.
//
//go:embed mongo/pom.xml mongo/StandIn.java
var mongoFiles embed.FS

// mongoStandIn answers the class path of the stand-in, which it fetches and
// compiles where that was not done before.
func mongoStandIn() (classpath string, err error) {
	for _, program := range []string{"java", "javac", "mvn"} {
		if _, err := exec.LookPath(program); err != nil {
			return "", err
		}
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	cache = filepath.Join(cache, "idemmail")

	// The folder is named by what it is made of, so that a change makes a new
	// one, and is moved there whole, so that another process sees all or nothing.
	pom, _ := mongoFiles.ReadFile("mongo/pom.xml")
	launcher, _ := mongoFiles.ReadFile("mongo/StandIn.java")
	sum := sha256.Sum256(append(pom, launcher...))
	home := filepath.Join(cache, "mongo-stand-in-"+hex.EncodeToString(sum[:8]))
	classpath = filepath.Join(home, "lib", "*") + string(os.PathListSeparator) + home
	if _, err := os.Stat(home); err == nil {
		return classpath, nil
	}

	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	work, err := os.MkdirTemp(cache, "mongo-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	if err := os.CopyFS(work, mongoFiles); err != nil {
		return "", err
	}
	work = filepath.Join(work, "mongo")

	// A local repository of its own: two Mavens must not write into one.
	err = run(work, "mvn", "-q", "-B", "-Dmaven.repo.local="+filepath.Join(work, "repository"),
		"org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies", "-DoutputDirectory=made/lib")
	if err != nil {
		return "", err
	}
	err = run(work, "javac", "-d", "made", "-cp", filepath.Join("made", "lib", "*"), "StandIn.java")
	if err != nil {
		return "", err
	}
	err = os.Rename(filepath.Join(work, "made"), home)
	if _, exists := os.Stat(home); exists == nil {
		return classpath, nil // made by this process or, meanwhile, by another
	}
	return "", err
}

func run(dir, program string, args ...string) error {
	cmd := exec.Command(program, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return fmt.Errorf("%s: %w: %s", program, err, bytes.TrimSpace(out))
	}
	return err
}
