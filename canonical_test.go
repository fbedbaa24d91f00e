package idemmail

import (
	"fmt"
	"net/mail"
	"net/textproto"
	"testing"

	"github.com/stretchr/testify/require"
)

// What is kept for the next message holds nothing of the last one, and no more
// room than most messages need.
func TestEncoderHoldsNoMessage(t *testing.T) {
	e := newEncoder()
	e.addresses([]mail.Address{{Name: "Ann", Address: "ann@example.org"}, {Address: "bob@example.org"}})
	e.header(textproto.MIMEHeader{"X-A": {"1"}, "X-B": {"2"}, "X-C": {"3"}}, nil)
	e.metadata(map[string]string{"a": "1"})
	require.Empty(t, e.list)
	require.Empty(t, e.names)
	for _, a := range e.list[:cap(e.list)] {
		require.Zero(t, a)
	}
	for _, name := range e.names[:cap(e.names)] {
		require.Zero(t, name)
	}
	require.NotZero(t, cap(e.list))
	require.NotZero(t, cap(e.names))

	var many []mail.Address
	fields := textproto.MIMEHeader{}
	for i := range 2 * maxScratch {
		many = append(many, mail.Address{Address: fmt.Sprint(i)})
		fields[fmt.Sprint(i)] = []string{"x"}
	}
	e.addresses(many)
	e.header(fields, nil)
	require.Zero(t, cap(e.list))
	require.Zero(t, cap(e.names))
}
