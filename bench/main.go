// Command bench measures idemmail side by side with what it is made of, and
// with what others made for the same job, and writes docs/performance.md and
// docs/performance.svg. Run it in its own folder:
//
//	go run .
//
// It starts the servers that the tests start too, and says in the table which
// it could not have.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"time"
)

func main() {
	folder := flag.String("docs", filepath.Join("..", "docs"), "the folder to write performance.md and performance.svg to")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := os.Setenv("IDEMMAIL_TEST_SERVERS", "1"); err != nil { // see package testserver
		fatal(err)
	}
	report := measure(ctx, fullScale, time.Now())
	if ctx.Err() != nil {
		fatal(ctx.Err())
	}
	if err := report.write(*folder); err != nil {
		fatal(err)
	}
	fmt.Print(report.page())
	if err := report.err(); err != nil {
		fatal(err)
	}
}

func fatal(err error) {
	fmt.Fprintln(os.Stderr, "bench:", err)
	os.Exit(1)
}
