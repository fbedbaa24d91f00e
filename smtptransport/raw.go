package smtptransport

import (
	"bytes"
	"fmt"
	"net/mail"
	"slices"
	"strings"

	"github.com/idemmail/idemmail"
)

// composeRaw looks at a message that is written down already.
func composeRaw(m *idemmail.RawMessage) (*letter, *Error) {
	if m == nil {
		return nil, invalid("", "message is nil")
	}
	l := &letter{}
	if m.From != "" {
		box, err := parseMailbox(m.From)
		if err != nil {
			return nil, invalid("From", "%w", err)
		}
		l.from = box.wire
	}
	seen := make(map[string]bool)
	for i, a := range m.To {
		box, err := parseMailbox(a)
		if err != nil {
			return nil, invalid(fmt.Sprintf("To[%d]", i), "%w", err)
		}
		l.add(seen, box)
	}
	if len(l.recipients) == 0 {
		return nil, invalid("To", "there is no recipient")
	}
	if len(m.Data) == 0 {
		return nil, invalid("Data", "is empty")
	}
	bareLF, err := checkLines(m.Data)
	if err != nil {
		return nil, invalid("Data", "%w", err)
	}
	data := m.Data
	if bareLF {
		data = toCRLF(data)
	}
	l.setData(data)
	l.messageID = messageIDOf(data)
	return l, nil
}

const maxLineOctets = 998 // RFC 5322 2.1.1, without CRLF

// checkLines refuses what servers read in different ways (a bare CR is what
// SMTP smuggling is made of) or change on the way. It reports whether some
// line ends in LF alone.
func checkLines(data []byte) (bareLF bool, err error) {
	line := 0
	for len(data) > 0 {
		line++
		text, rest, ended := bytes.Cut(data, []byte("\n"))
		data = rest
		if n := len(text); ended && n > 0 && text[n-1] == '\r' {
			text = text[:n-1]
		} else if ended {
			bareLF = true
		}
		if i := bytes.IndexAny(text, "\r\x00"); i >= 0 {
			if text[i] == 0 {
				return false, fmt.Errorf("has a NUL in line %d", line)
			}
			return false, fmt.Errorf("has a CR without LF in line %d", line)
		}
		if len(text) > maxLineOctets {
			return false, fmt.Errorf("has %d octets in line %d, %d are allowed", len(text), line, maxLineOctets)
		}
	}
	return bareLF, nil
}

// toCRLF ends every line in CRLF.
func toCRLF(data []byte) []byte {
	var b bytes.Buffer
	b.Grow(len(data) + bytes.Count(data, []byte("\n")))
	for line := range bytes.Lines(data) {
		text, ended := bytes.CutSuffix(line, []byte("\n"))
		b.Write(bytes.TrimSuffix(text, []byte("\r")))
		if ended {
			b.WriteString("\r\n")
		}
	}
	return b.Bytes()
}

// messageIDOf finds the Message-ID of a message, or answers "".
func messageIDOf(data []byte) string {
	m, err := mail.ReadMessage(bytes.NewReader(append(slices.Clip(headerOf(data)), "\r\n"...)))
	if err != nil {
		return ""
	}
	id := strings.TrimSpace(m.Header.Get("Message-Id"))
	id, opened := strings.CutPrefix(id, "<")
	id, closed := strings.CutSuffix(id, ">")
	if !opened || !closed || checkMessageID(id) != nil {
		return ""
	}
	return id
}
