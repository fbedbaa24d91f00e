package idemmail_test

import (
	"fmt"
	"math/rand/v2"
	"net/mail"
	"net/textproto"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
)

// A messageSource makes messages of bytes. They are short and of few letters,
// so that two of them are often alike, and often alike but for where one field
// ends and the next begins.
type messageSource []byte

func (s *messageSource) below(n int) int {
	if len(*s) == 0 {
		return 0
	}
	b := (*s)[0]
	*s = (*s)[1:]
	return int(b) % n
}

func (s *messageSource) text() string {
	const letters = "aAb@.\x00\x01\xff"
	b := make([]byte, s.below(3))
	for i := range b {
		b[i] = letters[s.below(len(letters))]
	}
	return string(b)
}

func (s *messageSource) texts() (list []string) {
	for range s.below(3) {
		list = append(list, s.text())
	}
	return list
}

func (s *messageSource) addresses() (list []mail.Address) {
	for range s.below(3) {
		list = append(list, mail.Address{Name: s.text(), Address: s.text()})
	}
	return list
}

func (s *messageSource) option() *bool {
	return [...]*bool{nil, new(bool), func() *bool { yes := true; return &yes }()}[s.below(3)]
}

func (s *messageSource) message() *idemmail.Message {
	m := &idemmail.Message{
		From:    mail.Address{Name: s.text(), Address: s.text()},
		ReplyTo: s.addresses(), To: s.addresses(), Cc: s.addresses(), Bcc: s.addresses(),
		Subject: s.text(), Text: s.text(), HTML: s.text(),
		MessageID: s.text(), InReplyTo: s.text(), References: s.texts(),
		Tracking:       idemmail.Tracking{Opens: s.option(), Clicks: s.option()},
		Tags:           s.texts(),
		IdempotencyKey: s.text(),
	}
	for range s.below(3) {
		m.Attachments = append(m.Attachments, idemmail.Attachment{Filename: s.text(), ContentType: s.text(), ContentID: s.text(), Content: []byte(s.text())})
	}
	if s.below(2) == 1 {
		m.SendAt = time.Unix(int64(s.below(3)), int64(s.below(2))*1e8)
	}
	for range s.below(4) {
		if m.Header == nil {
			m.Header = textproto.MIMEHeader{}
		}
		m.Header[[...]string{"a", "A", "b", "Date", "arc-", s.text()}[s.below(6)]] = s.texts()
	}
	for range s.below(3) {
		if m.Metadata == nil {
			m.Metadata = map[string]string{}
		}
		m.Metadata[s.text()] = s.text()
	}
	return m
}

func (s *messageSource) raw() *idemmail.RawMessage {
	return &idemmail.RawMessage{From: s.text(), To: s.texts(), Data: []byte(s.text())}
}

// rebuilt is m with everything varied that does not count.
func rebuilt(m *idemmail.Message, random *rand.Rand) *idemmail.Message {
	again := *m
	again.From.Address = otherCase(m.From.Address, random)
	for _, list := range []*[]mail.Address{&again.ReplyTo, &again.To, &again.Cc, &again.Bcc} {
		*list = append([]mail.Address{}, *list...)
		random.Shuffle(len(*list), func(i, j int) { (*list)[i], (*list)[j] = (*list)[j], (*list)[i] })
		for i := range *list {
			(*list)[i].Address = otherCase((*list)[i].Address, random)
		}
	}
	again.Header = textproto.MIMEHeader{"Date": {"x"}, "message-ID": {"y"}, "ARC-Seal": {"z"}, "X-None": {}}
	for name, values := range m.Header {
		flipped := otherCase("@"+name, random)[1:]
		if _, taken := again.Header[flipped]; taken || hasFold(m.Header, name) {
			flipped = name
		}
		again.Header[flipped] = values
	}
	again.Metadata = map[string]string{}
	for name, value := range m.Metadata {
		again.Metadata[name] = value
	}
	again.Attachments = slices.Clone(m.Attachments)
	for i := range again.Attachments {
		again.Attachments[i].Inline = true
		again.Attachments[i].ContentID += "x"
		again.Attachments[i].Content = nil
	}
	again.References, again.Tags = append([]string{}, m.References...), append([]string{}, m.Tags...)
	again.MessageID, again.IdempotencyKey = m.MessageID+"x", "y"
	again.SendAt = m.SendAt.Truncate(time.Second).Add(time.Duration(random.IntN(1e9))).In(time.FixedZone("", random.IntN(7200)))
	return &again
}

// hasFold reports whether another key of h is the same field.
func hasFold(h textproto.MIMEHeader, name string) bool {
	for other := range h {
		if other != name && asciiLower(other) == asciiLower(name) {
			return true
		}
	}
	return false
}

