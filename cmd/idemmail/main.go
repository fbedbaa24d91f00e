// Idemmail is for operators: it lists the messages whose outcome nobody knows,
// and settles them, in any store of package idemmail; and it says whether a
// store can be trusted with keys.
//
// "idemmail --help" and README.md tell how it is used.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/mattn/go-isatty"
	"github.com/redis/go-redis/v9"
)

func main() {
	redis.SetLogger(silent{})
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	a := app{
		stdin:    os.Stdin,
		stdout:   os.Stdout,
		stderr:   os.Stderr,
		terminal: isatty.IsTerminal(os.Stderr.Fd()),
		getenv:   os.Getenv,
	}
	os.Exit(a.run(ctx, os.Args[1:]))
}

// silent keeps go-redis from writing to stderr what its errors tell as well.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}
