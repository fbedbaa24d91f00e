package smtptransport_test

import (
	"fmt"
	"net/mail"
	"net/textproto"
	"strings"
	"testing"
	"time"

	"github.com/emersion/go-sasl"
	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/smtptransport"
)

// What cannot be sent as it is, is refused before anything is dialled, naming
// the field.
func TestRefusedBeforeDialling(t *testing.T) {
	type row struct {
		name   string
		field  string
		change func(*idemmail.Message)
	}
	rows := []row{
		{"no sender", "From.Address", func(m *idemmail.Message) { m.From = mail.Address{} }},
		{"no recipient", "To", func(m *idemmail.Message) { m.To = nil }},
		{"empty recipient", "To[1].Address", func(m *idemmail.Message) { m.To = append(m.To, mail.Address{Name: "Nobody"}) }},
		{"SendAt to come", "SendAt", func(m *idemmail.Message) { m.SendAt = time.Now().Add(time.Hour) }},
		{"a Date that is none", `Header["Date"]`, func(m *idemmail.Message) { m.Header = textproto.MIMEHeader{"Date": {"today"}} }},
		{"two Dates", `Header["Date"]`, func(m *idemmail.Message) {
			m.Header = textproto.MIMEHeader{"Date": {"Mon, 02 Jan 2006 15:04:05 +0000", "Mon, 02 Jan 2006 15:04:05 +0000"}}
		}},
		{"a word that no line holds", `Header["X-A"]`, func(m *idemmail.Message) { m.Header = textproto.MIMEHeader{"X-A": {strings.Repeat("x", 1200)}} }},
		{"MessageID in brackets", "MessageID", func(m *idemmail.Message) { m.MessageID = "<a@b>" }},
		{"MessageID with a space", "MessageID", func(m *idemmail.Message) { m.MessageID = "a b@c" }},
		{"MessageID that no line holds", "MessageID", func(m *idemmail.Message) { m.MessageID = strings.Repeat("x", 1000) + "@b" }},
		{"References with two ids in one", "References[0]", func(m *idemmail.Message) { m.References = []string{"a@b> <c@d"} }},
		{"an empty reference", "References[1]", func(m *idemmail.Message) { m.References = []string{"a@b", ""} }},
		{"ContentType that is none", "Attachments[0].ContentType", func(m *idemmail.Message) { m.Attachments = []idemmail.Attachment{{ContentType: "pdf"}} }},
		{"ContentType of parts", "Attachments[0].ContentType", func(m *idemmail.Message) { m.Attachments = []idemmail.Attachment{{ContentType: "multipart/mixed"}} }},
		{"ContentType with half a parameter", "Attachments[0].ContentType", func(m *idemmail.Message) { m.Attachments = []idemmail.Attachment{{ContentType: "text/plain; x"}} }},
		{"ContentID in brackets", "Attachments[0].ContentID", func(m *idemmail.Message) { m.Attachments = []idemmail.Attachment{{ContentID: "<a@b>"}} }},
		{"a long file name", "Attachments[0].Filename", func(m *idemmail.Message) {
			m.Attachments = []idemmail.Attachment{{Filename: strings.Repeat("x", 256)}}
		}},
		{"a message inside that must not be encoded", "Attachments[0].Content", func(m *idemmail.Message) {
			m.Attachments = []idemmail.Attachment{{ContentType: "message/rfc822", Content: []byte("Subject: \xc3\xa4\r\n\r\n")}}
		}},
		{"a message inside with a bare CR", "Attachments[0].Content", func(m *idemmail.Message) {
			m.Attachments = []idemmail.Attachment{{ContentType: "message/rfc822", Content: []byte("Subject: a\rb\r\n\r\n")}}
		}},
		{"the header of the key", `Header["x-key"]`, func(m *idemmail.Message) { m.Header = textproto.MIMEHeader{"x-key": {"mine"}} }},
	}
	for _, name := range []string{"From", "to", "CC", "Bcc", "Reply-To", "Subject", "Message-ID", "Message-Id", "In-Reply-To", "References",
		"MIME-Version", "Content-Type", "content-transfer-encoding", "Content-Disposition", "Content-ID", "Return-Path", "Resent-Bcc",
		"", "X Y", "X:Y", "X\tY", "Xä", "X\r\nBcc", "X\x00", strings.Repeat("X", 77)} {
		rows = append(rows, row{"header name " + name, fmt.Sprintf("Header[%q]", name), func(m *idemmail.Message) {
			m.Header = textproto.MIMEHeader{name: {"v"}}
		}})
	}
	for _, bait := range []struct{ name, text string }{
		{"CR", "a\rb"}, {"LF", "a\nb"}, {"CRLF and a field", "a\r\nBcc: eve@example.com"}, {"NUL", "a\x00b"}, {"invalid UTF-8", "a\xffb"},
	} {
		for field, change := range map[string]func(*idemmail.Message, string){
			"From.Name":               func(m *idemmail.Message, s string) { m.From.Name = s },
			"From.Address":            func(m *idemmail.Message, s string) { m.From.Address = s + "@example.com" },
			"ReplyTo[0].Name":         func(m *idemmail.Message, s string) { m.ReplyTo = []mail.Address{{Name: s, Address: "a@b"}} },
			"ReplyTo[0].Address":      func(m *idemmail.Message, s string) { m.ReplyTo = []mail.Address{{Address: "a@" + s}} },
			"To[0].Name":              func(m *idemmail.Message, s string) { m.To[0].Name = s },
			"To[0].Address":           func(m *idemmail.Message, s string) { m.To[0].Address = "a@b" + s },
			"Cc[0].Name":              func(m *idemmail.Message, s string) { m.Cc = []mail.Address{{Name: s, Address: "a@b"}} },
			"Cc[0].Address":           func(m *idemmail.Message, s string) { m.Cc = []mail.Address{{Address: `"` + s + `"@b`}} },
			"Bcc[0].Name":             func(m *idemmail.Message, s string) { m.Bcc = []mail.Address{{Name: s, Address: "a@b"}} },
			"Bcc[0].Address":          func(m *idemmail.Message, s string) { m.Bcc = []mail.Address{{Address: s}} },
			"Subject":                 func(m *idemmail.Message, s string) { m.Subject = s },
			"MessageID":               func(m *idemmail.Message, s string) { m.MessageID = s + "@b" },
			"InReplyTo":               func(m *idemmail.Message, s string) { m.InReplyTo = s + "@b" },
			"References[0]":           func(m *idemmail.Message, s string) { m.References = []string{s + "@b"} },
			`Header["X-A"]`:           func(m *idemmail.Message, s string) { m.Header = textproto.MIMEHeader{"X-A": {"fine", s}} },
			"Attachments[0].Filename": func(m *idemmail.Message, s string) { m.Attachments = []idemmail.Attachment{{Filename: s}} },
			"Attachments[0].ContentType": func(m *idemmail.Message, s string) {
				m.Attachments = []idemmail.Attachment{{ContentType: "text/plain; x=\"" + s + "\""}}
			},
			"Attachments[0].ContentID": func(m *idemmail.Message, s string) { m.Attachments = []idemmail.Attachment{{ContentID: s + "@b"}} },
			"IdempotencyKey":           func(m *idemmail.Message, s string) { m.IdempotencyKey = s },
		} {
			rows = append(rows, row{bait.name + " in " + field, field, func(m *idemmail.Message) { change(m, bait.text) }})
		}
	}
	for _, address := range smugglers {
		rows = append(rows,
			row{"From " + address, "From.Address", func(m *idemmail.Message) { m.From.Address = address }},
			row{"To " + address, "To[0].Address", func(m *idemmail.Message) { m.To[0].Address = address }},
			row{"Bcc " + address, "Bcc[0].Address", func(m *idemmail.Message) { m.Bcc = []mail.Address{{Address: address}} }},
		)
	}
	s := newScriptedServer(t, nil, "SMTPUTF8", "8BITMIME")
	tr := transport(t, s.addr, func(o *smtptransport.Options) { o.KeyHeader = "X-Key" })
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			m := letter()
			row.change(m)
			r, err := tr.Send(background, m)
			wantInvalid(t, row.field, r, err)
		})
	}
	t.Run("nil", func(t *testing.T) {
		r, err := tr.Send(background, nil)
		wantInvalid(t, "", r, err)
		r, err = tr.SendRaw(background, nil)
		wantInvalid(t, "", r, err)
	})
	connections, _, _, _ := s.seen()
	require.Zero(t, connections)
}

