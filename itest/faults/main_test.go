// Package faults_test has the tests that kill senders, servers and networks.
package faults_test

import (
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
	goleak.VerifyTestMain(m)
}

var discard = slog.New(slog.DiscardHandler)
