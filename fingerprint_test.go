package idemmail_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/mail"
	"net/textproto"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
)

// fullMessage has something in every field.
func fullMessage() *idemmail.Message {
	opens, clicks := true, false
	return &idemmail.Message{
		From:           mail.Address{Name: "Shop", Address: "shop@example.com"},
		ReplyTo:        []mail.Address{{Name: "Help", Address: "help@example.com"}, {Address: "desk@example.com"}},
		To:             []mail.Address{{Name: "Ann", Address: "ann@example.org"}, {Address: "bob@example.net"}},
		Cc:             []mail.Address{{Address: "carl@example.org"}, {Address: "cora@example.org"}},
		Bcc:            []mail.Address{{Address: "dora@example.org"}, {Address: "dan@example.org"}},
		Subject:        "Your order",
		Text:           "Thanks\r\n",
		HTML:           "<p>Thanks</p>\r\n",
		Header:         textproto.MIMEHeader{"X-Campaign": {"spring", "north"}, "List-Id": {"orders"}},
		Attachments:    []idemmail.Attachment{{Filename: "invoice.pdf", ContentType: "application/pdf", ContentID: "i1", Content: []byte("%PDF")}, {Filename: "terms.txt"}},
		MessageID:      "m1@example.com",
		InReplyTo:      "m0@example.com",
		References:     []string{"r1@example.com", "r2@example.com"},
		SendAt:         time.Date(2026, 3, 29, 1, 30, 15, 250_000_000, time.UTC),
		Tracking:       idemmail.Tracking{Opens: &opens, Clicks: &clicks},
		Tags:           []string{"order", "vip"},
		Metadata:       map[string]string{"order": "1042", "shop": "north"},
		IdempotencyKey: "order/1042",
	}
}

const (
	changes = true  // another message
	same    = false // the same message
)

// Every field of a message, and whether changing it makes another message.
func TestFingerprintCoversFields(t *testing.T) {
	rows := []struct {
		field  string
		counts bool
		change func(m *idemmail.Message)
	}{
		{"From.Name", changes, func(m *idemmail.Message) { m.From.Name = "shop" }},
		{"From.Address", changes, func(m *idemmail.Message) { m.From.Address = "Shop@example.com" }},
		{"ReplyTo.Name", changes, func(m *idemmail.Message) { m.ReplyTo[0].Name = "" }},
		{"ReplyTo.Address", changes, func(m *idemmail.Message) { m.ReplyTo[1].Address = "desk@example.org" }},
		{"To.Name", changes, func(m *idemmail.Message) { m.To[0].Name = "Anne" }},
		{"To.Address", changes, func(m *idemmail.Message) { m.To[1].Address = "rob@example.net" }},
		{"Cc.Name", changes, func(m *idemmail.Message) { m.Cc[0].Name = "Carl" }},
		{"Cc.Address", changes, func(m *idemmail.Message) { m.Cc[0].Address = "karl@example.org" }},
		{"Bcc.Name", changes, func(m *idemmail.Message) { m.Bcc[0].Name = "Dora" }},
		{"Bcc.Address", changes, func(m *idemmail.Message) { m.Bcc = m.Bcc[:1] }},
		{"Subject", changes, func(m *idemmail.Message) { m.Subject += " " }},
		{"Text", changes, func(m *idemmail.Message) { m.Text = "Thanks\n" }},
		{"HTML", changes, func(m *idemmail.Message) { m.HTML = "<p>Thanks</p>\n" }},
		{"Header", changes, func(m *idemmail.Message) { m.Header["List-Id"] = []string{"Orders"} }},
		{"Attachments.Filename", changes, func(m *idemmail.Message) { m.Attachments[0].Filename = "Invoice.pdf" }},
		{"Attachments.ContentType", changes, func(m *idemmail.Message) { m.Attachments[1].ContentType = "text/plain" }},
		{"Attachments.ContentID", same, func(m *idemmail.Message) { m.Attachments[0].ContentID = "i2" }},
		{"Attachments.Inline", same, func(m *idemmail.Message) { m.Attachments[0].Inline = true }},
		{"Attachments.Content", same, func(m *idemmail.Message) { m.Attachments[0].Content = []byte("%PDF-2") }},
		{"MessageID", same, func(m *idemmail.Message) { m.MessageID = "m2@example.com" }},
		{"InReplyTo", changes, func(m *idemmail.Message) { m.InReplyTo = "" }},
		{"References", changes, func(m *idemmail.Message) { m.References = m.References[:1] }},
		{"SendAt", changes, func(m *idemmail.Message) { m.SendAt = m.SendAt.Add(time.Second) }},
		{"Tracking.Opens", changes, func(m *idemmail.Message) { m.Tracking.Opens = nil }},
		{"Tracking.Clicks", changes, func(m *idemmail.Message) { m.Tracking.Clicks = m.Tracking.Opens }},
		{"Tags", changes, func(m *idemmail.Message) { m.Tags = append(m.Tags, "new") }},
		{"Metadata", changes, func(m *idemmail.Message) { m.Metadata["order"] = "1043" }},
		{"IdempotencyKey", same, func(m *idemmail.Message) { m.IdempotencyKey = "order/1043" }},
	}
	want := idemmail.Fingerprint(fullMessage())
	listed := map[string]bool{}
	for _, row := range rows {
		t.Run(row.field, func(t *testing.T) {
			m := fullMessage()
			row.change(m)
			require.NotEqual(t, fullMessage(), m, "the row changes nothing")
			require.Equal(t, row.counts, idemmail.Fingerprint(m) != want)
		})
		listed[row.field] = true
	}
	for _, field := range leafFields(reflect.TypeFor[idemmail.Message](), "") {
		require.True(t, listed[field], "no row for the field %s", field)
		delete(listed, field)
	}
	require.Empty(t, listed, "rows for fields that are not there")
}

