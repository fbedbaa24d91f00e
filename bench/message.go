package main

import (
	"encoding/binary"
	"fmt"
	"net/mail"
	"net/textproto"
	"slices"
	"strings"
	"time"

	"github.com/idemmail/idemmail"
)

const (
	kilobyte = 1 << 10
	typical  = 22 * kilobyte // 20 KB of HTML, 2 KB of text
)

// newMessage makes a message of about so many bytes, most of them HTML.
func newMessage(size int) *idemmail.Message {
	m := &idemmail.Message{
		From:    mail.Address{Name: "Example Shop", Address: "orders@example.com"},
		To:      []mail.Address{{Name: "Ann Sample", Address: "ann@example.org"}, {Name: "Bob Sample", Address: "bob@example.org"}},
		Subject: "Your order 1042 is on its way",
		Header: textproto.MIMEHeader{
			"Auto-Submitted": {"auto-generated"}, "Feedback-Id": {"1042:orders:shop"}, "List-Id": {"orders.shop.example.com"},
			"List-Unsubscribe": {"<https://shop.example.com/u/1042>"}, "X-Campaign": {"orders"}, "X-Priority": {"3"},
		},
		Attachments: []idemmail.Attachment{{Filename: "invoice-1042.pdf", ContentType: "application/pdf"}},
		Tags:        []string{"order"},
		Metadata:    map[string]string{"order": "1042", "tenant": "north", "template": "shipped", "locale": "en-GB", "release": "2026-03"},
	}
	const text, line = "Thank you. ", "<p>Thank you.</p>\r\n"
	rest := size - len(canonical(m))
	m.Text = strings.Repeat(text, rest/11/len(text))
	m.HTML = strings.Repeat(line, (rest-len(m.Text))/len(line))
	return m
}

// canonical answers the bytes whose SHA-256 is the fingerprint of such a
// message. It knows the lists as they stand to be sorted, and lower case.
func canonical(m *idemmail.Message) []byte {
	var b []byte
	number := func(n int64) { b = binary.AppendUvarint(b, uint64(n)) }
	text := func(texts ...string) {
		for _, s := range texts {
			number(int64(len(s)))
			b = append(b, s...)
		}
	}
	list := func(length int) { number(int64(length)) }

	text("message", m.From.Name, m.From.Address)
	for _, addresses := range [][]mail.Address{m.ReplyTo, m.To, m.Cc, m.Bcc} {
		list(len(addresses))
		for _, a := range addresses {
			text(a.Name, a.Address)
		}
	}
	text(m.Subject, m.Text, m.HTML)
	list(len(m.Header))
	for _, name := range sortedNames(m.Header) {
		text(strings.ToLower(name), m.Header.Get(name))
	}
	list(len(m.Attachments))
	for _, a := range m.Attachments {
		text(a.Filename, a.ContentType)
	}
	text(m.InReplyTo)
	list(len(m.References))
	number(m.SendAt.Unix())
	list(0) // opens
	list(0) // clicks
	list(len(m.Tags))
	text(m.Tags...)
	list(len(m.Metadata))
	for _, name := range sortedNames(m.Metadata) {
		text(name, m.Metadata[name])
	}
	return b
}

func sortedNames[V any](m map[string]V) []string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// newReceipt makes a receipt with 200 bytes of text, in strings of its own.
func newReceipt(i int) *idemmail.Receipt {
	return &idemmail.Receipt{
		Status:     idemmail.StatusSent,
		Transport:  fmt.Sprintf("smtp%06d", i%10),
		MessageID:  fmt.Sprintf("%040d@mail.example.org", i),
		ProviderID: fmt.Sprintf("%030d", i),
		Response:   fmt.Sprintf("250 2.0.0 Ok: queued as %074d", i),
		At:         time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC),
	}
}

// These stand for all others.
const (
	someFingerprint = "1:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	someToken       = "JBSWY3DPEHPK3PXPJBSWY3DPEH"
)

// newKey makes a key of 32 bytes.
func newKey(i int) string { return fmt.Sprintf("orders:confirmation/%012d", i) }

// fresh has keys that nothing holds.
type fresh struct{ keys []string }

// keysMade is how many were made by all, since several may use one store.
var keysMade int

// prepare makes so many new ones in place of the last.
func (f *fresh) prepare(times int) {
	f.keys = f.keys[:0]
	for range times {
		f.keys = append(f.keys, newKey(keysMade))
		keysMade++
	}
}