// otherCase flips the case of some letters after the last @.
func otherCase(address string, random *rand.Rand) string {
	at := strings.LastIndex(address, "@")
	if at < 0 {
		return address
	}
	b := []byte(address)
	for i := at; i < len(b); i++ {
		if c := b[i] | 0x20; 'a' <= c && c <= 'z' && random.IntN(2) == 0 {
			b[i] ^= 0x20
		}
	}
	return string(b)
}

// Two messages have one fingerprint exactly when all that counts of them is
// the same; and a rebuilt message has that of the first.
func FuzzFingerprint(f *testing.F) {
	f.Add([]byte("\x01a\x01b"), []byte("\x02ab"), uint64(1))
	f.Add([]byte("moved bytes"), []byte("moved byte\x00s"), uint64(2))
	f.Fuzz(func(t *testing.T, one, other []byte, seed uint64) {
		a, b := (*messageSource)(&one).message(), (*messageSource)(&other).message()
		ignore := []string{"B"}[:seed%2]
		before := fmt.Sprintf("%+v", a)
		require.Equal(t,
			modelOf(a, ignore...).String() == modelOf(b, ignore...).String(),
			idemmail.Fingerprint(a, ignore...) == idemmail.Fingerprint(b, ignore...),
			"%+v\n%+v", a, b)
		require.Equal(t, formatMessage(a, ignore...), idemmail.Fingerprint(a, ignore...))
		require.Equal(t, before, fmt.Sprintf("%+v", a), "the message was changed")

		again := rebuilt(a, rand.New(rand.NewPCG(seed, 0)))
		require.Equal(t, idemmail.Fingerprint(a), idemmail.Fingerprint(again), "%+v\n%+v", a, again)

		raw := (*messageSource)(&one).raw()
		require.Equal(t, formatRaw(raw), idemmail.FingerprintRaw(raw))
	})
}

// Fingerprints and what counts go in pairs, over many messages that are close
// to each other.
func TestFingerprintsTellMessagesApart(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	models, fingerprints := map[string]string{}, map[string]string{}
	alike := 0
	for range 5000 {
		source := make(messageSource, random.IntN(50))
		for i := range source {
			if random.IntN(5) == 0 {
				source[i] = byte(random.Uint32())
			}
		}
		m := source.message()
		model, fingerprint := modelOf(m).String(), idemmail.Fingerprint(m)
		if known, ok := models[fingerprint]; ok {
			require.Equal(t, known, model, "two messages with one fingerprint")
			alike++
		}
		if known, ok := fingerprints[model]; ok {
			require.Equal(t, known, fingerprint, "one message with two fingerprints")
		}
		models[fingerprint], fingerprints[model] = model, fingerprint
	}
	require.Greater(t, alike, 50, "the messages are not close to each other")
	require.Greater(t, len(models), 1000)
}

// The same bytes cut into neighbouring fields at every place.
func TestFingerprintOfMovedBytes(t *testing.T) {
	const text = "aa\x01a\x00\x02aaa"
	seen := map[string]string{}
	add := func(name string, m *idemmail.Message) {
		fingerprint := idemmail.Fingerprint(m)
		require.NotContains(t, seen, fingerprint, "%s and %s", name, seen[fingerprint])
		seen[fingerprint] = name
	}
	for i := 1; i < len(text); i++ {
		left, right := text[:i], text[i:]
		for name, m := range map[string]*idemmail.Message{
			"From":        {From: mail.Address{Name: left, Address: right}},
			"To":          {To: []mail.Address{{Name: left, Address: right}}},
			"To, Cc":      {To: []mail.Address{{Address: left}}, Cc: []mail.Address{{Address: right}}},
			"Cc, Bcc":     {Cc: []mail.Address{{Address: left}}, Bcc: []mail.Address{{Address: right}}},
			"Subject":     {Subject: left, Text: right},
			"Text":        {Text: left, HTML: right},
			"Header":      {Header: textproto.MIMEHeader{left: {right}}},
			"values":      {Header: textproto.MIMEHeader{"": {left, right}}},
			"Attachments": {Attachments: []idemmail.Attachment{{Filename: left, ContentType: right}}},
			"attachments": {Attachments: []idemmail.Attachment{{Filename: left}, {Filename: right}}},
			"InReplyTo":   {InReplyTo: left, References: []string{right}},
			"References":  {References: []string{left, right}},
			"Tags":        {References: []string{left}, Tags: []string{right}},
			"tags":        {Tags: []string{left, right}},
			"Metadata":    {Metadata: map[string]string{left: right}},
			"tag, name":   {Tags: []string{left}, Metadata: map[string]string{right: ""}},
		} {
			add(fmt.Sprintf("%s cut at %d", name, i), m)
		}
	}
}
