package worker

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/idemmail/idemmail"
)

// Patience is how long a worker may take for anything.
const Patience = 60 * time.Second

// A Worker sends what the test tells it to.
type Worker struct {
	PID int // of its process; its Message-IDs begin with it, and a dot

	mu    sync.Mutex // of what follows
	in    *json.Encoder
	sends []*Send // by their ID less one

	end func()
}

// Start starts a worker in another process. It ends with the test, or by Kill.
func Start(t testing.TB, c Config) *Worker {
	t.Helper()
	config, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), ConfigEnv+"="+string(config))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w := &Worker{PID: cmd.Process.Pid, in: json.NewEncoder(in)}
	read := w.read(out)
	w.end = sync.OnceFunc(func() {
		_ = cmd.Process.Kill() // SIGKILL, on Unix
		<-read
		_ = cmd.Wait()
	})
	t.Cleanup(w.end)
	return w
}

// StartHere starts a worker in the test's own process. It ends with the test.
func StartHere(t testing.TB, c Config) *Worker {
	inRead, inWrite := io.Pipe()
	outRead, outWrite := io.Pipe()
	w := &Worker{PID: os.Getpid(), in: json.NewEncoder(inWrite)}
	read := w.read(outRead)
	worked := make(chan error, 1)
	go func() {
		err := work(c, inRead, outWrite)
		outWrite.Close()
		worked <- err
	}()
	w.end = func() {
		inWrite.Close()
		if err := <-worked; err != nil {
			t.Error(err)
		}
		<-read
	}
	t.Cleanup(w.end)
	return w
}

// Kill kills the worker with SIGKILL. It has gone when Kill returns.
func (w *Worker) Kill() { w.end() }

// read takes what the worker tells, until its end.
func (w *Worker) read(out io.Reader) (read chan struct{}) {
	read = make(chan struct{})
	go func() {
		defer close(read)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			var n note
			if json.Unmarshal(lines.Bytes(), &n) != nil {
				continue // cut off by the worker's death
			}
			w.mu.Lock()
			s := w.sends[n.ID-1]
			w.mu.Unlock()
			s.take(n)
		}
	}()
	return read
}

func (w *Worker) tell(r request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	_ = w.in.Encode(r) // it may be dead: then nobody waits for it
}

// A Send is one message that a worker sends.
type Send struct {
	worker *Worker
	id     int

	Key string
	At  time.Time // when the worker was told; it began later

	began, stopped, answered chan struct{} // each closed once it is so

	mu       sync.Mutex // of what follows
	answer   Answer
	observed []idemmail.EventKind
}

// A Message is what to send.
type Message struct {
	Key     string
	Subject string // tells one message from another under a key
	SendAt  time.Time
	Stop    bool // at Config.StopAt
	Deaf    bool // the transport does not heed its context: End must be called
}

// Send has the worker send a message in a mode of its own.
func (w *Worker) Send(mode string, m Message) *Send {
	return w.begin(request{Mode: mode}, m)[0]
}

// SendMany has the worker send the messages in one call of SendMany.
func (w *Worker) SendMany(mode string, ms ...Message) []*Send {
	return w.begin(request{Mode: mode, Batch: true}, ms...)
}

func (w *Worker) begin(r request, ms ...Message) []*Send {
	sends := make([]*Send, len(ms))
	w.mu.Lock()
	for i, m := range ms {
		s := &Send{
			worker: w, id: len(w.sends) + 1, Key: m.Key, At: time.Now(),
			began: make(chan struct{}), stopped: make(chan struct{}), answered: make(chan struct{}),
		}
		w.sends = append(w.sends, s)
		sends[i] = s
		r.Send = append(r.Send, message{ID: s.id, Key: m.Key, Subject: m.Subject, SendAt: m.SendAt, Stop: m.Stop, Deaf: m.Deaf})
	}
	w.mu.Unlock()
	w.tell(r)
	return sends
}

func (s *Send) take(n note) {
	switch {
	case n.Began:
		close(s.began)
	case n.Stopped:
		close(s.stopped)
	case n.Observed != "":
		s.mu.Lock()
		s.observed = append(s.observed, n.Observed)
		s.mu.Unlock()
	case n.Answer != nil:
		s.mu.Lock()
		s.answer = *n.Answer
		s.mu.Unlock()
		close(s.answered)
	}
}

// AwaitBegun waits until the transport was called.
func (s *Send) AwaitBegun(t testing.TB) {
	t.Helper()
	s.await(t, s.began, "the transport to be called")
}

// HasBegun reports whether the transport was called.
func (s *Send) HasBegun() bool { return is(s.began) }

// AwaitStop waits until the send has stopped at Config.StopAt.
func (s *Send) AwaitStop(t testing.TB) {
	t.Helper()
	s.await(t, s.stopped, "the step")
}

// GoOn lets a send that has stopped before or in the middle of a step go on.
func (s *Send) GoOn() { s.worker.tell(request{ID: s.id, GoOn: true}) }

// End tells the transport what becomes of the message.
func (s *Send) End(o Outcome) { s.worker.tell(request{ID: s.id, Outcome: o}) }

// Cancel ends the context of the send.
func (s *Send) Cancel() { s.worker.tell(request{ID: s.id, Cancel: true}) }

// HasAnswer reports whether the send was answered.
func (s *Send) HasAnswer() bool { return is(s.answered) }

// Answered is closed when the send was answered.
func (s *Send) Answered() <-chan struct{} { return s.answered }

// Answer waits for what the send was answered.
func (s *Send) Answer(t testing.TB) Answer {
	t.Helper()
	s.await(t, s.answered, "the answer")
	s.mu.Lock()
	defer s.mu.Unlock()
	slices.Sort(s.answer.Is)
	return s.answer
}

// Observed answers the kinds of events that there were so far.
func (s *Send) Observed() []idemmail.EventKind {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.observed)
}

func (s *Send) await(t testing.TB, c <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(Patience):
		t.Fatalf("key %s: waited in vain for %s", s.Key, what)
	}
}

func is(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