// leafFields names the fields of a struct, through structs and lists of them.
func leafFields(t reflect.Type, prefix string) (names []string) {
	for field := range structFields(t) {
		inner := field.Type
		if inner.Kind() == reflect.Slice {
			inner = inner.Elem()
		}
		if inner.Kind() == reflect.Struct && inner != reflect.TypeFor[time.Time]() {
			names = append(names, leafFields(inner, prefix+field.Name+".")...)
		} else {
			names = append(names, prefix+field.Name)
		}
	}
	return names
}

func structFields(t reflect.Type) func(yield func(reflect.StructField) bool) {
	return func(yield func(reflect.StructField) bool) {
		for i := range t.NumField() {
			if !yield(t.Field(i)) {
				return
			}
		}
	}
}

// What a rebuilt message may vary, and what it may not.
func TestFingerprintVariations(t *testing.T) {
	swap := func(list []mail.Address) { slices.Reverse(list) }
	header := func(name string, values ...string) func(*idemmail.Message) {
		return func(m *idemmail.Message) { m.Header[name] = values }
	}
	for _, row := range []struct {
		name   string
		counts bool
		change func(m *idemmail.Message)
	}{
		{"order of ReplyTo", same, func(m *idemmail.Message) { swap(m.ReplyTo) }},
		{"order of To", same, func(m *idemmail.Message) { swap(m.To) }},
		{"order of Cc", same, func(m *idemmail.Message) { swap(m.Cc) }},
		{"order of Bcc", same, func(m *idemmail.Message) { swap(m.Bcc) }},
		{"To and Cc exchanged", changes, func(m *idemmail.Message) { m.To, m.Cc = m.Cc, m.To }},
		{"a recipient moved from Cc to Bcc", changes, func(m *idemmail.Message) { m.Bcc = append(m.Bcc, m.Cc[1]); m.Cc = m.Cc[:1] }},
		{"names exchanged between two recipients", changes, func(m *idemmail.Message) { m.To[0].Name, m.To[1].Name = m.To[1].Name, m.To[0].Name }},
		{"a recipient twice", changes, func(m *idemmail.Message) { m.To = append(m.To, m.To[0]) }},

		{"case of the domain of From", same, func(m *idemmail.Message) { m.From.Address = "shop@EXAMPLE.Com" }},
		{"case of a domain in ReplyTo", same, func(m *idemmail.Message) { m.ReplyTo[0].Address = "help@Example.com" }},
		{"case of a domain in To", same, func(m *idemmail.Message) { m.To[0].Address = "ann@exAmple.ORG" }},
		{"case of a domain in Cc", same, func(m *idemmail.Message) { m.Cc[0].Address = "carl@Example.org" }},
		{"case of a domain in Bcc", same, func(m *idemmail.Message) { m.Bcc[0].Address = "dora@Example.org" }},
		{"case of a local part", changes, func(m *idemmail.Message) { m.To[0].Address = "Ann@example.org" }},
		{"case of a display name", changes, func(m *idemmail.Message) { m.To[0].Name = "ANN" }},

		{"case of a header name", same, func(m *idemmail.Message) { delete(m.Header, "List-Id"); m.Header["LIST-id"] = []string{"orders"} }},
		{"case of a header value", changes, header("List-Id", "ORDERS")},
		{"order of the values of one header field", changes, header("X-Campaign", "north", "spring")},
		{"one more header field", changes, header("X-Extra", "1")},
		{"a header field with an empty value", changes, header("X-Extra", "")},
		{"a header field without values", same, header("X-Extra")},
		{"a header field with nil values", same, func(m *idemmail.Message) { m.Header["X-Extra"] = nil }},
		{"header field Date", same, header("Date", "Sun, 29 Mar 2026 01:30:15 +0000")},
		{"header field Message-ID", same, header("Message-Id", "<m1@example.com>")},
		{"header field Received", same, header("Received", "from a", "from b")},
		{"header field DKIM-Signature", same, header("Dkim-Signature", "v=1")},
		{"header field ARC-Seal", same, header("ARC-Seal", "i=1")},
		{"header field ARC-Message-Signature", same, header("Arc-Message-Signature", "i=1")},
		{"header field of another name that begins with ARC", changes, header("Arch", "x")},
		{"header field Date-Of-Order", changes, header("Date-Of-Order", "x")},
		{"header field X-Received", changes, header("X-Received", "x")},

		{"order of attachments", changes, func(m *idemmail.Message) { slices.Reverse(m.Attachments) }},
		{"case of a content type", changes, func(m *idemmail.Message) { m.Attachments[0].ContentType = "Application/PDF" }},
		{"one attachment less", changes, func(m *idemmail.Message) { m.Attachments = m.Attachments[:1] }},
		{"order of references", changes, func(m *idemmail.Message) { slices.Reverse(m.References) }},
		{"order of tags", changes, func(m *idemmail.Message) { slices.Reverse(m.Tags) }},
		{"metadata with an empty value", changes, func(m *idemmail.Message) { m.Metadata["x"] = "" }},
		{"values exchanged between two metadata", changes, func(m *idemmail.Message) { m.Metadata = map[string]string{"order": "north", "shop": "1042"} }},
		{"case of a metadata name", changes, func(m *idemmail.Message) { m.Metadata = map[string]string{"Order": "1042", "shop": "north"} }},
		{"tracking false against default", changes, func(m *idemmail.Message) { m.Tracking.Clicks = nil }},
		{"tracking by another pointer", same, func(m *idemmail.Message) { m.Tracking.Opens = new(bool); *m.Tracking.Opens = true }},

		{"SendAt in another zone", same, func(m *idemmail.Message) { m.SendAt = m.SendAt.In(time.FixedZone("", -5*3600)) }},
		{"SendAt with other sub-seconds", same, func(m *idemmail.Message) { m.SendAt = m.SendAt.Truncate(time.Second) }},
		{"SendAt a second later by half a second", changes, func(m *idemmail.Message) { m.SendAt = m.SendAt.Add(750 * time.Millisecond) }},
		{"SendAt unset", changes, func(m *idemmail.Message) { m.SendAt = time.Time{} }},
		{"SendAt at the epoch against unset", changes, func(m *idemmail.Message) { m.SendAt = time.Unix(0, 0) }},

		{"text moved to HTML", changes, func(m *idemmail.Message) { m.Text, m.HTML = "", m.Text+m.HTML }},
		{"a byte moved from subject to text", changes, func(m *idemmail.Message) { m.Subject, m.Text = "Your orde", "r"+m.Text }},
		{"a body that ends in CRLF against LF", changes, func(m *idemmail.Message) { m.Text = "Thanks\n" }},
		{"a body without its last line end", changes, func(m *idemmail.Message) { m.Text = "Thanks" }},
	} {
		t.Run(row.name, func(t *testing.T) {
			m := fullMessage()
			row.change(m)
			require.Equal(t, row.counts, idemmail.Fingerprint(m) != idemmail.Fingerprint(fullMessage()))
			require.Equal(t, row.counts, modelOf(m).String() != modelOf(fullMessage()).String(), "the model of the tests")
		})
	}
}

