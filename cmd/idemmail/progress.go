package main

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// eraseLine takes back what stands on a terminal's line.
const eraseLine = "\r\x1b[K"

// progressAfter is how long a listing runs before it tells how far it is, and
// how often it then does.
const progressAfter = time.Second

// A progress is a line at a terminal's bottom that tells how far a listing is.
// A nil one is silent.
type progress struct {
	out  io.Writer
	text func() string

	mu    sync.Mutex // held by who writes to the terminal
	shown bool
	once  sync.Once // closes stop
	stop  chan struct{}
	ended chan struct{}
}

// startProgress shows the text from a second after now on. It is to be ended.
func startProgress(out io.Writer, text func() string) *progress {
	p := &progress{out: out, text: text, stop: make(chan struct{}), ended: make(chan struct{})}
	go func() {
		defer close(p.ended)
		ticker := time.NewTicker(progressAfter)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				p.mu.Lock()
				fmt.Fprint(p.out, eraseLine, p.text())
				p.shown = true
				p.mu.Unlock()
			case <-p.stop:
				return
			}
		}
	}()
	return p
}

// aside takes the line away while f writes: output and line may be on one
// terminal.
func (p *progress) aside(f func() error) error {
	if p == nil {
		return f()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shown {
		fmt.Fprint(p.out, eraseLine)
		p.shown = false
	}
	return f()
}

// end takes the line away for good. It may be called again.
func (p *progress) end() {
	if p == nil {
		return
	}
	p.once.Do(func() { close(p.stop) })
	<-p.ended
	p.aside(func() error { return nil })
}
