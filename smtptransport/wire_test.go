package smtptransport

import (
	"bufio"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/emersion/go-smtp"
	"github.com/stretchr/testify/require"
)

// A fakeConn takes so many octets of each Write.
type fakeConn struct {
	net.Conn
	takes int
	err   error
}

func (c *fakeConn) Write(p []byte) (int, error)      { return min(c.takes, len(p)), c.err }
func (c *fakeConn) Read([]byte) (int, error)         { return 0, io.EOF }
func (c *fakeConn) SetWriteDeadline(time.Time) error { return nil }

func TestWire(t *testing.T) {
	conn := &fakeConn{takes: 100}
	w := &wire{Conn: conn}
	w.Write([]byte("before"))
	require.False(t, w.whole)

	w.watch()
	require.False(t, w.whole, "what was written before does not count")
	w.Write([]byte("first"))
	require.True(t, w.whole)
	conn.takes = 3
	w.Write([]byte("second"))
	require.False(t, w.whole, "the last Write counts")
	conn.takes, conn.err = 100, errors.New("late")
	w.Write([]byte("third"))
	require.True(t, w.whole, "whatever the error")

	w.Read(nil)
	conn.takes = 0
	w.Write([]byte("the answer to a key update"))
	require.True(t, w.whole, "what is written after the first Read is not the dot")
	w.watch()
	require.False(t, w.whole)
}

type scriptConn struct {
	net.Conn
	io.Reader
}

func (c scriptConn) Read(p []byte) (int, error)  { return c.Reader.Read(p) }
func (c scriptConn) Write(p []byte) (int, error) { return len(p), nil }

func TestReplies(t *testing.T) {
	for _, row := range []struct {
		name, in, out string
		err           error
	}{
		{"a line", "250 ok\r\n", "250 ok\r\n", io.EOF},
		{"a code alone", "250\r\n", "250 \r\n", io.EOF},
		{"a code alone with LF", "250\n", "250 \r\n", io.EOF},
		{"many lines", "250-a\r\n250 b\r\n", "250-a\r\n250 b\r\n", io.EOF},
		{"half a line", "250 o", "", io.ErrUnexpectedEOF},
		{"half of the second", "250-a\r\n250 b", "250-a\r\n", io.ErrUnexpectedEOF},
		{"a long line", "250 " + strings.Repeat("x", 5000) + "\r\n", "", smtp.ErrTooLongLine},
	} {
		t.Run(row.name, func(t *testing.T) {
			got, err := readAll(newReplies(scriptConn{Reader: strings.NewReader(row.in)}))
			require.Equal(t, row.out, got)
			require.ErrorIs(t, err, row.err)
		})
	}
	_, err := readAll(newReplies(scriptConn{Reader: strings.NewReader(strings.Repeat("250-x\r\n", 10_000))}))
	require.ErrorIs(t, err, errReplyTooLong)
	_, err = readAll(newReplies(scriptConn{Reader: strings.NewReader("SSH-2.0\r\n")}))
	require.ErrorContains(t, err, "not a reply")

	// Ahead of a command, there is nothing.
	r := newReplies(scriptConn{Reader: strings.NewReader("250 a\r\n250 b\r\n")})
	in := bufio.NewReader(r)
	_, err = in.ReadString('\n')
	require.NoError(t, err)
	_, err = r.Write([]byte("MAIL"))
	require.ErrorIs(t, err, errUnasked)
}

func readAll(r io.Reader) (string, error) {
	var b strings.Builder
	buf := make([]byte, 7)
	for {
		n, err := r.Read(buf)
		b.Write(buf[:n])
		if err != nil {
			return b.String(), err
		}
	}
}