func TestFingerprintNilAgainstEmpty(t *testing.T) {
	empty := &idemmail.Message{
		ReplyTo: []mail.Address{}, To: []mail.Address{}, Cc: []mail.Address{}, Bcc: []mail.Address{},
		Header: textproto.MIMEHeader{}, Attachments: []idemmail.Attachment{}, References: []string{},
		Tags: []string{}, Metadata: map[string]string{},
	}
	require.Equal(t, idemmail.Fingerprint(&idemmail.Message{}), idemmail.Fingerprint(empty))
	require.Equal(t, idemmail.FingerprintRaw(&idemmail.RawMessage{}), idemmail.FingerprintRaw(&idemmail.RawMessage{To: []string{}, Data: []byte{}}))
	require.Empty(t, idemmail.Fingerprint(nil))
	require.Empty(t, idemmail.FingerprintRaw(nil))
}

func TestFingerprintTimes(t *testing.T) {
	at := func(at time.Time) string { return idemmail.Fingerprint(&idemmail.Message{SendAt: at}) }
	now := time.Now()
	require.Equal(t, at(now), at(now.Round(0)), "with and without a monotonic reading")
	berlin := time.FixedZone("CET", 3600)
	require.Equal(t, at(time.Time{}), at(time.Time{}.In(berlin)), "the zero time in a zone")
	require.Equal(t, at(time.Time{}), at(time.Time{}.Add(time.Millisecond)), "the zero time with a fraction")
	before := time.Date(1969, 12, 31, 23, 59, 59, 0, time.UTC)
	require.Equal(t, at(before), at(before.Add(999*time.Millisecond)), "before the epoch a fraction is cut off, not rounded up")
	require.NotEqual(t, at(before), at(before.Add(time.Second)))
}

