package main

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
)

// The verdicts are those of the table in the README.
func TestJudge(t *testing.T) {
	failure := errors.New("of the transport")
	for _, c := range []struct {
		name    string
		receipt idemmail.Receipt
		cause   error
		verdict verdict
	}{
		{"failed, retryable", idemmail.Receipt{Status: idemmail.StatusFailed, Retryable: true}, failure, retry},
		{"failed, not retryable", idemmail.Receipt{Status: idemmail.StatusFailed}, failure, park},
		{"unknown", idemmail.Receipt{Status: idemmail.StatusUnknown}, failure, park},
		{"aborted", idemmail.Receipt{Status: idemmail.StatusUnknown, Code: idemmail.CodeAborted}, context.Canceled, park},
		{"panicked", idemmail.Receipt{Status: idemmail.StatusUnknown, Code: idemmail.CodePanicked}, nil, park},
		{"batch mismatch", idemmail.Receipt{Status: idemmail.StatusUnknown, Code: idemmail.CodeBatchMismatch}, nil, park},
		{"abandoned", idemmail.Receipt{Status: idemmail.StatusUnknown, Code: idemmail.CodeAbandoned}, nil, park},
		{"in flight", idemmail.Receipt{Status: idemmail.StatusUnknown, Code: idemmail.CodeInFlight, Retryable: true}, nil, retry},
		{"in flight, beneath", idemmail.Receipt{Status: idemmail.StatusFailed, Code: idemmail.CodeInFlight, Retryable: true}, idemmail.ErrInFlight, retry},
		{"another message under the key", idemmail.Receipt{Status: idemmail.StatusFailed, Code: idemmail.CodeKeyReused}, nil, park},
		{"invalid key", idemmail.Receipt{Status: idemmail.StatusFailed, Code: idemmail.CodeInvalidKey}, nil, park},
		{"context ended before it began", idemmail.Receipt{Status: idemmail.StatusFailed, Code: idemmail.CodeNotBegun, Retryable: true}, context.Canceled, retry},
		{"the store could not reserve", idemmail.Receipt{Status: idemmail.StatusFailed, Code: idemmail.CodeStoreFailed, Retryable: true}, failure, retry},
		{"a duplicate of one that was sent", idemmail.Receipt{Status: idemmail.StatusSent, Replayed: true}, idemmail.ErrDuplicate, ack},
		{"a duplicate of one that is unknown", idemmail.Receipt{Status: idemmail.StatusUnknown, Replayed: true}, idemmail.ErrDuplicate, park},
	} {
		require.Equal(t, c.verdict, judge(&c.receipt, &idemmail.SendError{Receipt: &c.receipt, Err: c.cause}), c.name)
	}
	require.Equal(t, ack, judge(&idemmail.Receipt{Status: idemmail.StatusSent}, nil))
	require.Equal(t, ack, judge(&idemmail.Receipt{Status: idemmail.StatusSent, Replayed: true}, nil))
}

func TestNoSuchStep(t *testing.T) {
	output, exitCode := work(t, t.TempDir(), "-crash-at", "mid-air")
	require.Equal(t, 1, exitCode)
	require.Contains(t, output, `no step "mid-air"`)
}
