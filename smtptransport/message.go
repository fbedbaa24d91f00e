package smtptransport

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net/mail"
	"slices"
	"strings"
	"time"

	"github.com/idemmail/idemmail"
)

// A letter is a message that is ready for the dialogue.
type letter struct {
	envelope
	messageID string
	data      []byte // lines end in CRLF
	utf8      bool   // addresses or header need SMTPUTF8 (RFC 6531)
	eightBit  bool   // there are octets beyond ASCII (RFC 6152)
}

// A field is one header field; of is the field of Message that it comes from.
type field struct{ name, value, of string }

// compose looks at the message and writes it down. What cannot be sent as it
// is, is an error that names the field.
func (t *Transport) compose(m *idemmail.Message) (*letter, *Error) {
	if m == nil {
		return nil, invalid("", "message is nil")
	}
	now := t.now()
	if m.SendAt.After(now) {
		return nil, invalid("SendAt", "is in the future: SMTP sends now")
	}
	l := &letter{messageID: m.MessageID}
	fields, err := t.addresses(m, l)
	if err != nil {
		return nil, err
	}
	if l.messageID == "" {
		l.messageID = t.newMessageID(l.from)
	}
	more, err := t.fields(m, l, now)
	if err != nil {
		return nil, err
	}
	fields = append(fields, more...)
	for i, f := range fields {
		value, err := foldable(f.name, f.value)
		if err != nil {
			return nil, invalid(f.of, "%w", err)
		}
		fields[i].value = value
	}
	root, err := body(m)
	if err != nil {
		return nil, err
	}
	data, writeErr := write(fields, root, l.messageID)
	if writeErr != nil {
		return nil, invalid("", "%w", writeErr)
	}
	l.setData(data)
	return l, nil
}

// setData takes a message and finds what it needs of the server.
func (l *letter) setData(data []byte) {
	l.data = data
	l.utf8 = !l.ascii() || !isASCII(headerOf(data))
	l.eightBit = !isASCII(data)
}

// headerOf returns the header of a message, with the line end of its last
// field.
func headerOf(data []byte) []byte {
	if bytes.HasPrefix(data, []byte("\r\n")) {
		return nil
	}
	if i := bytes.Index(data, []byte("\r\n\r\n")); i >= 0 {
		return data[:i+2]
	}
	return data
}

// addresses fills the envelope and returns the fields with addresses.
func (t *Transport) addresses(m *idemmail.Message, l *letter) ([]field, *Error) {
	parse := func(of string, a mail.Address) (mailbox, string, *Error) {
		if err := checkText(a.Name); err != nil {
			return mailbox{}, "", invalid(of+".Name", "%w", err)
		}
		box, err := parseMailbox(a.Address)
		if err != nil {
			return mailbox{}, "", invalid(of+".Address", "%w", err)
		}
		return box, formatMailbox(a.Name, box), nil
	}
	from, text, err := parse("From", m.From)
	if err != nil {
		return nil, err
	}
	l.from = from.wire
	fields := []field{{"From", text, "From"}}
	seen := make(map[string]bool)
	for _, list := range []struct {
		of, name  string
		envelope  bool
		addresses []mail.Address
	}{
		{"ReplyTo", "Reply-To", false, m.ReplyTo},
		{"To", "To", true, m.To},
		{"Cc", "Cc", true, m.Cc},
		{"Bcc", "", true, m.Bcc}, // the envelope only
	} {
		var texts []string
		for i, a := range list.addresses {
			box, text, err := parse(fmt.Sprintf("%s[%d]", list.of, i), a)
			if err != nil {
				return nil, err
			}
			texts = append(texts, text)
			if list.envelope {
				l.add(seen, box)
			}
		}
		if list.name != "" && len(texts) > 0 {
			fields = append(fields, field{list.name, strings.Join(texts, ", "), list.of})
		}
	}
	if len(l.recipients) == 0 {
		return nil, invalid("To", "there is no recipient, nor in Cc or Bcc")
	}
	return fields, nil
}

// fields returns the other header fields.
func (t *Transport) fields(m *idemmail.Message, l *letter, now time.Time) ([]field, *Error) {
	if err := checkText(m.Subject); err != nil {
		return nil, invalid("Subject", "%w", err)
	}
	if err := checkMessageID(l.messageID); err != nil {
		return nil, invalid("MessageID", "%w", err)
	}
	var fields []field
	if m.Subject != "" {
		fields = append(fields, field{"Subject", encodeText(m.Subject), "Subject"})
	}
	fields = append(fields, field{"Message-ID", "<" + l.messageID + ">", "MessageID"})
	if m.InReplyTo != "" {
		if err := checkMessageID(m.InReplyTo); err != nil {
			return nil, invalid("InReplyTo", "%w", err)
		}
		fields = append(fields, field{"In-Reply-To", "<" + m.InReplyTo + ">", "InReplyTo"})
	}
	if len(m.References) > 0 {
		for i, id := range m.References {
			if err := checkMessageID(id); err != nil {
				return nil, invalid(fmt.Sprintf("References[%d]", i), "%w", err)
			}
		}
		fields = append(fields, field{"References", "<" + strings.Join(m.References, "> <") + ">", "References"})
	}
	if t.opts.KeyHeader != "" && m.IdempotencyKey != "" {
		if err := checkText(m.IdempotencyKey); err != nil {
			return nil, invalid("IdempotencyKey", "%w", err)
		}
		fields = append(fields, field{t.opts.KeyHeader, encodeText(m.IdempotencyKey), "IdempotencyKey"})
	}
	more, dated, err := t.further(m)
	if err != nil {
		return nil, err
	}
	if !dated {
		fields = append(fields, field{"Date", now.UTC().Format(time.RFC1123Z), ""})
	}
	return append(fields, more...), nil
}

// further returns the fields of Message.Header, sorted by name, and whether
// there is a Date among them.
func (t *Transport) further(m *idemmail.Message) (fields []field, dated bool, err *Error) {
	for _, name := range slices.Sorted(maps.Keys(m.Header)) {
		of := fmt.Sprintf("Header[%q]", name)
		if err := checkHeaderName(name); err != nil {
			return nil, false, invalid(of, "%w", err)
		}
		if t.opts.KeyHeader != "" && strings.EqualFold(name, t.opts.KeyHeader) {
			return nil, false, invalid(of, "is reserved: it carries IdempotencyKey")
		}
		for _, value := range m.Header[name] {
			if err := checkText(value); err != nil {
				return nil, false, invalid(of, "%w", err)
			}
			if strings.EqualFold(name, "Date") {
				if err := checkDate(value, dated); err != nil {
					return nil, false, invalid(of, "%w", err)
				}
				dated = true
			}
			fields = append(fields, field{name, encodeHeaderValue(value), of})
		}
	}
	return fields, dated, nil
}

func checkDate(value string, again bool) error {
	if again {
		return errors.New("is there twice")
	}
	_, err := mail.ParseDate(value)
	return err
}

// newMessageID makes an id that no other message has. The domain is the
// sender's, or, where that is not ASCII, the client's own.
func (t *Transport) newMessageID(from string) string {
	domain := from[strings.LastIndexByte(from, '@')+1:]
	if !isASCII(domain) {
		domain = t.opts.Hello
	}
	return strings.ToLower(rand.Text()) + "@" + domain
}