func TestFingerprintIgnoresHeaders(t *testing.T) {
	one, other := fullMessage(), fullMessage()
	one.Header["X-Request-Id"] = []string{"1"}
	other.Header["x-REQUEST-id"] = []string{"2", "3"}
	require.NotEqual(t, idemmail.Fingerprint(one), idemmail.Fingerprint(other))
	for _, name := range []string{"X-Request-ID", "x-request-id", "X-REQUEST-ID"} {
		require.Equal(t, idemmail.Fingerprint(one, name), idemmail.Fingerprint(other, "X-None", name))
		require.Equal(t, idemmail.Fingerprint(fullMessage()), idemmail.Fingerprint(one, name), "as if it were not there")
	}
	require.NotEqual(t, idemmail.Fingerprint(one, "X-Request"), idemmail.Fingerprint(other, "X-Request"), "no prefixes")
	require.NotEqual(t, idemmail.Fingerprint(one, ""), idemmail.Fingerprint(other, "*"), "no patterns")
}

// Two keys of the map that differ in case are one field of the mail. Which of
// them comes first a map does not say, so their values do.
func TestFingerprintHeaderNamesThatFoldToOne(t *testing.T) {
	of := func(h textproto.MIMEHeader) string { return idemmail.Fingerprint(&idemmail.Message{Header: h}) }
	want := of(textproto.MIMEHeader{"X-Tag": {"a", "b"}})
	for range 100 {
		require.Equal(t, want, of(textproto.MIMEHeader{"X-Tag": {"a"}, "x-tag": {"b"}}))
		require.Equal(t, want, of(textproto.MIMEHeader{"x-tag": {"a"}, "X-Tag": {"b"}}))
		require.Equal(t, want, of(textproto.MIMEHeader{"X-TAG": {"b"}, "x-tag": {"a"}, "X-tag": nil}))
	}
	require.NotEqual(t, want, of(textproto.MIMEHeader{"X-Tag": {"b", "a"}}))
}

