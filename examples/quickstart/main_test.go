package main

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// TestMain lets the test's own executable be the worker that is killed.
func TestMain(m *testing.M) {
	if isWorker() {
		work()
		return
	}
	goleak.VerifyTestMain(m)
}

func TestRun(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, run(context.Background(), &out))
	t.Log("\n" + out.String())
	lines := strings.Split(out.String(), "\n")
	for i, o := range []string{"1001", "1002", "1003", "1004", "1005"} {
		require.Regexp(t, `^`+o+`, .* order/`+o+`/confirmation +sent +sent before +sent before +sent before +once$`, lines[i+1])
	}
	require.Regexp(t, `^1006, .* order/1006/confirmation +- +- +accepted, killed +unknown, left alone +once$`, lines[6])
	require.Contains(t, out.String(), "order/1006/confirmation: its worker died, the server has it: kept as sent.")
	require.Contains(t, out.String(), "6 mails, four runs: the server received each of them once.")
}

// A mail that came twice, never, or that nobody ordered makes it fail.
func TestCheck(t *testing.T) {
	orders, err := readOrders()
	require.NoError(t, err)
	s := &server{count: make(map[string]int)}
	for _, o := range orders {
		s.count[o.key()]++
	}
	require.NoError(t, check(orders, s))
	s.count[orders[0].key()]++
	require.ErrorContains(t, check(orders, s), "order/1001/confirmation was received 2 times")
	delete(s.count, orders[0].key())
	require.ErrorContains(t, check(orders, s), "order/1001/confirmation was received never")
	s.count[orders[0].key()] = 1
	s.count[""]++
	require.ErrorContains(t, check(orders, s), "7 mails were received for 6 orders")
}

// The orders have what mails of the real world have.
func TestOrders(t *testing.T) {
	orders, err := readOrders()
	require.NoError(t, err)
	recipients, files := 0, 0
	for _, o := range orders {
		m := o.message()
		require.Equal(t, m, o.message(), "built anew, it is the same mail")
		recipients = max(recipients, len(m.To))
		files += len(m.Attachments)
	}
	require.Equal(t, 2, recipients)
	require.Equal(t, 2, files)
}
