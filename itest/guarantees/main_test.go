// Package guarantees_test has what is promised of a send, tested over every
// store, with the senders in two processes where these can share it.
package guarantees_test

import (
	"flag"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/idemmail/idemmail/itest/internal/worker"
)

func TestMain(m *testing.M) {
	if os.Getenv(worker.ConfigEnv) != "" {
		os.Exit(worker.Main())
	}
	// The tests wait most of the time: more of them at a time than there are
	// processors.
	flag.Parse()
	if err := flag.Set("test.parallel", "16"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}
