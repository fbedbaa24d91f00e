package main

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/examples/internal/exampletest"
	"github.com/idemmail/idemmail/internal/testserver"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

func TestMiniredis(t *testing.T) { requireOnce(t, "REDIS_URL=") }

func TestRedis(t *testing.T) {
	testserver.Require(t)
	requireOnce(t, "REDIS_URL=redis://"+testserver.StartRedis(t).Addr)
}

func requireOnce(t *testing.T, variable string) {
	t.Helper()
	output, exitCode := exampletest.Run(t, []string{variable})
	require.Zero(t, exitCode)
	lines := strings.Split(output, "\n")
	for i, line := range []string{
		`payment .* 200, 200 +1`,
		`refund .* 1 x 200, 9 x 409 \(retry\), 200 +1`,
		`correction .* 503 \(retry\), 200 +1`,
		`chargeback .* 502, 502 +1`,
		`payout .* 422, 422 +0`,
		`donation .* 400, 400 +0`,
	} {
		require.Regexp(t, "^"+line+"$", lines[i+1])
	}
}

// The statuses are those of the table in the README.
func TestStatus(t *testing.T) {
	send := func(s idemmail.Status, code string, retryable bool, err error) error {
		return &idemmail.SendError{Receipt: &idemmail.Receipt{Status: s, Code: code, Retryable: retryable}, Err: err}
	}
	for _, c := range []struct {
		err    error
		status int
	}{
		{nil, 200},
		{send(idemmail.StatusFailed, "ledger.locked", true, errLocked), 503},
		{send(idemmail.StatusFailed, "ledger.refused", false, errLocked), 422},
		{send(idemmail.StatusUnknown, "", false, errLost), 502},
		{send(idemmail.StatusUnknown, idemmail.CodeAborted, false, context.Canceled), 502},
		{send(idemmail.StatusUnknown, idemmail.CodePanicked, false, nil), 502},
		{send(idemmail.StatusUnknown, idemmail.CodeAbandoned, false, nil), 502},
		{send(idemmail.StatusUnknown, idemmail.CodeInFlight, true, nil), 409},
		{send(idemmail.StatusFailed, idemmail.CodeInFlight, true, idemmail.ErrInFlight), 409},
		{send(idemmail.StatusFailed, idemmail.CodeKeyReused, false, nil), 422},
		{send(idemmail.StatusFailed, idemmail.CodeInvalidKey, false, nil), 400},
		{send(idemmail.StatusFailed, idemmail.CodeNotBegun, true, context.Canceled), 503},
		{send(idemmail.StatusFailed, idemmail.CodeStoreFailed, true, errors.New("no connection")), 503},
	} {
		require.Equal(t, c.status, statusOf(c.err), "%v", c.err)
	}
}

// A sender that hangs up does not stop the work.
func TestHangUp(t *testing.T) {
	guard, err := idemmail.NewGuard(idemmail.Options{Namespace: "payments"})
	require.NoError(t, err)
	ctx, hangUp := context.WithCancel(t.Context())
	handler := webhook{guard, func(ctx context.Context, event []byte) error {
		hangUp()
		return ctx.Err()
	}}
	for range 2 {
		r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/", strings.NewReader("payment"))
		r.Header.Set("Event-Id", "evt_1")
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		require.Equal(t, http.StatusOK, w.Code)
	}
}

// No event is booked in part.
func TestTooLarge(t *testing.T) {
	guard, err := idemmail.NewGuard(idemmail.Options{Namespace: "payments"})
	require.NoError(t, err)
	handler := webhook{guard, func(context.Context, []byte) error { panic("must not run") }}
	r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(strings.Repeat("x", maxBody+1)))
	r.Header.Set("Event-Id", "evt_1")
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	require.Equal(t, http.StatusRequestEntityTooLarge, w.Code)
}
