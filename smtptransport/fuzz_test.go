package smtptransport

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"io"
	"mime"
	"mime/multipart"
	"net"
	"net/mail"
	"net/textproto"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
)

// Whatever the server answers to the final dot: a message is sent or failed
// only where the answer has a whole line that says so.
func FuzzReplyToTheDot(f *testing.F) {
	for _, s := range []string{
		"", "2", "250", "250\r\n", "250\n", "250 ok\r\n", "251 forwarded\r\n", "299\r\n", "250-a\r\n250 b\r\n", "250-a\r\n", "250-a\r\n550 b\r\n",
		"250 ok", "250  \r\n", "2500 ok\r\n", "+25 ok\r\n", "025 ok\r\n", "099-a\r\n099 b\r\n", "150 wait\r\n", "354 go\r\n", "600 what\r\n",
		"421 bye\r\n", "451 4.3.0 later\r\n", "554-5.7.1 a\r\n554 5.7.1 b\r\n", "550\r\n", "550", "\r\n", "\n", "\x00", "ok\r\n", "250\tok\r\n", "250\x00ok\r\n",
		"250 " + strings.Repeat("x", 3000) + "\r\n", strings.Repeat("250-x\r\n", 20000), "550-a\r\nfoo\r\n550 b\r\n", "250 ok\r\n550 no\r\n", "２５０ ok\r\n", "550 5.7.1\r\n", "550 5.7.1000 x\r\n",
	} {
		f.Add([]byte(s))
	}
	whole := regexp.MustCompile(`(?m)^([1-9][0-9]{2})(?: [^\n]*|\r)?$`)
	f.Fuzz(func(t *testing.T, answer []byte) {
		receipt, err := sendToPipe(t, answer)
		lines, _, _ := cutLast(answer, '\n') // what has its line end
		said := map[byte]bool{}
		for _, m := range whole.FindAllSubmatch(lines, -1) {
			said[m[1][0]] = true
		}
		switch receipt.Status {
		case idemmail.StatusSent:
			require.True(t, said['2'], "%q", answer)
			require.NoError(t, err)
		case idemmail.StatusFailed:
			require.True(t, said['4'] || said['5'], "%q", answer)
			require.Equal(t, idemmail.NotDelivered, idemmail.ClassifyError(err))
			require.Equal(t, receipt.Retryable, strings.HasPrefix(receipt.Response, "4"))
		case idemmail.StatusUnknown:
			require.Equal(t, idemmail.DeliveryUnknown, idemmail.ClassifyError(err))
			require.False(t, receipt.Retryable)
			first, _, _ := bytes.Cut(lines, []byte("\n"))
			if len(lines) > 0 && len(first) < 1900 && whole.Match(first) {
				require.NotContains(t, "245", string(first[0]), "%q", answer)
			}
		}
	})
}

func cutLast(p []byte, c byte) (before, after []byte, found bool) {
	if i := bytes.LastIndexByte(p, c); i >= 0 {
		return p[:i+1], p[i+1:], true
	}
	return nil, p, false
}

// sendToPipe sends a message to a server that answers the final dot so, and
// closes the connection.
func sendToPipe(t *testing.T, answer []byte) (*idemmail.Receipt, error) {
	client, server := net.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer server.Close()
		in := bufio.NewReader(server)
		io.WriteString(server, "220 pipe\r\n")
		for _, reply := range []string{"250 pipe\r\n", "250 ok\r\n", "250 ok\r\n", "354 go\r\n"} {
			if _, err := in.ReadString('\n'); err != nil {
				return
			}
			io.WriteString(server, reply)
		}
		for {
			line, err := in.ReadString('\n')
			if err != nil {
				return
			}
			if line == ".\r\n" {
				server.Write(answer)
				return
			}
		}
	}()
	tr, err := New(Options{Addr: "pipe:25", TLS: NoTLS, Dial: func(context.Context, string, string) (net.Conn, error) { return client, nil }})
	require.NoError(t, err)
	r, err := tr.Send(context.Background(), &idemmail.Message{
		From: mail.Address{Address: "a@b"}, To: []mail.Address{{Address: "c@d"}}, Text: "x",
	})
	<-done
	return r, err
}

// What passes for an address is one, and nothing but one, in the envelope and
// in the header.
func FuzzAddress(f *testing.F) {
	for _, s := range []string{
		"a@b", "a.b@c.d", `"a b"@c`, `"a\"b"@c`, `"a\\"@c`, "a..b@c", ".a@b", "a@[127.0.0.1]", "a@[IPv6:::1]", "山@例え.テスト", "a@b> SIZE=1", "<a@b>", "a@b\r\nRCPT", `"a\`,
		`"<"@b`, "a@b@c", "a\x00@b", "\xff@b", "a@\u2028", "=?utf-8?q?a?=@b", "a(b)@c", `""@b`, "a@b.", `"a"@b`, `"\a"@b`, "a@xn--a.b", "`@b", `"  "@b`, `"."@b`, `"@"@b`,
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		m, err := parseMailbox(s)
		if err != nil {
			return
		}
		require.Equal(t, s, m.given)
		require.LessOrEqual(t, len(m.wire), maxAddressOctets)
		require.NotContains(t, m.wire, "<")
		require.NotContains(t, m.wire, ">")
		for i, r := range m.wire {
			require.False(t, r < ' ' || r == 0x7f || r == utf8.RuneError, "%q", m.wire)
			if r == ' ' {
				require.True(t, m.wire[0] == '"' && i < strings.LastIndexByte(m.wire, '"'), "%q", m.wire)
			}
		}
		if strings.Contains(m.wire, "@[IPv6:") {
			return // net/mail has it without the tag
		}
		a, err := mail.ParseAddress("<" + m.wire + ">")
		require.NoError(t, err, "%q", m.wire)
		require.Equal(t, m.plain, a.Address)
		again, err := parseMailbox(m.wire)
		require.NoError(t, err)
		require.Equal(t, m.wire, again.wire)
		require.Equal(t, m.key(), again.key())
	})
}