// smugglers are addresses with more than an address in them, or less.
var smugglers = []string{
	"a@b> SIZE=1", "c@d> NOTIFY=NEVER", "a@b>\r\nRCPT TO:<eve@example.com", "a@b SIZE=1", "a> NOTIFY=NEVER@b", "a NOTIFY=NEVER@b",
	"<a@b>", "a@b, c@d", "a@b;c@d", "Ann <a@b>", "@relay:a@b", "a@b@c", "a", "@b", "a@", "a@.", "a@b..c", "a@-b", "a@b-", "a@b.", "a@b c",
	"a@[127.0.0.1", "a@[1.2.3]", "a@[::1]", "a@[IPv6:127.0.0.1]", "a@[IPv6:fe80::1%eth0]", `"a@b`, `a"b@c`, `""@b`, `"a"b"@c`, `"a\"@b`, `"<"@b`, `"a> SIZE=1"@b`,
	"a(comment)@b", "a\\b@c", "a@b(comment)", "a\u200b@b", "a@b\u3000c", "a\u00a0b@c", "a@b\u2028", "a\u0085b@c", "a@" + strings.Repeat("x", 64) + ".com",
	strings.Repeat("x", 250) + "@example.com", strings.Repeat("\\", 3) + "@b", "a:b@c", "a,b@c", "a@b/c", "a@b%c", "a@b_c d", "\"a  \r\n b\"@c",
}

