package smtptransport_test

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"io"
	"mime"
	"mime/multipart"
	"mime/quotedprintable"
	"net/mail"
	"net/textproto"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/smtptransport"
)

// An entity is a part of a message as the standard library reads it.
type entity struct {
	header     textproto.MIMEHeader
	kind       string
	parameters map[string]string
	content    string // decoded
	parts      []entity
}

func parse(t testing.TB, message string) entity {
	t.Helper()
	for line := range strings.Lines(message) {
		require.True(t, strings.HasSuffix(line, "\r\n"), "%q", line)
		require.LessOrEqual(t, len(line), 1000)
		require.NotContains(t, strings.TrimSuffix(line, "\r\n"), "\r")
	}
	head, _, _ := strings.Cut(message, "\r\n\r\n")
	for line := range strings.SplitSeq(head, "\r\n") {
		require.NotEmpty(t, strings.TrimSpace(line), "a line of spaces looks like the end of the header")
	}
	r := textproto.NewReader(bufio.NewReader(strings.NewReader(message)))
	header, err := r.ReadMIMEHeader()
	require.NoError(t, err)
	return parseEntity(t, header, r.R)
}

func parseEntity(t testing.TB, header textproto.MIMEHeader, r io.Reader) entity {
	t.Helper()
	e := entity{header: header}
	var err error
	e.kind, e.parameters, err = mime.ParseMediaType(header.Get("Content-Type"))
	require.NoError(t, err, header.Get("Content-Type"))
	if strings.HasPrefix(e.kind, "multipart/") {
		parts := multipart.NewReader(r, e.parameters["boundary"])
		for {
			p, err := parts.NextRawPart()
			if err == io.EOF {
				return e
			}
			require.NoError(t, err)
			e.parts = append(e.parts, parseEntity(t, p.Header, p))
		}
	}
	switch header.Get("Content-Transfer-Encoding") {
	case "quoted-printable":
		r = quotedprintable.NewReader(r)
	case "base64":
		r = base64.NewDecoder(base64.StdEncoding, r)
	}
	content, err := io.ReadAll(r)
	require.NoError(t, err)
	e.content = string(content)
	return e
}

// wireOf sends a message and returns it as it arrived, with its envelope.
func wireOf(t testing.TB, m *idemmail.Message, change ...func(*smtptransport.Options)) (e entity, commands []string, r *idemmail.Receipt) {
	t.Helper()
	s := newScriptedServer(t, nil, "SMTPUTF8", "8BITMIME", "SIZE 100000000")
	r, err := transport(t, s.addr, change...).Send(background, m)
	wantOutcome(t, idemmail.StatusSent, r, err)
	s.wait()
	_, commands, messages, _ := s.seen()
	require.Len(t, messages, 1)
	return parse(t, messages[0]), commands, r
}

func decode(t testing.TB, s string) string {
	t.Helper()
	text, err := new(mime.WordDecoder).DecodeHeader(s)
	require.NoError(t, err)
	return text
}

func addresses(t testing.TB, s string) (list []mail.Address) {
	t.Helper()
	parsed, err := mail.ParseAddressList(s)
	require.NoError(t, err, s)
	for _, a := range parsed {
		list = append(list, *a)
	}
	return list
}

