package smtptransport_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/smtptransport"
)

func TestRaw(t *testing.T) {
	for _, row := range []struct {
		name       string
		data, want string
		id         string
		from       string
		mail       string
	}{
		{"as it is", "Message-ID: <a@b>\r\nSubject: x\r\n\r\n.\r\n..\r\nend\r\n", "", "a@b", "shop@example.com", "<shop@example.com> BODY=8BITMIME"},
		{"null sender", "Subject: bounce\r\n\r\nx\r\n", "", "", "", "<> BODY=8BITMIME"},
		{"lines that end in LF", "Message-ID: <a@b>\nSubject: x\n\n.\nmixed\r\nend", "Message-ID: <a@b>\r\nSubject: x\r\n\r\n.\r\nmixed\r\nend\r\n", "a@b", "shop@example.com", "<shop@example.com>"},
		{"folded Message-ID", "Subject: x\r\nmessage-id:\r\n <a@b>\r\n\r\nx\r\n", "", "a@b", "shop@example.com", "<shop@example.com>"},
		{"no body", "Subject: x\r\n", "", "", "shop@example.com", "<shop@example.com>"},
		{"no header", "\r\nbody\r\n", "", "", "shop@example.com", "<shop@example.com>"},
		{"not a message", "hello\r\n", "", "", "shop@example.com", "<shop@example.com>"},
		{"8bit body", "Subject: x\r\n\r\n\xe4\r\n", "", "", "shop@example.com", "<shop@example.com> BODY=8BITMIME"},
		{"a line of 998", "Subject: x\r\n\r\n" + strings.Repeat("x", 998) + "\r\n", "", "", "shop@example.com", "<shop@example.com>"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			s := newScriptedServer(t, nil, "8BITMIME")
			m := &idemmail.RawMessage{From: row.from, To: []string{"ann@example.org", "ann@EXAMPLE.org"}, Data: []byte(row.data)}
			r, err := transport(t, s.addr).SendRaw(background, m)
			wantOutcome(t, sent, r, err)
			require.Equal(t, row.id, r.MessageID)
			require.Equal(t, []string{"ann@example.org"}, r.Accepted)
			require.Equal(t, row.data, string(m.Data), "the caller's data is left alone")
			_, commands, messages, _ := s.seen()
			want := row.want
			if want == "" {
				want = row.data
			}
			require.Equal(t, []string{want}, messages)
			require.Contains(t, commands[1], "MAIL FROM:"+row.mail)
		})
	}
}

func TestRawRefused(t *testing.T) {
	good := "Subject: x\r\n\r\nx\r\n"
	for _, row := range []struct {
		name, field string
		m           idemmail.RawMessage
	}{
		{"no recipient", "To", idemmail.RawMessage{From: "a@b", Data: []byte(good)}},
		{"empty recipient", "To[1]", idemmail.RawMessage{From: "a@b", To: []string{"c@d", ""}, Data: []byte(good)}},
		{"smuggled parameter", "To[0]", idemmail.RawMessage{From: "a@b", To: []string{"c@d> NOTIFY=NEVER"}, Data: []byte(good)}},
		{"smuggled parameter in the sender", "From", idemmail.RawMessage{From: "a@b> SIZE=1", To: []string{"c@d"}, Data: []byte(good)}},
		{"no data", "Data", idemmail.RawMessage{From: "a@b", To: []string{"c@d"}}},
		{"bare CR", "Data", idemmail.RawMessage{From: "a@b", To: []string{"c@d"}, Data: []byte("Subject: x\r\n\r\na\r.\rb\r\n")}},
		{"bare CR in the header", "Data", idemmail.RawMessage{From: "a@b", To: []string{"c@d"}, Data: []byte("Subject: x\rBcc: y\r\n\r\n")}},
		{"CR CR LF", "Data", idemmail.RawMessage{From: "a@b", To: []string{"c@d"}, Data: []byte("Subject: x\r\n\r\na\r\r\nb\r\n")}},
		{"CR at the end", "Data", idemmail.RawMessage{From: "a@b", To: []string{"c@d"}, Data: []byte("Subject: x\r\n\r\na\r")}},
		{"NUL", "Data", idemmail.RawMessage{From: "a@b", To: []string{"c@d"}, Data: []byte("Subject: x\r\n\r\na\x00b\r\n")}},
		{"overlong line", "Data", idemmail.RawMessage{From: "a@b", To: []string{"c@d"}, Data: []byte("Subject: x\r\n\r\n" + strings.Repeat("x", 999) + "\r\n")}},
		{"overlong last line", "Data", idemmail.RawMessage{From: "a@b", To: []string{"c@d"}, Data: []byte("Subject: x\r\n\r\n" + strings.Repeat("x", 999))}},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			s := newScriptedServer(t, nil)
			r, err := transport(t, s.addr).SendRaw(background, &row.m)
			wantInvalid(t, row.field, r, err)
			connections, _, _, _ := s.seen()
			require.Zero(t, connections)
		})
	}
}

// What the server does not offer keeps a message that needs it from going.
func TestRawNeedsExtension(t *testing.T) {
	for name, row := range map[string]struct {
		data       string
		extensions []string
		status     idemmail.Status
	}{
		"8bit body, not offered":   {"Subject: x\r\n\r\n\xe4\r\n", nil, failed},
		"8bit body without header": {"\r\n\xe4\r\n", []string{"8BITMIME"}, sent},
		"8bit header, not offered": {"Subject: \xc3\xa4\r\n\r\nx\r\n", []string{"8BITMIME"}, failed},
		"8bit header, offered":     {"Subject: \xc3\xa4\r\n\r\nx\r\n", []string{"8BITMIME", "SMTPUTF8"}, sent},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScriptedServer(t, nil, row.extensions...)
			r, err := transport(t, s.addr).SendRaw(background, &idemmail.RawMessage{From: "a@b", To: []string{"c@d"}, Data: []byte(row.data)})
			wantOutcome(t, row.status, r, err)
			if row.status == failed {
				require.Equal(t, smtptransport.CodeInvalid, r.Code)
			}
		})
	}
}