func TestAddressesThatPass(t *testing.T) {
	for address, wire := range map[string]string{
		"a@b":                        "a@b",
		"first.last+tag@example.com": "first.last+tag@example.com",
		"!#$%&'*+-/=?^_`{|}~@b":      "!#$%&'*+-/=?^_`{|}~@b",
		"a@[192.0.2.1]":              "a@[192.0.2.1]",
		"a@[IPv6:2001:db8::1]":       "a@[IPv6:2001:db8::1]",
		"a@_dmarc.example.com":       "a@_dmarc.example.com",
		".a@b":                       `".a"@b`,
		"a.@b":                       `"a."@b`,
		"a..b@c":                     `"a..b"@c`,
		`"a b"@c`:                    `"a b"@c`,
		`"a\"b"@c`:                   `"a\"b"@c`,
		`"a@b"@c`:                    `"a@b"@c`,
		`"plain"@c`:                  `plain@c`,
		"zoë@müller.example":         "zoë@müller.example",
		"山田@例え.テスト":                  "山田@例え.テスト",
	} {
		t.Run(address, func(t *testing.T) {
			m := letter(address)
			m.From.Address = address
			e, commands, r := wireOf(t, m)
			require.True(t, strings.HasPrefix(commands[1], "MAIL FROM:<"+wire+">"), commands[1])
			require.Contains(t, commands, "RCPT TO:<"+wire+">")
			require.Equal(t, []string{address}, r.Accepted)
			require.Equal(t, "<"+wire+">", e.header.Get("To"))
		})
	}
}

func wantInvalid(t testing.TB, field string, r *idemmail.Receipt, err error) {
	t.Helper()
	wantOutcome(t, idemmail.StatusFailed, r, err)
	var e *smtptransport.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, field, e.Field, "%v", err)
	require.Contains(t, err.Error(), field)
	require.Equal(t, smtptransport.PhaseMessage, e.Phase)
	require.Equal(t, smtptransport.CodeInvalid, r.Code)
	require.Equal(t, idemmail.CategoryValidation, r.Category)
	require.False(t, r.Retryable)
}