func TestEveryFieldReachesTheWire(t *testing.T) {
	pdf := make([]byte, 10_000)
	for i := range pdf {
		pdf[i] = byte(i * 7)
	}
	png := []byte("\x89PNG\r\n\x1a\n.\r\n.\n..\r\n")
	m := &idemmail.Message{
		From:    mail.Address{Name: "Käthe Müller", Address: "kathe@example.com"},
		ReplyTo: []mail.Address{{Name: "Support, Team \"A\"", Address: "support@example.com"}, {Address: "second@example.com"}},
		To:      []mail.Address{{Name: "Zoë 山田", Address: "zoe@Example.org"}, {Address: "a..b@docomo.example"}},
		Cc:      []mail.Address{{Name: "Cc (the boss)", Address: "cc@example.org"}},
		Bcc:     []mail.Address{{Name: "Hidden", Address: "hidden@example.net"}},
		Subject: "Ihre Bestellung № 17 — 山田様, with a long subject that does not fit into one line of a header at all",
		Text:    "Grüße\n.\n..\nlast line without an end, = and trailing space \nfoo",
		HTML:    "<p>Grüße <img src=\"cid:logo@shop\"></p>" + strings.Repeat("<b>long line without any break</b>", 100),
		Header:  textproto.MIMEHeader{"X-Order": {"17", "18"}, "List-Unsubscribe": {"<https://example.com/u?" + strings.Repeat("x", 500) + ">"}, "x-umlaut": {"Grüße"}},
		Attachments: []idemmail.Attachment{
			{Filename: "Rechnung für März.pdf", ContentType: "application/pdf", Content: pdf},
			{Filename: "logo.png", ContentType: "image/png", ContentID: "logo@shop", Inline: true, Content: png},
			{Filename: "data.csv", ContentType: "text/csv; charset=iso-8859-1; header=present", Content: []byte("a;b\n\xe4;\xf6\n")},
			{Content: []byte{}},
			{Filename: "old.eml", ContentType: "message/rfc822", Content: []byte("Subject: old\r\n\r\n.\r\n")},
		},
		MessageID:      "order-17@example.com",
		InReplyTo:      "question@example.org",
		References:     []string{"first@example.org", "question@example.org"},
		Tags:           []string{"not part of the mail"},
		Metadata:       map[string]string{"k": "not part of the mail"},
		IdempotencyKey: "order:17/confirmation",
	}
	e, commands, r := wireOf(t, m, func(o *smtptransport.Options) { o.KeyHeader = "X-Idempotency-Key" })

	require.Equal(t, []string{
		"EHLO localhost",
		"MAIL FROM:<kathe@example.com> BODY=8BITMIME SIZE=" + sizeOf(t, commands),
		"RCPT TO:<zoe@Example.org>",
		`RCPT TO:<"a..b"@docomo.example>`,
		"RCPT TO:<cc@example.org>",
		"RCPT TO:<hidden@example.net>",
		"DATA",
		"QUIT",
	}, commands)
	require.Equal(t, []string{"zoe@Example.org", "a..b@docomo.example", "cc@example.org", "hidden@example.net"}, r.Accepted)
	require.Equal(t, "order-17@example.com", r.MessageID)

	h := e.header
	require.Equal(t, []mail.Address{m.From}, addresses(t, h.Get("From")))
	require.Equal(t, m.ReplyTo, addresses(t, h.Get("Reply-To")))
	require.Equal(t, m.To, addresses(t, h.Get("To")))
	require.Equal(t, m.Cc, addresses(t, h.Get("Cc")))
	require.Empty(t, h.Values("Bcc"))
	require.Equal(t, m.Subject, decode(t, h.Get("Subject")))
	require.Equal(t, "<order-17@example.com>", h.Get("Message-Id"))
	require.Equal(t, "<question@example.org>", h.Get("In-Reply-To"))
	require.Equal(t, "<first@example.org> <question@example.org>", h.Get("References"))
	require.Equal(t, []string{"17", "18"}, h.Values("X-Order"))
	require.Equal(t, m.Header["List-Unsubscribe"], h.Values("List-Unsubscribe"))
	require.Equal(t, "Grüße", decode(t, h.Get("X-Umlaut")))
	require.Equal(t, "order:17/confirmation", h.Get("X-Idempotency-Key"))
	require.Equal(t, []string{"1.0"}, h.Values("Mime-Version"))
	date, err := mail.ParseDate(h.Get("Date"))
	require.NoError(t, err)
	require.WithinDuration(t, time.Now(), date, time.Minute)

	require.Equal(t, "multipart/mixed", e.kind)
	require.Len(t, e.parts, 5)
	alternative := e.parts[0]
	require.Equal(t, "multipart/alternative", alternative.kind)
	require.Len(t, alternative.parts, 2)
	require.Equal(t, "text/plain", alternative.parts[0].kind)
	require.Equal(t, strings.ReplaceAll(m.Text, "\n", "\r\n"), alternative.parts[0].content)
	related := alternative.parts[1]
	require.Equal(t, "multipart/related", related.kind)
	require.Equal(t, "text/html", related.parameters["type"])
	require.Len(t, related.parts, 2)
	require.Equal(t, "text/html", related.parts[0].kind)
	require.Equal(t, m.HTML, related.parts[0].content)

	logo := related.parts[1]
	require.Equal(t, "image/png", logo.kind)
	require.Equal(t, "<logo@shop>", logo.header.Get("Content-Id"))
	require.Equal(t, string(png), logo.content)
	wantDisposition(t, logo, "inline", "logo.png")

	require.Equal(t, "application/pdf", e.parts[1].kind)
	require.True(t, bytes.Equal(pdf, []byte(e.parts[1].content)))
	wantDisposition(t, e.parts[1], "attachment", "Rechnung für März.pdf")
	require.Contains(t, e.parts[1].header.Get("Content-Disposition"), "filename*=utf-8''Rechnung%20f%C3%BCr", "RFC 2231")
	require.Equal(t, map[string]string{"charset": "iso-8859-1", "header": "present"}, e.parts[2].parameters)
	require.Equal(t, "a;b\n\xe4;\xf6\n", e.parts[2].content)
	require.Equal(t, "application/octet-stream", e.parts[3].kind)
	require.Empty(t, e.parts[3].content)
	wantDisposition(t, e.parts[3], "attachment", "")
	require.Equal(t, "message/rfc822", e.parts[4].kind)
	require.Equal(t, "7bit", e.parts[4].header.Get("Content-Transfer-Encoding"))
	require.Equal(t, "Subject: old\r\n\r\n.\r\n", e.parts[4].content)
}