// What a message says is what a reader finds, and nothing more.
func FuzzMessage(f *testing.F) {
	f.Add("subject", "name", "value", "text", "file.txt", []byte("content"))
	f.Add("a\r\nBcc: b", "a\nb", "\x00", "\r\n.\r\n", "\"\r\n", []byte("\r\n.\r\n"))
	f.Add("=?utf-8?q?a?=", "=?utf-8?b?YQ==?=", "=?", "=_", "=?.pdf", []byte("--=_"))
	f.Add(" two  spaces ", "  ", "a  b\tc", "a \n b\t\nc", "  .  ", []byte{})
	f.Add(strings.Repeat("x", 2000), strings.Repeat("y ", 500), strings.Repeat("z", 899), strings.Repeat("t", 2000), strings.Repeat("ä", 127), make([]byte, 300))
	f.Add("Grüße", "山田, (x) \"y\"", "ä", "ä\u2028", "a;b=c%d'e*f.txt", []byte("\xff"))
	f.Add("a\tb", "\\", strings.Repeat(" ", 100)+"a", "From a\nFrom b", "a/b\\c", []byte("\n"))
	f.Fuzz(func(t *testing.T, subject, name, value, text, filename string, content []byte) {
		tr, err := New(Options{Addr: "mx.test:25"})
		require.NoError(t, err)
		m := &idemmail.Message{
			From:        mail.Address{Name: name, Address: "a@example.com"},
			To:          []mail.Address{{Address: "b@example.com"}},
			Subject:     subject,
			Text:        text,
			Header:      textproto.MIMEHeader{"X-Value": {value}},
			Attachments: []idemmail.Attachment{{Filename: filename, Content: content}},
			MessageID:   "id@example.com",
		}
		l, invalid := tr.compose(m)
		if invalid != nil {
			return
		}
		_, err = checkLines(l.data)
		require.NoError(t, err)
		read, err := mail.ReadMessage(bytes.NewReader(l.data))
		require.NoError(t, err)
		h := read.Header
		for key := range h {
			require.Contains(t, []string{"From", "To", "Subject", "X-Value", "Message-Id", "Date", "Mime-Version", "Content-Type"}, key)
			require.Len(t, h[key], 1)
		}
		words := new(mime.WordDecoder)
		got, err := words.DecodeHeader(h.Get("Subject"))
		require.NoError(t, err)
		require.Equal(t, subject, got)
		from, err := mail.ParseAddress(h.Get("From"))
		require.NoError(t, err)
		require.Equal(t, m.From, *from)
		if isASCII(value) && !strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			require.Equal(t, strings.Join(strings.Fields(value), " "), strings.Join(strings.Fields(h.Get("X-Value")), " "))
		}
		_, parameters, err := mime.ParseMediaType(h.Get("Content-Type"))
		require.NoError(t, err)
		parts := multipart.NewReader(read.Body, parameters["boundary"])
		p, err := parts.NextPart() // decodes quoted-printable
		require.NoError(t, err)
		if text != "" {
			gotText, err := io.ReadAll(p)
			require.NoError(t, err)
			require.Equal(t, lineEnds(text), string(gotText))
			p, err = parts.NextPart()
			require.NoError(t, err)
		}
		_, parameters, err = mime.ParseMediaType(p.Header.Get("Content-Disposition"))
		require.NoError(t, err)
		require.Equal(t, filename, parameters["filename"])
		encoded, err := io.ReadAll(p)
		require.NoError(t, err)
		decoded, err := io.ReadAll(base64.NewDecoder(base64.StdEncoding, bytes.NewReader(encoded)))
		require.NoError(t, err)
		require.True(t, bytes.Equal(content, decoded))
		_, err = parts.NextPart()
		require.ErrorIs(t, err, io.EOF)
	})
}

// lineEnds is what quoted-printable makes of line ends in text.
func lineEnds(s string) string {
	s = strings.ReplaceAll(s, "\r\n", "\n")
	s = strings.ReplaceAll(s, "\r", "\n")
	return strings.ReplaceAll(s, "\n", "\r\n")
}

// A raw message reaches the server as it is, but for line ends; its dots stay
// in it, and end nothing.
func FuzzRaw(f *testing.F) {
	for _, s := range []string{"a", "a\r\n", "a\n", "\n.\n", "\r\n.\r\n", "\r.\r", "\n.\r\n", "\r\n.\n", ".", "..", "\r", "\x00", "a\r\r\nb", strings.Repeat("x", 999)} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		l, invalid := composeRaw(&idemmail.RawMessage{To: []string{"a@b"}, Data: data})
		if invalid != nil {
			return
		}
		require.Equal(t, strings.ReplaceAll(strings.ReplaceAll(string(data), "\r\n", "\n"), "\n", "\r\n"), string(l.data))
		var wire bytes.Buffer
		w := textproto.NewWriter(bufio.NewWriter(&wire)).DotWriter()
		_, err := w.Write(l.data)
		require.NoError(t, err)
		require.NoError(t, w.Close())
		require.Equal(t, 1, strings.Count("\r\n"+wire.String(), "\r\n.\r\n"))
		for _, line := range strings.SplitAfter(wire.String(), "\r\n") {
			line = strings.TrimSuffix(line, "\r\n")
			require.NotContains(t, line, "\r")
			require.NotContains(t, line, "\n")
			require.LessOrEqual(t, len(line), maxLineOctets+1) // a stuffed dot
		}
	})
}