// What a message asks for that is not part of a mail does not keep it from
// being sent.
func TestWhatIsNotPartOfAMail(t *testing.T) {
	yes := true
	m := letter()
	m.Tracking = idemmail.Tracking{Opens: &yes, Clicks: &yes}
	m.Tags = []string{"a\r\nb"}
	m.Metadata = map[string]string{"a\r\nb": "c\r\nd"}
	m.SendAt = time.Now().Add(-time.Hour)
	e, _, _ := wireOf(t, m)
	require.Len(t, e.header, 8)
}

func TestOptions(t *testing.T) {
	auth := func() sasl.Client { return nil }
	for _, row := range []struct {
		field string
		opts  smtptransport.Options
	}{
		{"Addr", smtptransport.Options{}},
		{"Addr", smtptransport.Options{Addr: "mx.test"}},
		{"Addr", smtptransport.Options{Addr: ":25"}},
		{"Addr", smtptransport.Options{Addr: "mx.test:"}},
		{"TLS", smtptransport.Options{Addr: "mx.test:25", TLS: 3}},
		{"TLS", smtptransport.Options{Addr: "mx.test:25", TLS: -1}},
		{"TLS", smtptransport.Options{Addr: "mx.test:25", TLS: smtptransport.NoTLS, Username: "ann", Password: "secret"}},
		{"TLS", smtptransport.Options{Addr: "192.0.2.1:25", TLS: smtptransport.NoTLS, Username: "ann"}},
		{"TLS", smtptransport.Options{Addr: "mx.test:25", TLS: smtptransport.NoTLS, Auth: auth}},
		{"TLS", smtptransport.Options{Addr: "localhost.example.com:25", TLS: smtptransport.NoTLS, Auth: auth}},
		{"Username", smtptransport.Options{Addr: "mx.test:25", Password: "secret"}},
		{"Username", smtptransport.Options{Addr: "mx.test:25", Username: "a\x00b"}},
		{"Password", smtptransport.Options{Addr: "mx.test:25", Username: "ann", Password: "a\x00b"}},
		{"Auth", smtptransport.Options{Addr: "mx.test:25", Username: "ann", Auth: auth}},
		{"Hello", smtptransport.Options{Addr: "mx.test:25", Hello: "a b\tc"}},
		{"Hello", smtptransport.Options{Addr: "mx.test:25", Hello: "a\r\nMAIL"}},
		{"Hello", smtptransport.Options{Addr: "mx.test:25", Hello: "müller.example"}},
		{"Timeout", smtptransport.Options{Addr: "mx.test:25", Timeout: -1}},
		{"FinalTimeout", smtptransport.Options{Addr: "mx.test:25", FinalTimeout: -1}},
		{"KeyHeader", smtptransport.Options{Addr: "mx.test:25", KeyHeader: "X Key"}},
		{"KeyHeader", smtptransport.Options{Addr: "mx.test:25", KeyHeader: "Bcc"}},
		{"KeyHeader", smtptransport.Options{Addr: "mx.test:25", KeyHeader: "date"}},
	} {
		t.Run(row.field, func(t *testing.T) {
			tr, err := smtptransport.New(row.opts)
			require.Nil(t, tr)
			require.ErrorContains(t, err, "smtptransport: Options."+row.field+": ")
			require.NotContains(t, err.Error(), "secret")
		})
	}
	for _, addr := range []string{"localhost:25", "127.0.0.1:25", "127.9.9.9:25", "[::1]:25", "[::ffff:127.0.0.1]:25"} {
		_, err := smtptransport.New(smtptransport.Options{Addr: addr, TLS: smtptransport.NoTLS, Username: "ann", Password: "secret"})
		require.NoError(t, err, addr)
	}
	tr, err := smtptransport.New(smtptransport.Options{Addr: "mx.test:25", Hello: "[192.0.2.1]"})
	require.NoError(t, err)
	require.Equal(t, "smtp", tr.ID())
	tr, err = smtptransport.New(smtptransport.Options{Addr: "mx.test:25", ID: "smtp-eu"})
	require.NoError(t, err)
	require.Equal(t, "smtp-eu", tr.ID())
}