func sizeOf(t testing.TB, commands []string) string {
	t.Helper()
	for _, c := range commands {
		if _, size, ok := strings.Cut(c, " SIZE="); ok {
			return size
		}
	}
	return "none"
}

func wantDisposition(t testing.TB, e entity, kind, filename string) {
	t.Helper()
	got, parameters, err := mime.ParseMediaType(e.header.Get("Content-Disposition"))
	require.NoError(t, err)
	require.Equal(t, kind, got)
	require.Equal(t, filename, parameters["filename"])
}

// What bodies a message has, and what it is made of.
func TestStructure(t *testing.T) {
	file := idemmail.Attachment{Filename: "a.bin", Content: []byte("a")}
	image := idemmail.Attachment{Filename: "a.png", Inline: true, ContentID: "a", Content: []byte("a")}
	for _, row := range []struct {
		name string
		m    idemmail.Message
		want string
	}{
		{"nothing", idemmail.Message{}, "text/plain"},
		{"text", idemmail.Message{Text: "t"}, "text/plain"},
		{"html", idemmail.Message{HTML: "h"}, "text/html"},
		{"both", idemmail.Message{Text: "t", HTML: "h"}, "multipart/alternative(text/plain text/html)"},
		{"file alone", idemmail.Message{Attachments: []idemmail.Attachment{file}}, "multipart/mixed(application/octet-stream)"},
		{"text and file", idemmail.Message{Text: "t", Attachments: []idemmail.Attachment{file}}, "multipart/mixed(text/plain application/octet-stream)"},
		{"html and image", idemmail.Message{HTML: "h", Attachments: []idemmail.Attachment{image}}, "multipart/related(text/html image/png)"},
		{"text and image", idemmail.Message{Text: "t", Attachments: []idemmail.Attachment{image}}, "multipart/mixed(text/plain image/png)"},
		{"all", idemmail.Message{Text: "t", HTML: "h", Attachments: []idemmail.Attachment{file, image}}, "multipart/mixed(multipart/alternative(text/plain multipart/related(text/html image/png)) application/octet-stream)"},
	} {
		t.Run(row.name, func(t *testing.T) {
			row.m.From, row.m.To = letter().From, letter().To
			e, _, _ := wireOf(t, &row.m)
			require.Equal(t, row.want, e.String())
		})
	}
}

