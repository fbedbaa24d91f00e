package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/idemmail/idemmail"
)

// defaultLease is idemmail.Options' own.
const defaultLease = 10 * time.Minute

// listFlags are the flags of list.
type listFlags struct {
	olderThan time.Duration
	namespace string
	json      bool
	exitCode  bool
}

func (a *app) listCommand() *cobra.Command {
	var f listFlags
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List what waits for an operator",
		Long: `List the keys whose message may or may not have gone: those whose outcome is
unknown, whatever their age, and those that have been pending for --older-than,
by the store's clock. Only under AtMostOnce do keys of senders that died stay
pending; otherwise they are free again once their lease has ended.

Without --namespace every key of the store is looked at; where other things
share the database, these are shown as bad records.`,
		Example: `  idemmail list
  idemmail list --namespace orders --older-than 30m --json`,
		Args: cobra.NoArgs,
		RunE: a.withStore(func(ctx context.Context, s *openStore, _ []string) error {
			return a.list(ctx, s, f)
		}),
	}
	flags := cmd.Flags()
	flags.DurationVar(&f.olderThan, "older-than", defaultLease, "leave out keys that have been pending for less; not less than the senders' Lease")
	flags.StringVar(&f.namespace, "namespace", "", "list the keys of this namespace alone")
	flags.BoolVar(&f.json, "json", false, "write one JSON object per line")
	flags.BoolVar(&f.exitCode, "exit-code", false, "exit with 8 where something is unsettled")
	return cmd
}

func (a *app) list(ctx context.Context, s *openStore, f listFlags) error {
	if f.olderThan < 0 {
		return wrongUse(fmt.Errorf("--older-than %v: it must not be negative", f.olderThan))
	}
	prefix := ""
	if f.namespace != "" {
		if _, err := idemmail.NewGuard(idemmail.Options{Namespace: f.namespace}); err != nil {
			return wrongUse(fmt.Errorf("--namespace: %w", err))
		}
		prefix = f.namespace + ":"
	}

	var unsettled atomic.Int64
	line := a.watch(ctx, s, &unsettled)
	defer line.end()
	out := newLister(a.stdout, f.json, line)
	bad := false
	for e, err := range s.store.Unsettled(ctx, prefix, f.olderThan) {
		switch {
		case errors.Is(err, idemmail.ErrBadRecord):
			bad = true
			err = out.bad(e.Key, a.printable(err.Error()))
		case err == nil:
			unsettled.Add(1)
			err = out.entry(e)
		}
		if err != nil {
			out.flush()
			return failed(err)
		}
	}
	if err := out.flush(); err != nil {
		return failed(err)
	}
	line.end()
	switch {
	case f.exitCode && unsettled.Load() > 0:
		return exit(exitUnsettled, nil)
	case bad:
		return exit(exitBadRecord, nil)
	case unsettled.Load() == 0 && a.terminal:
		fmt.Fprintln(a.stderr, "Nothing is unsettled.")
	}
	return nil
}

// watch shows, on a terminal, how far a listing is.
func (a *app) watch(ctx context.Context, s *openStore, unsettled *atomic.Int64) *progress {
	if !a.terminal {
		return nil
	}
	began := time.Now()
	far := func() string { return "listing" }
	if s.watch != nil {
		ctx, cancel := context.WithTimeout(ctx, a.timeout)
		defer cancel()
		far = s.watch(ctx)
	}
	return startProgress(a.stderr, func() string {
		return fmt.Sprintf("%s: %s, %d unsettled", short(time.Since(began)), far(), unsettled.Load())
	})
}

// rowsPerPage is how many rows of a table are held back until their columns
// are as wide as their widest cells.
const rowsPerPage = 50

// A lister writes a listing as it comes.
type lister struct {
	line  *progress
	out   io.Writer
	json  *json.Encoder     // nil: a table
	table *tabwriter.Writer // nil: JSON
	rows  int
}

func newLister(out io.Writer, asJSON bool, line *progress) *lister {
	l := &lister{line: line, out: out}
	if asJSON {
		l.json = newEncoder(out)
	} else {
		l.table = tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	}
	return l
}

func (l *lister) entry(e idemmail.Entry) error {
	if l.json != nil {
		return l.encode(lineOf(e))
	}
	r := e.Record.Receipt
	if r == nil {
		r = &idemmail.Receipt{}
	}
	return l.row(short(e.Record.Age), condition(e.Record), cell(r.Code), cell(r.Transport), cell(r.ProviderID), cell(r.MessageID), cell(e.Key))
}

func (l *lister) bad(key, reason string) error {
	if l.json != nil {
		return l.encode(entryLine{Key: key, Error: reason})
	}
	return l.row("-", "bad record", "-", "-", "-", "-", cell(key)+"\t"+cell(reason))
}

func (l *lister) encode(e entryLine) error {
	return l.line.aside(func() error { return l.json.Encode(e) })
}

func (l *lister) row(age, condition, code, transport, providerID, messageID, key string) error {
	if l.rows == 0 {
		fmt.Fprintln(l.table, "UNSETTLED FOR\tSTATE\tCODE\tTRANSPORT\tPROVIDER ID\tMESSAGE ID\tKEY")
	}
	fmt.Fprintf(l.table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", age, condition, code, transport, providerID, messageID, key)
	if l.rows++; l.rows%rowsPerPage == 0 {
		return l.flush()
	}
	return nil
}

func (l *lister) flush() error {
	if l.table == nil {
		return nil
	}
	return l.line.aside(l.table.Flush)
}
