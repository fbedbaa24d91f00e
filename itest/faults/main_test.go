// Package faults_test has the tests that kill senders, servers and networks.
package faults_test

import (
	"flag"
	"log/slog"
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
	if err := flag.Set("test.parallel", "4"); err != nil {
		panic(err)
	}
	// A client of go-redis that is closed while no server answers it goes on to
	// dial for a second.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

var discard = slog.New(slog.DiscardHandler)