func (e entity) String() string {
	if len(e.parts) == 0 {
		return e.kind
	}
	var parts []string
	for _, p := range e.parts {
		parts = append(parts, p.String())
	}
	return e.kind + "(" + strings.Join(parts, " ") + ")"
}

// Subjects, names and file names that folding or a reader of encoded-words
// could change.
func TestAwkwardText(t *testing.T) {
	for _, text := range []string{
		"plain",
		" leading and trailing ",
		"two  spaces  in  a  row " + strings.Repeat("and a word that is longer ", 10),
		strings.Repeat("x", 3000),
		"ß" + strings.Repeat("x", 3000),
		strings.Repeat("山", 500),
		strings.Repeat(" ", 300) + "x",
		"x" + strings.Repeat(" ", 300) + strings.Repeat("y", 100),
		"tab\there",
		"=?utf-8?q?not_an_encoded-word?=",
		"a =?utf-8?q?b?= c",
		"\x01control\x7f",
		"quote \" backslash \\ comma, semicolon; <angle> (round) [square] @ : .",
		"Grüße, \"K\" <k@example.com> (x)",
		`Grüße \ K`,
		"👩‍👩‍👧 family",
		"a\u2028b\u00a0c",
	} {
		t.Run(text[:min(len(text), 20)], func(t *testing.T) {
			m := letter()
			m.Subject = text
			m.From.Name = text
			filename := text[:min(len(text), 250)]
			filename = strings.ToValidUTF8(filename, "")
			m.Attachments = []idemmail.Attachment{{Filename: filename}}
			e, _, _ := wireOf(t, m)
			require.Equal(t, text, decode(t, e.header.Get("Subject")))
			require.Equal(t, text, addresses(t, e.header.Get("From"))[0].Name)
			wantDisposition(t, e.parts[1], "attachment", filename)
		})
	}
}

// Values of Header may be structured, and are not encoded: what folding would
// make of spaces in a row is seen to before.
func TestSpacesInHeader(t *testing.T) {
	long := strings.Repeat("y", 68) + "  " + strings.Repeat("z", 90)
	m := letter()
	m.Header = textproto.MIMEHeader{"X-Long": {long}, "X-Short": {" a  b\tc "}, "X-Empty": {"", "   "}, "X-None": nil}
	e, _, _ := wireOf(t, m)
	require.Equal(t, strings.Replace(long, "  ", " ", 1), e.header.Get("X-Long"))
	require.Equal(t, "a  b\tc", e.header.Get("X-Short"))
	require.Equal(t, []string{"", ""}, e.header.Values("X-Empty"))
	require.Empty(t, e.header.Values("X-None"))
}

// The same message gives the same octets, but for the time and the Message-ID
// that it does not say.
func TestSameMessageSameOctets(t *testing.T) {
	m := letter()
	m.HTML, m.MessageID = "<p>", "a@b"
	m.Attachments = []idemmail.Attachment{{Filename: "a"}}
	m.Header = textproto.MIMEHeader{"Date": {"Mon, 02 Jan 2006 15:04:05 +0000"}, "X-A": {"1"}, "X-B": {"2"}, "X-C": {"3"}, "X-D": {"4"}}
	s := newScriptedServer(t, nil)
	for range 20 {
		_, err := transport(t, s.addr).Send(background, m)
		require.NoError(t, err)
	}
	_, _, messages, _ := s.seen()
	for _, message := range messages {
		require.Equal(t, messages[0], message)
	}
	require.Contains(t, messages[0], "\r\nDate: Mon, 02 Jan 2006 15:04:05 +0000\r\n")
	require.Equal(t, 1, strings.Count(messages[0], "Date: "))
}

