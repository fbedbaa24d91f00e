package idemmail_test

import (
	"io"
	"log/slog"
	"testing"

	"go.uber.org/goleak"
)

// No test may leave a goroutine behind: neither does the package.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// quietLogger is for tests that are not about logging.
var quietLogger = slog.New(slog.NewTextHandler(io.Discard, &slog.HandlerOptions{Level: slog.LevelDebug}))
