package idemmail_test

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/mail"
	"slices"
	"strings"
	"time"

	"github.com/idemmail/idemmail"
)

// A fingerprintModel is what counts of a message, in an order of its own:
// SEMANTICS said again with copies, sorting and fmt, and no thought of speed.
type fingerprintModel struct {
	From                 string
	ReplyTo, To, Cc, Bcc []string
	Subject, Text, HTML  string
	Header               [][2]string
	Attachments          [][2]string
	InReplyTo            string
	References           []string
	SendAt               time.Time
	Opens, Clicks        string
	Tags                 []string
	Metadata             [][2]string
}

func asciiLower(s string) string {
	b := []byte(s)
	for i := range b {
		if 'A' <= b[i] && b[i] <= 'Z' {
			b[i] += 'a' - 'A'
		}
	}
	return string(b)
}

func modelAddress(a mail.Address) string {
	address := a.Address
	if i := strings.LastIndex(address, "@"); i >= 0 {
		address = address[:i] + asciiLower(address[i:])
	}
	return fmt.Sprintf("%q <%q>", a.Name, address)
}

func modelAddresses(list []mail.Address) []string {
	var texts []string
	for _, a := range list {
		texts = append(texts, modelAddress(a))
	}
	slices.Sort(texts)
	return texts
}

func modelOption(b *bool) string {
	if b == nil {
		return "default"
	}
	return fmt.Sprint(*b)
}

// modelHeader lists the header line by line.
func modelHeader(m *idemmail.Message, ignore []string) (lines [][2]string) {
	groups := map[string][][]string{}
	for name, values := range m.Header {
		name = asciiLower(name)
		ignored := slices.Contains([]string{"date", "message-id", "received", "dkim-signature"}, name) || strings.HasPrefix(name, "arc-")
		for _, i := range ignore {
			ignored = ignored || asciiLower(i) == name
		}
		if !ignored {
			groups[name] = append(groups[name], values)
		}
	}
	names := []string{}
	for name := range groups {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		slices.SortFunc(groups[name], slices.Compare[[]string])
		for _, values := range groups[name] {
			for _, value := range values {
				lines = append(lines, [2]string{name, value})
			}
		}
	}
	return lines
}

func modelOf(m *idemmail.Message, ignore ...string) fingerprintModel {
	model := fingerprintModel{
		From:    modelAddress(m.From),
		ReplyTo: modelAddresses(m.ReplyTo), To: modelAddresses(m.To), Cc: modelAddresses(m.Cc), Bcc: modelAddresses(m.Bcc),
		Subject: m.Subject, Text: m.Text, HTML: m.HTML,
		Header:    modelHeader(m, ignore),
		InReplyTo: m.InReplyTo, References: m.References,
		SendAt: m.SendAt.UTC().Truncate(time.Second),
		Opens:  modelOption(m.Tracking.Opens), Clicks: modelOption(m.Tracking.Clicks),
		Tags: m.Tags,
	}
	for _, a := range m.Attachments {
		model.Attachments = append(model.Attachments, [2]string{a.Filename, a.ContentType})
	}
	for name, value := range m.Metadata {
		model.Metadata = append(model.Metadata, [2]string{name, value})
	}
	slices.SortFunc(model.Metadata, func(a, b [2]string) int { return strings.Compare(a[0], b[0]) })
	return model
}

// String is the same for two models exactly when they are the same.
func (m fingerprintModel) String() string {
	return fmt.Sprintf("%q %q %q %q %q %q %q %q %q %q %q %q %v %q %q %q %q", m.From, m.ReplyTo, m.To, m.Cc, m.Bcc,
		m.Subject, m.Text, m.HTML, m.Header, m.Attachments, m.InReplyTo, m.References, m.SendAt, m.Opens, m.Clicks, m.Tags, m.Metadata)
}

// formatOne is version 1 of the encoding as testdata/fingerprint/README.md
// describes it, made as simply as can be.
type formatOne []byte

func (f *formatOne) number(n int64) { *f = binary.AppendUvarint(*f, uint64(n)) }
func (f *formatOne) string(s string) {
	f.number(int64(len(s)))
	*f = append(*f, s...)
}

func (f *formatOne) strings(list []string) {
	f.number(int64(len(list)))
	for _, s := range list {
		f.string(s)
	}
}

// addresses sorts by local part, then domain, then name, all byte by byte.
func (f *formatOne) addresses(list []mail.Address) {
	list = slices.Clone(list)
	split := func(a mail.Address) []string {
		i := strings.LastIndex(a.Address, "@")
		if i < 0 {
			i = len(a.Address)
		}
		return []string{a.Address[:i], asciiLower(a.Address[i:]), a.Name}
	}
	slices.SortFunc(list, func(a, b mail.Address) int { return slices.Compare(split(a), split(b)) })
	f.number(int64(len(list)))
	for _, a := range list {
		f.address(a)
	}
}

func (f *formatOne) address(a mail.Address) {
	address := a.Address
	if i := strings.LastIndex(address, "@"); i >= 0 {
		address = address[:i] + asciiLower(address[i:])
	}
	f.string(a.Name)
	f.string(address)
}

func (f *formatOne) pairs(list [][2]string) {
	f.number(int64(len(list)))
	for _, pair := range list {
		f.string(pair[0])
		f.string(pair[1])
	}
}

func (f *formatOne) option(b *bool) {
	f.number(map[string]int64{"default": 0, "false": 1, "true": 2}[modelOption(b)])
}

func (f formatOne) sum() string {
	sum := sha256.Sum256(f)
	return "1:" + hex.EncodeToString(sum[:])
}

func formatMessage(m *idemmail.Message, ignore ...string) string {
	return formatOneOf(m, ignore...).sum()
}

func formatOneOf(m *idemmail.Message, ignore ...string) (f formatOne) {
	model := modelOf(m, ignore...)
	f.string("message")
	f.address(m.From)
	f.addresses(m.ReplyTo)
	f.addresses(m.To)
	f.addresses(m.Cc)
	f.addresses(m.Bcc)
	f.string(m.Subject)
	f.string(m.Text)
	f.string(m.HTML)
	f.pairs(model.Header)
	f.pairs(model.Attachments)
	f.string(m.InReplyTo)
	f.strings(m.References)
	f.number(m.SendAt.Unix())
	f.option(m.Tracking.Opens)
	f.option(m.Tracking.Clicks)
	f.strings(m.Tags)
	f.pairs(model.Metadata)
	return f
}

func formatRaw(m *idemmail.RawMessage) string {
	var f formatOne
	f.string("raw")
	f.address(mail.Address{Address: m.From})
	var to []mail.Address
	for _, address := range m.To {
		to = append(to, mail.Address{Address: address})
	}
	f.addresses(to)
	return f.sum()
}
