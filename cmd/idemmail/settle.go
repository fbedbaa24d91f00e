package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/idemmail/idemmail"
)

// settleFlags are the flags of resolve and forget.
type settleFlags struct {
	lease  lifetime
	yes    bool
	dryRun bool
}

func (f *settleFlags) add(cmd *cobra.Command) {
	f.lease = lifetime(defaultLease)
	flags := cmd.Flags()
	flags.Var(&f.lease, "lease", `the senders' Lease: a key that has been pending for no longer is refused,
since its send may be alive. With "never", for senders with NoExpiry, no age
is refused: be sure that the sender is dead`)
	flags.BoolVarP(&f.yes, "yes", "y", false, "do not ask")
	flags.BoolVar(&f.dryRun, "dry-run", false, "say what would be done, and change nothing")
}

func (a *app) resolveCommand() *cobra.Command {
	var (
		f          settleFlags
		providerID string
		ttl        = lifetime(24 * time.Hour)
	)
	cmd := &cobra.Command{
		Use:   "resolve KEY",
		Short: "Keep a key as sent: the provider has the message",
		Long: `Keep a key as sent, because the provider has the message. Later sends under it
are answered with the receipt, for --ttl. What the old receipt says of
transport, message id and recipients stays.`,
		Example: `  idemmail resolve orders:order/1042 --provider-id 0100018f-7f3a`,
		Args:    cobra.ExactArgs(1),
		RunE: a.withStore(func(ctx context.Context, s *openStore, args []string) error {
			key, opts := args[0], idemmail.Options{Lease: time.Duration(f.lease), TTL: time.Duration(ttl)}
			g, e, err := a.find(ctx, s, key, opts)
			if err == nil && !isUnsettled(e.Record) {
				err = refuse("%s is settled already: %s", key, condition(e.Record))
			}
			if err != nil {
				return err
			}
			r := sentReceipt(e.Record.Receipt, providerID)
			what := fmt.Sprintf("keep %s as sent, for %s", key, span(ttl))
			return a.settle(ctx, f, e, what, func(e idemmail.Entry) error { return g.Resolve(ctx, e, r) })
		}),
	}
	f.add(cmd)
	cmd.Flags().StringVar(&providerID, "provider-id", "", "what the provider calls the message: the SES message id, the SMTP queue id")
	cmd.Flags().Var(&ttl, "ttl", `the senders' TTL, or "never"`)
	return cmd
}

// sentReceipt answers what is kept of a message that turned out to be sent.
func sentReceipt(old *idemmail.Receipt, providerID string) *idemmail.Receipt {
	r := &idemmail.Receipt{Status: idemmail.StatusSent}
	if old != nil {
		r.Transport, r.MessageID, r.ProviderID = old.Transport, old.MessageID, old.ProviderID
		r.Accepted, r.Rejected = old.Accepted, old.Rejected
	}
	if providerID != "" {
		r.ProviderID = providerID
	}
	return r
}

// span writes how long something is kept.
func span(l lifetime) string {
	if time.Duration(l) == idemmail.NoExpiry {
		return "ever"
	}
	return l.String()
}

func (a *app) forgetCommand() *cobra.Command {
	var (
		f       settleFlags
		settled bool
	)
	cmd := &cobra.Command{
		Use:   "forget KEY",
		Short: "Free a key: the provider does not have the message",
		Long: `Free a key, because the provider does not have the message. The next send under
it goes. It is for keys that are unsettled; one whose message was sent is freed
with --settled alone, and the next send then sends it again.`,
		Example: `  idemmail forget orders:order/1042`,
		Args:    cobra.ExactArgs(1),
		RunE: a.withStore(func(ctx context.Context, s *openStore, args []string) error {
			key := args[0]
			g, e, err := a.find(ctx, s, key, idemmail.Options{Lease: time.Duration(f.lease)})
			if err == nil && !isUnsettled(e.Record) && !settled {
				err = refuse("%s is settled already: %s. With --settled it is freed all the same, and its message may go again", key, condition(e.Record))
			}
			if err != nil {
				return err
			}
			what := fmt.Sprintf("free %s, so that the next send under it goes", key)
			return a.settle(ctx, f, e, what, func(e idemmail.Entry) error { return g.Forget(ctx, e) })
		}),
	}
	f.add(cmd)
	cmd.Flags().BoolVar(&settled, "settled", false, "free a settled key too: its message may go again")
	return cmd
}

func refuse(format string, args ...any) error {
	return exit(exitRefused, fmt.Errorf(format, args...))
}

// settle does to an entry what it says, once the operator has agreed. The
// Guard looks once more whether the owner of a pending key lives, and nothing
// is changed where the record is another than the one that was shown.
func (a *app) settle(ctx context.Context, f settleFlags, e idemmail.Entry, what string, do func(idemmail.Entry) error) error {
	lease := time.Duration(f.lease)
	if e.Record.State == idemmail.StatePending && lease != idemmail.NoExpiry && e.Record.Age <= lease {
		return refuse("%s has been pending for %s, and its send may be alive until that is %s (--lease)", e.Key, short(e.Record.Age), lease)
	}
	if f.dryRun {
		_, err := fmt.Fprintf(a.stdout, "would %s\n", printable(what))
		return failed(err)
	}
	if !f.yes {
		if err := describe(a.stderr, e); err != nil {
			return failed(err)
		}
		if err := a.confirm(ctx, what); err != nil {
			return err
		}
	}
	key := e.Key
	_, e.Key, _ = splitKey(key)
	switch err := do(e); {
	case errors.Is(err, idemmail.ErrChanged):
		return refuse("the record has changed since it was read, see show: %w", err)
	case errors.Is(err, idemmail.ErrInFlight):
		return failed(err)
	case err != nil:
		return failed(fmt.Errorf("it may be done all the same, see show: %w", err))
	}
	_, err := fmt.Fprintf(a.stdout, "done: %s\n", printable(what))
	return failed(err)
}

// confirm asks. No answer, or the end of the input, is a no.
func (a *app) confirm(ctx context.Context, what string) error {
	fmt.Fprintf(a.stderr, "\n%s? [y/N] ", strings.ToUpper(what[:1])+printable(what[1:]))
	answer := make(chan string, 1)
	go func() { // a read cannot be interrupted: it is left behind where ctx ends first
		line, _ := bufio.NewReader(a.stdin).ReadString('\n')
		answer <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case text := <-answer:
		if text == "y" || text == "yes" {
			return nil
		}
	case <-ctx.Done():
	}
	return exit(exitNotConfirmed, errors.New("not confirmed: nothing was changed"))
}
