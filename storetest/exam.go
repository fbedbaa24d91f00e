package storetest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/idemmail/idemmail"
)

// A rule is one thing that the contract says.
type rule struct {
	name  string
	wants string   // what the contract wants, and what goes wrong without it
	of    ability  // what the store must offer for the rule to concern it
	needs []string // rules that this one builds on; while they are broken it could only repeat them
	run   func(p *probe)
}

// An ability is what a store may offer beyond [idemmail.Store].
type ability string

const (
	everyStore ability = ""
	batches    ability = "BatchStore"
	renews     ability = "Renewer"
	reconciles ability = "Reconciler"
)

// offered reports whether s has the ability.
func (a ability) offered(s idemmail.Store) (ok bool) {
	switch a {
	case batches:
		_, ok = s.(idemmail.BatchStore)
	case renews:
		_, ok = s.(idemmail.Renewer)
	case reconciles:
		_, ok = s.(idemmail.Reconciler)
	default:
		ok = true
	}
	return ok
}

// rules answers all rules, those that others need first.
func rules() []rule {
	var all []rule
	for _, topic := range [][]rule{
		basicRules, reserveRules, releaseRules, keptRules, completeRules,
		durationRules, expiryRules, takeoverRules,
		keyRules, contextRules, raceRules,
		renewRules, batchRules,
		lookupRules, listRules, settleRules, operatorRules,
	} {
		all = append(all, topic...)
	}
	return all
}

// How long a rule may take before its context ends, and how long the store may
// take to notice. The slowest rule takes well under a second where the store
// answers within a millisecond. Variables for this package's own tests.
var (
	ruleLimit = 30 * time.Second
	ruleGrace = 5 * time.Second
)

// An exam is one run through the rules.
type exam struct {
	config   Config
	unproved map[string]bool // rules that are broken, or build on one that is
	over     string          // why no further rule is run
}

func newExam(c Config) *exam {
	return &exam{config: c, unproved: make(map[string]bool)}
}

// A verdict is what became of a rule; its zero value says that the rule holds.
type verdict struct {
	broken  error
	skipped string
}

// judge runs one rule.
func (x *exam) judge(r rule) verdict {
	if x.over != "" {
		return verdict{skipped: x.over}
	}
	for _, need := range r.needs {
		if x.unproved[need] {
			x.unproved[r.name] = true
			return verdict{skipped: "builds on the rule " + need + ", which is not proved"}
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), ruleLimit)
	defer cancel()
	p := &probe{ctx: ctx, advance: x.config.Advance, prefix: "storetest:" + r.name + "/" + rand.Text() + "/"}

	// The rule has a goroutine of its own, so that it can be ended at any
	// depth, and given up where the store does not come back.
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.guard(func() { p.open(x.config, r) })
	}()
	select {
	case <-done:
	case <-ctx.Done():
		grace := time.NewTimer(ruleGrace)
		defer grace.Stop()
		select {
		case <-done:
		case <-grace.C:
			p.failf("the store did not come back within %v after its context had ended", ruleGrace)
		}
	}
	if ctx.Err() != nil {
		p.failf("the rule was given up after %v, and the rules after it were not run", ruleLimit)
		x.over = "the store hung in the rule " + r.name
	}

	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.broken) > 0 {
		x.unproved[r.name] = true
		if !p.opened {
			x.over = "no store to test"
		}
		return verdict{broken: &ruleError{rule: r, reasons: slices.Clone(p.broken)}}
	}
	return verdict{skipped: p.skipped}
}

// open asks for a store and runs the rule on it.
func (p *probe) open(c Config, r rule) {
	store, err := opened(c)
	if err != nil {
		p.stopf("no store, and the rules after this one were not run: %w", err)
	}
	p.mu.Lock()
	p.store, p.opened = store, true
	if !r.of.offered(store) {
		p.skipped = "the store is no " + string(r.of)
	}
	p.mu.Unlock()
	if r.of.offered(store) {
		r.run(p)
	}
}

func opened(c Config) (idemmail.Store, error) {
	if c.Open == nil {
		return nil, errors.New("the Open of Config is nil")
	}
	store, err := c.Open()
	if err != nil {
		return nil, fmt.Errorf("opening it: %w", err)
	}
	if store == nil {
		return nil, errors.New("opening it answered nil and a nil error")
	}
	return store, nil
}

// A ruleError says which rule is broken and how.
type ruleError struct {
	rule    rule
	reasons []error
}

func (e *ruleError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "storetest: %s: %s", e.rule.name, e.rule.wants)
	for _, reason := range e.reasons {
		b.WriteString("\n\t")
		b.WriteString(strings.ReplaceAll(reason.Error(), "\n", "\n\t"))
	}
	return b.String()
}

func (e *ruleError) Unwrap() []error { return e.reasons }
