package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"
)

// A host stands in for a test, so that the servers of package testserver can be
// started outside of one. It has those methods of a test that they and the
// measurements call; the others panic.
type host struct {
	testing.TB
	ctx      context.Context
	name     string
	folders  string // holds the temporary ones
	made     int    // of them
	cleanups []func()
	failed   bool
	gap      string // why it ended early; empty: it did not
}

// stage runs what needs a test, in a goroutine of its own since it may be ended
// by Skip or Fatal, and cleans up behind it. It answers why it ended early, and
// whether that was a failure.
func stage(ctx context.Context, name string, play func(t testing.TB)) (gap string, failed bool) {
	h := &host{ctx: ctx, name: name}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer h.cleanUp()
		play(h)
	}()
	<-done
	return h.gap, h.failed
}

func (h *host) cleanUp() {
	for i := len(h.cleanups) - 1; i >= 0; i-- {
		h.cleanups[i]()
	}
	if h.folders != "" {
		os.RemoveAll(h.folders)
	}
}

func (h *host) Helper()                  {}
func (h *host) Name() string             { return h.name }
func (h *host) Context() context.Context { return h.ctx }
func (h *host) Failed() bool             { return h.failed }
func (h *host) Cleanup(f func())         { h.cleanups = append(h.cleanups, f) }

func (h *host) Log(args ...any)                 { fmt.Fprintln(os.Stderr, args...) }
func (h *host) Logf(format string, args ...any) { h.Log(fmt.Sprintf(format, args...)) }

func (h *host) Fatal(args ...any) {
	h.failed = true
	h.Skip(args...)
}

func (h *host) Fatalf(format string, args ...any) { h.Fatal(fmt.Sprintf(format, args...)) }

func (h *host) Skip(args ...any) {
	h.gap = fmt.Sprint(args...)
	runtime.Goexit()
}

func (h *host) Skipf(format string, args ...any) { h.Skip(fmt.Sprintf(format, args...)) }

// TempDir makes a folder within one of this host's own: servers that run as
// another user must be let through that one.
func (h *host) TempDir() string {
	if h.folders == "" {
		made, err := os.MkdirTemp("", "idemmail-bench-")
		if err != nil {
			h.Fatal(err)
		}
		h.folders = made
	}
	h.made++
	dir := filepath.Join(h.folders, strconv.Itoa(h.made))
	if err := os.Mkdir(dir, 0o755); err != nil {
		h.Fatal(err)
	}
	return dir
}
