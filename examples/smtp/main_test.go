package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail/examples/internal/exampletest"
	"github.com/idemmail/idemmail/examples/internal/inbox"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

func TestExample(t *testing.T) {
	output, exitCode := exampletest.Run(t, nil)
	require.Zero(t, exitCode)
	require.Equal(t, `order/1001/confirmation
  first:  sent: queue id Q1
  second: sent, answered from the store: queue id Q1
  the server received it 1 time(s)
order/1002/confirmation
  first:  sent: queue id Q2; nobody@example.org was refused with 550
  second: sent, answered from the store: queue id Q2; nobody@example.org was refused with 550
  the server received it 1 time(s)
order/1003/confirmation
  first:  unknown: it may have gone (smtp.network), ask the server
  second: unknown, answered from the store: it may have gone (smtp.network), ask the server
  the server received it 1 time(s)
`, output)
}

// Another server gets nothing in the clear.
func TestOtherServer(t *testing.T) {
	server, err := inbox.Start()
	require.NoError(t, err)
	defer server.Close()
	output, exitCode := exampletest.Run(t, nil, "-addr", server.Addr)
	require.Equal(t, 1, exitCode)
	require.Contains(t, output, "STARTTLS")
	require.Zero(t, server.Received("Your order 1001"))
}
