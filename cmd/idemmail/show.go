package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/idemmail/idemmail"
)

func (a *app) showCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "show KEY",
		Short: "Show what holds a key",
		Long: `Show what holds a key, and by what the provider knows its message: the
provider key is what idemmail.ProviderKey gives, and what sestransport tags a
message with (KeyTag); the stable Message-ID is what senders with
MessageIDDomain set give to messages that have none.`,
		Example: `  idemmail show orders:order/1042`,
		Args:    cobra.ExactArgs(1),
		RunE: a.withStore(func(ctx context.Context, s *openStore, args []string) error {
			_, e, err := a.find(ctx, s, args[0], idemmail.Options{})
			switch {
			case err != nil:
				return err
			case asJSON:
				return failed(newEncoder(a.stdout).Encode(lineOf(e)))
			}
			return failed(describe(a.stdout, e))
		}),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "write one JSON object")
	return cmd
}

// find answers what holds a KEY, with the KEY in it, and a Guard that can settle
// it.
func (a *app) find(ctx context.Context, s *openStore, key string, opts idemmail.Options) (*idemmail.Guard, idemmail.Entry, error) {
	g, rest, err := a.guard(s, key, opts)
	if err != nil {
		return nil, idemmail.Entry{}, err
	}
	e, err := g.Lookup(ctx, rest)
	switch {
	case err != nil:
		return nil, idemmail.Entry{}, failed(err)
	case e == nil:
		return nil, idemmail.Entry{}, exit(exitNotFound, fmt.Errorf("nothing holds %s", key))
	}
	e.Key = key
	return g, *e, nil
}

// describe writes all that is known of an entry, one thing a line.
func describe(out io.Writer, e idemmail.Entry) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	line := func(name, value string) {
		if value != "" {
			fmt.Fprintf(w, "%s\t%s\n", name, cell(value))
		}
	}
	line("key", e.Key)
	line("state", fmt.Sprintf("%s for %s", condition(e.Record), short(e.Record.Age)))
	expires := "never"
	if !e.ExpiresAt.IsZero() {
		expires = e.ExpiresAt.Format(time.RFC3339)
	}
	line("expires", expires)
	if r := e.Record.Receipt; r != nil {
		line("code", r.Code)
		line("category", string(r.Category))
		line("detail", r.Detail)
		line("transport", r.Transport)
		line("provider id", r.ProviderID)
		line("message id", r.MessageID)
		line("response", r.Response)
		line("accepted", strings.Join(r.Accepted, ", "))
		for _, refused := range r.Rejected {
			text := refused.Address
			if refused.Code != 0 {
				text += " " + strconv.Itoa(refused.Code)
			}
			line("rejected", strings.TrimSpace(text+" "+refused.Reason))
		}
		if !r.At.IsZero() {
			line("outcome at", r.At.Format(time.RFC3339))
		}
	}
	line("fingerprint", e.Record.Fingerprint)
	line("provider key", providerKey(e.Key))
	line("stable message id", stableMessageID(e.Key)+"@DOMAIN")
	return w.Flush()
}
