package idemmail

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A line lasts for as long as somebody stands in it, whoever that is, and
// leaves nothing behind.
func TestLineLastsUntilTheLastOneLeaves(t *testing.T) {
	var ls lines
	l, other := ls.join("k"), ls.join("other")
	require.NotSame(t, l, other)
	require.Same(t, l, ls.join("k"))
	ls.leave("k", l)
	require.Same(t, l, ls.join("k"), "one is still there")
	ls.leave("k", l)
	ls.leave("k", l)
	ls.leave("other", other)
	require.Empty(t, ls.byKey)
}

// Who comes after the answer waits for another send. He forms a line of his
// own, which those who are still to leave the first one do not take from him.
func TestAnsweredLineTakesNobodyMore(t *testing.T) {
	var ls lines
	l := ls.join("k")
	ls.answer("k", l, new(Record))
	next := ls.join("k")
	require.NotSame(t, l, next)
	ls.leave("k", l)
	require.Same(t, next, ls.join("k"))
}