func TestFingerprintAddresses(t *testing.T) {
	of := func(address string) string {
		return idemmail.Fingerprint(&idemmail.Message{To: []mail.Address{{Address: address}}})
	}
	require.Equal(t, of(`"A@B"@example.com`), of(`"A@B"@EXAMPLE.com`), "the domain begins at the last @")
	require.NotEqual(t, of(`"A@B"@example.com`), of(`"A@b"@example.com`), "the local part counts as it is")
	require.NotEqual(t, of("Postmaster"), of("postmaster"), "without a domain")
	require.NotEqual(t, of("postmaster"), of("postmaster@"), "an empty domain is not none")
	require.NotEqual(t, of("a@bücher.example"), of("a@BÜCHER.example"), "letters beyond ASCII are not folded")
}

func TestFingerprintRaw(t *testing.T) {
	of := func(from string, to ...string) string {
		return idemmail.FingerprintRaw(&idemmail.RawMessage{From: from, To: to})
	}
	want := of("shop@example.com", "ann@example.org", "bob@example.net")
	require.Equal(t, want, idemmail.FingerprintRaw(&idemmail.RawMessage{
		From: "shop@EXAMPLE.com", To: []string{"bob@Example.net", "ann@example.org"}, Data: []byte("Subject: x\r\n\r\n"), IdempotencyKey: "k",
	}), "order, domains, data and key do not count")
	require.NotEqual(t, want, of("", "ann@example.org", "bob@example.net"), "From counts")
	require.NotEqual(t, want, of("Shop@example.com", "ann@example.org", "bob@example.net"), "a local part counts as it is")
	require.NotEqual(t, want, of("shop@example.com", "ann@example.org"), "each recipient counts")
	require.NotEqual(t, want, of("shop@example.com", "ann@example.org", "bob@example.net", "bob@example.net"), "how often counts")
	require.NotEqual(t, of("a", "b"), of("b", "a"))
	require.NotEqual(t, of("", "ab"), of("", "a", "b"))
	require.NotEqual(t, idemmail.FingerprintRaw(&idemmail.RawMessage{}), idemmail.Fingerprint(&idemmail.Message{}), "a raw message is another message")
}

// Maps and lists in any order, a hundred times over.
func TestFingerprintIsStable(t *testing.T) {
	m := fullMessage()
	for i := range 20 {
		m.Header[fmt.Sprintf("X-Header-%d", i)] = []string{fmt.Sprint(i)}
		m.Metadata[fmt.Sprintf("name-%d", i)] = fmt.Sprint(i)
		m.To = append(m.To, mail.Address{Address: fmt.Sprintf("user%d@example.org", i%7), Name: fmt.Sprint(i % 3)})
	}
	want := idemmail.Fingerprint(m)
	random := rand.New(rand.NewPCG(1, 2))
	for range 100 {
		again := *m
		again.Header = maps.Collect(maps.All(m.Header))
		again.Metadata = maps.Collect(maps.All(m.Metadata))
		again.To = slices.Clone(m.To)
		random.Shuffle(len(again.To), func(i, j int) { again.To[i], again.To[j] = again.To[j], again.To[i] })
		require.Equal(t, want, idemmail.Fingerprint(&again))
	}
}

