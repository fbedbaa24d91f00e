package main

import (
	"errors"
	"io"
	"net"
	"net/textproto"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/examples/internal/exampletest"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

func TestExample(t *testing.T) {
	output, exitCode := exampletest.Run(t, nil)
	require.Zero(t, exitCode)
	lines := strings.Split(output, "\n")
	for i, line := range []string{
		`order/1001/confirmation +ada@example.org +sent +sent before +1`,
		`order/1002/confirmation +nobody@example.org +failed for good +failed for good +0`,
		`order/1003/confirmation +lost@example.org +unknown +unknown, left alone +1`,
		`order/1004/confirmation +bob@example.org +failed, try later +sent +1`,
	} {
		require.Regexp(t, "^"+line+"$", lines[i+1])
	}
}

func TestOutcome(t *testing.T) {
	refused := &textproto.Error{Code: 554, Msg: "no"}
	for _, c := range []struct {
		name     string
		err      error
		delivery idemmail.Delivery
	}{
		{"no connection", &mailError{"connect", io.EOF}, idemmail.NotDelivered},
		{"lost before the content", &mailError{"envelope", io.EOF}, idemmail.NotDelivered},
		{"content refused", &mailError{"content", refused}, idemmail.NotDelivered},
		{"lost in the content", &mailError{"content", io.EOF}, idemmail.DeliveryUnknown},
		{"closed in the content", &mailError{"content", net.ErrClosed}, idemmail.DeliveryUnknown},
		{"what says nothing, in the content", &mailError{"content", errors.New("odd")}, idemmail.DeliveryUnknown},
		{"an error that is not the mailer's", errors.New("odd"), idemmail.DeliveryUnknown},
	} {
		err := outcome(c.err)
		require.ErrorIs(t, err, c.err, c.name)
		require.Equal(t, c.delivery, idemmail.ClassifyError(err), c.name)
	}
	require.NoError(t, outcome(nil))
	require.NoError(t, outcome(&mailError{"goodbye", refused}), "the server has it")
	require.NoError(t, outcome(&mailError{"goodbye", io.EOF}), "the server has it")
}
