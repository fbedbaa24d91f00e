package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"

	"github.com/idemmail/idemmail"
)

// storeVariable is the environment variable that --store falls back to.
const storeVariable = "IDEMMAIL_STORE"

// An app is one run of the program, and what it has to do with the outside.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	terminal       bool // stderr is one
	getenv         func(string) string

	storeURL string
	timeout  time.Duration
	secrets  []string // of the store URL
	began    bool     // a command did, so that an error is not about its flags
}

// run carries out a command line and answers the exit code.
func (a *app) run(ctx context.Context, args []string) int {
	root := a.command()
	root.SetArgs(args)
	root.SetIn(a.stdin)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitDone
	}
	var ended *exitError
	if !errors.As(err, &ended) {
		ended = &exitError{exitFailed, err}
		if !a.began {
			ended.code = exitUsage
		}
	}
	if text := ended.Error(); text != "" {
		fmt.Fprintf(a.stderr, "idemmail: %s\n", a.printable(text))
	}
	if ended.code == exitUsage {
		fmt.Fprintln(a.stderr, `See "idemmail --help".`)
	}
	return ended.code
}

func (a *app) command() *cobra.Command {
	root := &cobra.Command{
		Use:   "idemmail",
		Short: "See and settle what idemmail's stores keep",
		Long: `idemmail lists the messages whose outcome nobody knows, and settles them: the
provider has it (resolve), or it does not (forget). It also says whether a
store can be trusted with keys (check).

KEY is a key with its namespace in front, as list prints it: orders:order/1042

The store is a URL, by --store or, so that no password shows in a list of
processes, by the environment variable ` + storeVariable + `:
  redis://USER:PASSWORD@HOST:6379/0      rediss:// with TLS, unix:// a socket
  redis+cluster://HOST:6379?addr=HOST2:6379
  redis+sentinel://HOST:26379/0?master_name=NAME&addr=HOST2:26379
  mongodb://HOST/DATABASE?collection=COLLECTION
  postgres://USER:PASSWORD@HOST/DATABASE?table=TABLE
  sqlite:PATH?table=TABLE
Redis takes key_prefix=PREFIX too, where redisstore.Options.KeyPrefix is set.

` + exitHelp,
		Version:       version(),
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetVersionTemplate("idemmail {{.Version}}\n")
	flags := root.PersistentFlags()
	flags.StringVar(&a.storeURL, "store", "", "store URL; empty: $"+storeVariable)
	flags.DurationVar(&a.timeout, "timeout", 10*time.Second, "bound for each step on the store, but for a whole listing")
	root.AddCommand(a.listCommand(), a.showCommand(), a.resolveCommand(), a.forgetCommand(), a.checkCommand())
	return root
}

// version is what the go command wrote into the program.
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(unknown version)"
}

// withStore makes the function of a command of one that needs the store.
func (a *app) withStore(f func(ctx context.Context, s *openStore, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) (err error) {
		a.began = true
		if a.timeout <= 0 {
			return wrongUse(fmt.Errorf("--timeout %v: it must be positive", a.timeout))
		}
		raw := a.storeURL
		if raw == "" {
			raw = a.getenv(storeVariable)
		}
		u, err := parseStoreURL(raw)
		if err != nil {
			return wrongUse(err)
		}
		s, err := u.open(a.timeout)
		a.secrets = u.secrets
		if err != nil {
			return wrongUse(fmt.Errorf("store URL: %w", err))
		}
		defer s.close()
		return f(cmd.Context(), s, args)
	}
}

// guard answers the Guard of a KEY, and what the Guard calls the key.
func (a *app) guard(s *openStore, key string, opts idemmail.Options) (*idemmail.Guard, string, error) {
	namespace, rest, err := splitKey(key)
	if err != nil {
		return nil, "", wrongUse(err)
	}
	opts.Store, opts.Namespace, opts.StoreTimeout, opts.Logger = s.store, namespace, a.timeout, discard
	g, err := idemmail.NewGuard(opts)
	if err != nil {
		return nil, "", wrongUse(fmt.Errorf("KEY %q: %w", key, err))
	}
	return g, rest, nil
}