func TestMessageIDIsMade(t *testing.T) {
	e, _, r := wireOf(t, letter())
	require.Regexp(t, `^[a-z0-9]{26}@example\.com$`, r.MessageID)
	require.Equal(t, "<"+r.MessageID+">", e.header.Get("Message-Id"))
	_, _, again := wireOf(t, letter())
	require.NotEqual(t, r.MessageID, again.MessageID)

	m := letter()
	m.From.Address = "kathe@müller.example"
	_, _, r = wireOf(t, m, func(o *smtptransport.Options) { o.Hello = "app.example.com" })
	require.Regexp(t, `^[a-z0-9]{26}@app\.example\.com$`, r.MessageID)
}

func TestRecipientsOnce(t *testing.T) {
	m := letter("ann@example.org", "ann@EXAMPLE.org", "Ann@example.org", `"ann"@example.org`)
	m.Cc = []mail.Address{{Address: "ann@example.org"}, {Address: "bob@example.org"}}
	m.Bcc = []mail.Address{{Address: "bob@example.org"}}
	e, commands, r := wireOf(t, m)
	require.Equal(t, []string{"ann@example.org", "Ann@example.org", "bob@example.org"}, r.Accepted)
	require.Contains(t, commands, "RCPT TO:<Ann@example.org>")
	require.Len(t, addresses(t, e.header.Get("To")), 4, "the header shows what the message says")
}

// Addresses beyond ASCII go where SMTPUTF8 is offered, and only there.
func TestSMTPUTF8(t *testing.T) {
	m := letter("zoë@müller.example")
	e, commands, _ := wireOf(t, m)
	require.True(t, strings.HasPrefix(commands[1], "MAIL FROM:<shop@example.com> BODY=8BITMIME SIZE="))
	require.True(t, strings.HasSuffix(commands[1], " SMTPUTF8"))
	require.Contains(t, commands, "RCPT TO:<zoë@müller.example>")
	require.Equal(t, "<zoë@müller.example>", e.header.Get("To"))

	for name, extensions := range map[string][]string{"not offered": nil, "offered without 8BITMIME": {"SMTPUTF8"}} {
		t.Run(name, func(t *testing.T) {
			s := newScriptedServer(t, nil, extensions...)
			r, err := transport(t, s.addr).Send(background, m)
			wantOutcome(t, idemmail.StatusFailed, r, err)
			require.Equal(t, smtptransport.PhaseMail, phaseOf(t, err))
			require.Equal(t, idemmail.CategoryValidation, r.Category)
			require.False(t, r.Retryable)
			_, commands, _, _ := s.seen()
			require.NotContains(t, strings.Join(commands, "\n"), "MAIL")
		})
	}
}

// Without extensions, what goes out is ASCII.
func TestNoExtensions(t *testing.T) {
	m := letter()
	m.Subject, m.Text = "Grüße", "Grüße 山田"
	s := newScriptedServer(t, nil)
	r, err := transport(t, s.addr).Send(background, m)
	wantOutcome(t, idemmail.StatusSent, r, err)
	_, commands, messages, _ := s.seen()
	require.Contains(t, commands, "MAIL FROM:<shop@example.com>")
	for _, c := range []byte(messages[0]) {
		require.Less(t, c, byte(128))
	}
}

func TestSizeIsLooked(t *testing.T) {
	m := letter()
	m.Text = strings.Repeat("x\n", 2000)
	s := newScriptedServer(t, nil, "SIZE 1000")
	results := transport(t, s.addr).SendMany(background, []*idemmail.Message{m, letter()})
	wantOutcome(t, idemmail.StatusFailed, results[0].Receipt, results[0].Err)
	require.Equal(t, idemmail.CategoryValidation, results[0].Receipt.Category)
	wantOutcome(t, idemmail.StatusSent, results[1].Receipt, results[1].Err)
	connections, _, _, _ := s.seen()
	require.Equal(t, 1, connections)
}
