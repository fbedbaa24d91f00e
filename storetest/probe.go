package storetest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/idemmail/idemmail"
)

// A probe is what a rule works with: a store, keys of its own, and a list of
// what the store did wrong. A rule goes on after a failf, so that it tells all
// it can, and ends with a stopf where what follows would mean nothing.
type probe struct {
	ctx     context.Context
	store   idemmail.Store
	advance func(time.Duration)
	prefix  string // of all keys of this rule in this run

	mu       sync.Mutex
	made     int           // keys
	advanced time.Duration // by advance, so far
	broken   []error
	skipped  string // why the rule does not concern the store
	opened   bool   // there is a store
}

// failf notes what the store did wrong.
func (p *probe) failf(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.broken = append(p.broken, fmt.Errorf(format, args...))
}

// stopf notes what the store did wrong and ends the rule. It must be called on
// the rule's own goroutine.
func (p *probe) stopf(format string, args ...any) {
	p.failf(format, args...)
	panic(stop{})
}

type stop struct{}

// guard calls f and notes a panic or a runtime.Goexit in it, other than by
// stopf, as the store's.
func (p *probe) guard(f func()) {
	returned := false
	defer func() {
		switch v := recover(); {
		case returned, v == stop{}:
		case v != nil:
			p.failf("panic: %v\n%s", v, debug.Stack())
		default:
			p.failf("the store ended the goroutine that called it")
		}
	}()
	f()
	returned = true
}

// key makes a new key.
func (p *probe) key() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.made++
	return p.prefix + strconv.Itoa(p.made)
}

// keys makes n new keys.
func (p *probe) keys(n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = p.key()
	}
	return keys
}

// ask is Reserve where an error ends the rule. The record is not nil where the
// key was held; only then is the token to be looked at.
func (p *probe) ask(key, fingerprint string, lease time.Duration) (token string, held *idemmail.Record) {
	token, held, err := p.store.Reserve(p.ctx, key, fingerprint, lease)
	if err != nil {
		p.stopf("Reserve(%q, lease %v): %w", key, lease, err)
	}
	return token, held
}

// try reserves a key that must be free.
func (p *probe) try(key, fingerprint string, lease time.Duration) (token string, err error) {
	token, held, err := p.store.Reserve(p.ctx, key, fingerprint, lease)
	switch {
	case err != nil:
		return "", fmt.Errorf("Reserve(%q, lease %v): %w", key, lease, err)
	case held != nil:
		return "", fmt.Errorf("Reserve(%q) must find the key free; it was answered %s", key, show(held))
	case token == "":
		return "", fmt.Errorf("Reserve(%q) must find the key free; it was answered no token", key)
	}
	return token, nil
}

// take is try where an error ends the rule.
func (p *probe) take(key string, lease time.Duration) (token string) {
	return p.takeFor(mine, key, lease)
}

// takeFor is take with a fingerprint.
func (p *probe) takeFor(fingerprint, key string, lease time.Duration) (token string) {
	token, err := p.try(key, fingerprint, lease)
	if err != nil {
		p.stopf("%w", err)
	}
	return token
}

// free notes whether the key is not free. It takes it.
func (p *probe) free(key, when string) (token string, ok bool) {
	token, held := p.ask(key, other, long)
	if held != nil || token == "" {
		p.failf("%s, the key must be free; Reserve answered %s", when, show(held))
		return "", false
	}
	return token, true
}

// held notes whether the key is free and answers the record that holds it, nil
// where none does.
func (p *probe) held(key, when string) *idemmail.Record {
	_, held := p.ask(key, other, long)
	if held == nil {
		p.failf("%s, the key must be held; Reserve took it", when)
	}
	return held
}

// pending notes whether the key is not held by a pending record.
func (p *probe) pending(key, when string) {
	if held := p.held(key, when); held != nil && held.State != idemmail.StatePending {
		p.failf("%s, the key must be pending; Reserve answered %s", when, show(held))
	}
}

// done notes whether the key is not done with the receipt of that number.
func (p *probe) done(key string, number int, when string) {
	held := p.held(key, when)
	if held != nil && (held.State != idemmail.StateDone || numberOf(held.Receipt) != number) {
		p.failf("%s, the key must be done with receipt %d; Reserve answered %s", when, number, show(held))
	}
}

// settle completes with the receipt of that number, where nothing may go wrong.
func (p *probe) settle(key, token string, number int, ttl time.Duration) {
	if err := p.complete(key, token, number, ttl); err != nil {
		p.stopf("Complete(%q, ttl %v): %w", key, ttl, err)
	}
}

func (p *probe) complete(key, token string, number int, ttl time.Duration) error {
	return p.store.Complete(p.ctx, key, token, record(number), ttl)
}

// keep takes a key and completes it with rec; it answers the token.
func (p *probe) keep(key string, rec idemmail.Record, ttl time.Duration) (token string) {
	token = p.takeFor(rec.Fingerprint, key, long)
	if err := p.store.Complete(p.ctx, key, token, rec, ttl); err != nil {
		p.stopf("Complete(%q, ttl %v): %w", key, ttl, err)
	}
	return token
}

// give releases a key, where nothing may go wrong.
func (p *probe) give(key, token string) {
	if err := p.store.Release(p.ctx, key, token); err != nil {
		p.stopf("Release(%q): %w", key, err)
	}
}

// sent takes a new key and completes it; it answers both key and token.
func (p *probe) sent(number int, ttl time.Duration) (key, token string) {
	key = p.key()
	token = p.take(key, long)
	p.settle(key, token, number, ttl)
	return key, token
}

// ok notes an error where there must be none.
func (p *probe) ok(err error, format string, args ...any) {
	if err != nil {
		p.failf("%s: %w", fmt.Sprintf(format, args...), err)
	}
}

// is notes an error that does not wrap the wanted one.
func (p *probe) is(err, want error, format string, args ...any) {
	if !errors.Is(err, want) {
		p.failf("%s must answer an error that wraps %q; it answered %v", fmt.Sprintf(format, args...), want, err)
	}
}

func (p *probe) renewer() idemmail.Renewer   { return p.store.(idemmail.Renewer) }
func (p *probe) batch() idemmail.BatchStore  { return p.store.(idemmail.BatchStore) }
func (p *probe) keeper() idemmail.Reconciler { return p.store.(idemmail.Reconciler) }

// together calls f with 0 to n-1 at the same moment, each on a goroutine, and
// waits for all. f must not end the rule. The goroutines spin until all of
// them run: one that has to be woken comes too late for a store in memory.
func (p *probe) together(n int, f func(i int)) {
	var running atomic.Int64
	var ended sync.WaitGroup
	for i := range n {
		ended.Go(func() {
			running.Add(1)
			for running.Load() < int64(n) {
				runtime.Gosched()
			}
			p.guard(func() { f(i) })
		})
	}
	ended.Wait()
}

// Races are run again and again, since a fault that shows in one race in a
// hundred is a fault: so often, unless the store is so far away that it would
// take too long. A variable for this package's own tests.
var raceRounds = 1000

const raceBudget = 300 * time.Millisecond

// again calls f, which stages one race. It stops at the first that went wrong.
func (p *probe) again(f func()) {
	const least = 20
	start := time.Now()
	for i := range raceRounds {
		if i >= least && time.Since(start) > raceBudget {
			return
		}
		f()
		if p.wrong() {
			return
		}
	}
}

// wrong reports whether anything was noted.
func (p *probe) wrong() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.broken) > 0
}
