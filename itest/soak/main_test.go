// Package soak_test sends a great many messages from several processes over
// one Redis, with duplicates and faults, and counts what became of them.
package soak_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if os.Getenv(planEnv) != "" {
		os.Exit(work())
	}
	goleak.VerifyTestMain(m)
}