// Fields that begin and end anywhere in the window that is hashed at a time.
func TestFingerprintOfLongFields(t *testing.T) {
	for size := 4000; size <= 4200; size++ {
		m := fullMessage()
		m.Text = strings.Repeat("t", size)
		m.To[0].Address = "ann@" + strings.Repeat("E", size) + ".org"
		m.Header[strings.Repeat("X", 8300-size)] = []string{strings.Repeat("v", 2*size)}
		require.Equal(t, formatMessage(m), idemmail.Fingerprint(m), "%d bytes", size)
	}
	for size := range 4200 {
		m := &idemmail.Message{Subject: strings.Repeat("s", size), Text: strings.Repeat("t", 200)}
		require.Equal(t, formatMessage(m), idemmail.Fingerprint(m), "a length of two bytes after %d", size)
	}
	many := fullMessage()
	for i := range 3000 {
		many.To = append(many.To, mail.Address{Address: fmt.Sprintf("u%d@Example%d.org", i%500, i%3)})
		many.Metadata[fmt.Sprint(i)] = "x"
		many.Header[fmt.Sprint("X-", i)] = []string{"x"}
	}
	require.Equal(t, formatMessage(many), idemmail.Fingerprint(many))
	require.Equal(t, formatMessage(fullMessage()), idemmail.Fingerprint(fullMessage()), "after a long one")
}

func TestFingerprintChangesNothing(t *testing.T) {
	m := fullMessage()
	slices.Reverse(m.To)
	m.To[0].Address = "z@EXAMPLE.org"
	m.Header["x-UPPER"] = []string{"b", "a"}
	before := fmt.Sprintf("%+v", m)
	idemmail.Fingerprint(m, "X-None")
	require.Equal(t, before, fmt.Sprintf("%+v", m))

	raw := &idemmail.RawMessage{To: []string{"z@EXAMPLE.org", "a@example.org"}}
	idemmail.FingerprintRaw(raw)
	require.Equal(t, []string{"z@EXAMPLE.org", "a@example.org"}, raw.To)
}

func TestFingerprintConcurrently(t *testing.T) {
	m := fullMessage()
	want := idemmail.Fingerprint(m)
	for range 8 {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			for range 200 {
				require.Equal(t, want, idemmail.Fingerprint(m))
			}
		})
	}
}

// One allocation: the string itself. The least of many runs is taken, since
// the race detector makes a sync.Pool forget at random.
func TestFingerprintAllocs(t *testing.T) {
	least := func(f func()) float64 {
		n := testing.AllocsPerRun(1, f)
		for range 50 {
			n = min(n, testing.AllocsPerRun(1, f))
		}
		return n
	}
	m, raw := typicalMessage(22<<10), &idemmail.RawMessage{From: "a@Example.com", To: []string{"c@example.com", "b@example.com"}}
	require.LessOrEqual(t, least(func() { idemmail.Fingerprint(m) }), 1.0)
	require.LessOrEqual(t, least(func() { idemmail.Fingerprint(m, "X-Request-ID", "X-Trace") }), 1.0)
	require.LessOrEqual(t, least(func() { idemmail.FingerprintRaw(raw) }), 1.0)
}

// Values of different versions, or without one, are never told apart; values
// of Options.Fingerprint are compared whole.
func TestSameFingerprint(t *testing.T) {
	for _, row := range []struct {
		a, b string
		want bool
	}{
		{"1:aa", "1:aa", true},
		{"1:aa", "1:bb", false},
		{"1:", "1:bb", false},
		{"2:aa", "2:bb", false},
		{"10:aa", "10:bb", false},
		{"1:aa", "2:bb", true},
		{"1:aa", "10:aa", true},
		{"1:aa", "", true},
		{"1:aa", "aa", true},
		{"1:aa", "1", true},
		{"1:aa", ":bb", true},
		{"1:aa", "x1:bb", true},
		{"1:aa", "1x:bb", true},
		{"1:aa", "-1:bb", true},
		{"1:aa", "¹:bb", true},
		{"aa", "bb", true},
		{"", "", true},
		{"c:aa", "c:aa", true},
		{"c:aa", "c:bb", false},
		{"c:", "c:bb", false},
		{"c:1:aa", "c:2:aa", false},
		{"c:aa", "1:aa", true},
		{"c:aa", "aa", true},
		{"c:aa", "", true},
		{"c:aa", "C:bb", true},
	} {
		require.Equal(t, row.want, idemmail.SameFingerprint(row.a, row.b), "%q and %q", row.a, row.b)
		require.Equal(t, row.want, idemmail.SameFingerprint(row.b, row.a), "%q and %q", row.b, row.a)
	}
}
