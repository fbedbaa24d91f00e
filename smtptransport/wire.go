package smtptransport

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/textproto"
	"time"

	"github.com/emersion/go-smtp"
)

// A wire is the network connection beneath everything, TLS too. Each Write has
// a deadline of its own, since go-smtp sets none while it writes a message.
//
// It is the witness of whether a message can have been taken. The server takes
// it only with the last octet of CRLF.CRLF (RFC 5321 4.1.1.4, 4.1.1.10), and
// can have that octet only if the kernel took all of the Write that held it,
// whatever error came with it. TLS writes a record by one Write.
type wire struct {
	net.Conn
	timeout time.Duration

	watching bool // until the next Read: what is read then is not about this Write
	whole    bool // while watching, the last Write was taken whole
}

// watch begins to look at whether the last Write is taken whole. What was
// written before does not count.
func (w *wire) watch() { w.watching, w.whole = true, false }

func (w *wire) Write(p []byte) (int, error) {
	if w.watching {
		w.whole = false
	}
	if err := w.SetWriteDeadline(time.Now().Add(w.timeout)); err != nil {
		return 0, err
	}
	n, err := w.Conn.Write(p)
	if w.watching {
		w.whole = n == len(p)
	}
	return n, err
}

// Read ends the watch: a Write that comes later (TLS answers a key update from
// within a Read) is not the final dot's.
func (w *wire) Read(p []byte) (int, error) {
	w.watching = false
	return w.Conn.Read(p)
}

// maxReply bounds a reply of many lines, in octets.
const maxReply = 64 << 10

// A replies hands the server's lines to go-smtp one by one, and is stricter
// than its reader where that would take half an answer for a whole one:
//
//   - A line that the end of the connection cut off is an error, not a line.
//   - A code alone ("250" CRLF), which RFC 5321 4.2 allows, is a reply.
//   - A reply has at most maxReply octets.
//   - What does not begin with a code and a space or hyphen is an error at
//     once. "SSH-2.0" would be taken for the first of many lines.
//   - What the server wrote without being asked is an error before the next
//     command, or the final dot, is written. A reply that is one ahead would
//     stand for the wrong command from there on.
type replies struct {
	net.Conn
	lines *bufio.Reader
	rest  []byte // of the line that is being handed on
	room  int    // octets that the present reply may still have
}

func newReplies(conn net.Conn) *replies {
	return &replies{Conn: conn, lines: bufio.NewReader(conn), room: maxReply}
}

func (r *replies) Read(p []byte) (int, error) {
	if len(r.rest) == 0 {
		line, err := r.lines.ReadSlice('\n')
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			return 0, smtp.ErrTooLongLine
		case errors.Is(err, io.EOF) && len(line) > 0:
			return 0, io.ErrUnexpectedEOF
		case err != nil:
			return 0, err
		}
		line = withSpace(line)
		if r.room == maxReply && !isReply(line) {
			return 0, textproto.ProtocolError(fmt.Sprintf("not a reply: %.40q", line))
		}
		if r.room -= len(line); r.room < 0 {
			return 0, errReplyTooLong
		}
		r.rest = line
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

func (r *replies) Write(p []byte) (int, error) {
	if r.unread() {
		return 0, errUnasked
	}
	r.room = maxReply
	return r.Conn.Write(p)
}

// unread reports whether something has come that nobody has asked for yet.
func (r *replies) unread() bool { return len(r.rest) > 0 || r.lines.Buffered() > 0 }

// isReply reports whether a line begins as RFC 5321 4.2 has it. The first
// digit of a code is at least 1; textproto refuses a smaller one too.
func isReply(line []byte) bool {
	return len(line) > 3 && isShortNumber(string(line[:3])) && line[0] != '0' && (line[3] == ' ' || line[3] == '-')
}

// withSpace adds the space that net/textproto expects after a code that stands
// alone.
func withSpace(line []byte) []byte {
	code := line[:len(line)-1]
	if n := len(code); n > 0 && code[n-1] == '\r' {
		code = code[:n-1]
	}
	if len(code) != 3 || !isShortNumber(string(code)) {
		return line
	}
	return append(append([]byte{}, code...), " \r\n"...)
}
