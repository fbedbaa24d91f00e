package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/idemmail/idemmail"
)

func (a *app) checkCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Say whether the store can be trusted with keys",
		Long: `Say whether the store can be trusted with keys: whether the server is one that
works, lets keys live until their time has passed, and allows this user what
senders need; and how its clock, its indexes and its durability are.

What makes the store unsafe is marked so, and the exit code is 6. A warning is
about what should be better, or what could not be found out.

It reserves, completes and frees one key of its own, idemmail-check: and 26
characters, which is gone at once, or after a minute where that fails.`,
		Args: cobra.NoArgs,
		RunE: a.withStore(func(ctx context.Context, s *openStore, _ []string) error {
			r := newReport(a, asJSON)
			return a.check(ctx, s, r)
		}),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "write one JSON object per line")
	return cmd
}

func (a *app) check(ctx context.Context, s *openStore, r *report) error {
	examined, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	if err := s.examine(examined, r); err != nil {
		r.end()
		return exit(exitFailed, fmt.Errorf("the store could not be asked: %w", err))
	}
	tried, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	tryStore(tried, r, s.store)
	if err := r.end(); err != nil {
		return failed(err)
	}
	if r.isUnsafe {
		return exit(exitUnsafe, errors.New("the store is not safe to use"))
	}
	return nil
}

// A report is what check finds out.
type report struct {
	app      *app
	json     *json.Encoder
	table    *tabwriter.Writer
	isUnsafe bool
	err      error // of writing
}

func newReport(a *app, asJSON bool) *report {
	r := &report{app: a}
	if asJSON {
		r.json = newEncoder(a.stdout)
	} else {
		r.table = tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	}
	return r
}

func (r *report) ok(what, format string, args ...any)   { r.add("ok", what, format, args) }
func (r *report) warn(what, format string, args ...any) { r.add("warning", what, format, args) }
func (r *report) unsafe(what, format string, args ...any) {
	r.isUnsafe = true
	r.add("unsafe", what, format, args)
}

func (r *report) add(result, what, format string, args []any) {
	detail := r.app.printable(fmt.Sprintf(format, args...))
	var err error
	if r.json != nil {
		err = r.json.Encode(struct {
			Result string `json:"result"` // ok, warning, unsafe
			Check  string `json:"check"`
			Detail string `json:"detail"`
		}{result, what, detail})
	} else {
		_, err = fmt.Fprintf(r.table, "%s\t%s\t%s\n", result, what, cell(detail))
	}
	r.err = errors.Join(r.err, err)
}

func (r *report) end() error {
	if r.table != nil {
		return errors.Join(r.err, r.table.Flush())
	}
	return r.err
}

// clock reports how far a server's clock is from this machine's, and answers
// that: the server read it somewhere between before and now.
func (r *report) clock(what string, server, before time.Time) time.Duration {
	trip := time.Since(before)
	ahead := server.Sub(before.Add(trip / 2)).Round(time.Millisecond)
	text := fmt.Sprintf("%s ahead of this machine's, give or take %s", ahead, (trip / 2).Round(time.Millisecond))
	if ahead < 0 {
		text = fmt.Sprintf("%s behind this machine's, give or take %s", -ahead, (trip / 2).Round(time.Millisecond))
	}
	if ahead.Abs() > farOff {
		r.warn(what, "%s; leases and TTLs go by the server's alone, but SendAt and the times in receipts by the senders'", text)
	} else {
		r.ok(what, "%s", text)
	}
	return ahead
}

// farOff is from when on a clock is worth a warning.
const farOff = 10 * time.Second

// probeLife is how long the key of a check that was cut short stays.
const probeLife = time.Minute

// tryStore does once to a key of its own all that senders and operators do.
func tryStore(ctx context.Context, r *report, s store) {
	var (
		key    = "idemmail-check:" + rand.Text()
		token  string
		entry  *idemmail.Entry
		record = idemmail.Record{State: idemmail.StateDone, Receipt: &idemmail.Receipt{Status: idemmail.StatusUnknown}}
	)
	reserve := func() (err error) {
		token, _, err = s.Reserve(ctx, key, "", probeLife)
		return err
	}
	reserveHeld := func() error {
		_, held, err := s.Reserve(ctx, key, "", probeLife)
		if err == nil && held == nil {
			err = errors.New("a key that is held was given away again")
		}
		return err
	}
	lookUp := func() (err error) {
		entry, err = s.Lookup(ctx, key)
		if err == nil && entry == nil {
			err = errors.New("it is gone before its time")
		}
		return err
	}
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"reserve a key", reserve},
		{"reserve it again", reserveHeld},
		{"renew it", func() error { return s.Renew(ctx, key, token, probeLife) }},
		{"complete it", func() error { return s.Complete(ctx, key, token, record, probeLife) }},
		{"look it up", lookUp},
		{"resolve it", func() error { return s.Resolve(ctx, *entry, nil, probeLife) }},
		{"look it up", lookUp},
		{"forget it", func() error { return s.Forget(ctx, *entry) }},
	} {
		if err := step.do(); err != nil {
			r.unsafe("use", "%s: %v", step.name, err)
			return
		}
	}
	r.ok("use", "a key was reserved, was then held, and was renewed, completed, resolved and forgotten")
}
