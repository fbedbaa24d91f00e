package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/sqlstore"
)

// This file is for -crash-at alone: a real worker has nothing like it.

// steps are those at which a worker can be killed, in their order.
var steps = []string{
	"before-reserve", "mid-reserve", "after-reserve",
	"mid-send", "after-accept",
	"before-complete", "mid-complete", "after-complete",
	"before-release", "mid-release", "after-release",
	"before-ack", "mid-ack", "after-ack",
	"before-park", "mid-park", "after-park",
}

// A crashPoint is a step at which the process is to be killed; the zero value
// is none.
type crashPoint struct {
	step string
	key  string // of which mail; empty: whichever comes first
}

func parseCrash(s string) (crashPoint, error) {
	step, key, _ := strings.Cut(s, "/")
	if s != "" && !slices.Contains(steps, step) {
		return crashPoint{}, fmt.Errorf("-crash-at: no step %q", step)
	}
	return crashPoint{step, key}, nil
}

func (c crashPoint) is(step, key string) bool {
	return c.step == step && (c.key == "" || c.key == key)
}

// at kills the process, by a signal that cannot be caught, if this is the step.
func (c crashPoint) at(step, key string) {
	if !c.is(step, key) {
		return
	}
	fmt.Printf("%s: killed %s\n", key, step)
	self, err := os.FindProcess(os.Getpid())
	if err == nil {
		err = self.Kill()
	}
	if err != nil {
		panic(err)
	}
	select {} // until the signal is there
}

// tearing returns what kills the process when half of a line is written, or
// nil if this is not the step.
func (c crashPoint) tearing(step, key string) func() {
	if !c.is(step, key) {
		return nil
	}
	return func() { c.at(step, key) }
}

// during does something. If this is the step, the process is killed at some
// moment of it, and in any case before during returns.
func (c crashPoint) during(step, key string, do func() error) error {
	if !c.is(step, key) {
		return do()
	}
	go c.at(step, key)
	_ = do()
	select {}
}

// A crashingStore is the worker's store.
type crashingStore struct {
	*sqlstore.Store
	crash crashPoint
}

func (s crashingStore) Reserve(ctx context.Context, key, fingerprint string, lease time.Duration) (token string, held *idemmail.Record, err error) {
	s.crash.at("before-reserve", mailOf(key))
	err = s.crash.during("mid-reserve", mailOf(key), func() error {
		token, held, err = s.Store.Reserve(ctx, key, fingerprint, lease)
		return err
	})
	s.crash.at("after-reserve", mailOf(key))
	return token, held, err
}

func (s crashingStore) Complete(ctx context.Context, key, token string, rec idemmail.Record, ttl time.Duration) error {
	s.crash.at("before-complete", mailOf(key))
	err := s.crash.during("mid-complete", mailOf(key), func() error { return s.Store.Complete(ctx, key, token, rec, ttl) })
	s.crash.at("after-complete", mailOf(key))
	return err
}

func (s crashingStore) Release(ctx context.Context, key, token string) error {
	s.crash.at("before-release", mailOf(key))
	err := s.crash.during("mid-release", mailOf(key), func() error { return s.Store.Release(ctx, key, token) })
	s.crash.at("after-release", mailOf(key))
	return err
}

// mailOf cuts the namespace off.
func mailOf(key string) string {
	_, mail, _ := strings.Cut(key, ":")
	return mail
}
