package smtptransport

import (
	"encoding/base64"
	"errors"
	"fmt"
	"mime"
	"net/mail"
	"net/textproto"
	"strings"
	"unicode/utf8"
)

const (
	maxNameOctets = 76
	// maxWordOctets keeps every line below the 998 octets of RFC 5322 2.1.1: a
	// word cannot be folded, and go-message would cut a longer one in two.
	maxWordOctets  = 900
	softLineOctets = 76 // where go-message begins to fold
)

// checkHeaderName takes a name that Message.Header may have: a field name (RFC
// 5322 2.2) that no field of Message stands for, and that is not about the MIME
// structure, which is this package's.
func checkHeaderName(name string) error {
	if name == "" {
		return errors.New("is empty")
	}
	if len(name) > maxNameOctets {
		return fmt.Errorf("has %d octets, %d are allowed", len(name), maxNameOctets)
	}
	for i := range len(name) {
		if c := name[i]; c <= ' ' || c > '~' || c == ':' {
			return fmt.Errorf("has the octet %#02x, which a name must not have", c)
		}
	}
	canonical := textproto.CanonicalMIMEHeaderKey(name)
	switch canonical {
	case "From", "Reply-To", "To", "Cc", "Subject", "Message-Id", "In-Reply-To", "References":
		return errors.New("is reserved: Message has a field for it")
	case "Bcc", "Resent-Bcc":
		return errors.New("is reserved: it would show the blind copies to everyone")
	case "Mime-Version", "Return-Path":
		return errors.New("is reserved")
	case "Content-Language":
		return nil
	}
	if strings.HasPrefix(canonical, "Content-") {
		return errors.New("is reserved: it belongs to the structure of the message")
	}
	return nil
}

// checkMessageID takes what stands between the angle brackets of a msg-id.
func checkMessageID(id string) error {
	if err := checkText(id); err != nil {
		return err
	}
	switch {
	case id == "":
		return errors.New("is empty")
	case strings.ContainsAny(id, "<>"):
		return errors.New("has an angle bracket: give the id without them")
	case len(id) > maxWordOctets:
		return fmt.Errorf("has %d octets, %d are allowed", len(id), maxWordOctets)
	case strings.IndexFunc(id, func(r rune) bool { return !isVisible(r) }) >= 0:
		return errors.New("has a space or something that cannot be seen")
	}
	return nil
}

// foldable returns the value of a field so that every way of folding it says
// the same. Spaces around it go, as a reader drops them. Where it is so long
// that it will be folded, spaces in a row become one: folding could leave a
// line of spaces alone, which looks like the end of the header.
func foldable(name, value string) (string, error) {
	value = strings.Trim(value, " \t")
	for word := range strings.FieldsSeq(value) {
		if len(word) > maxWordOctets {
			return "", fmt.Errorf("has a word of %d octets, %d are allowed: lines end at 998", len(word), maxWordOctets)
		}
	}
	if len(name)+len(": ")+len(value) > softLineOctets && hasWideSpace(value) {
		value = strings.Join(strings.Fields(value), " ")
	}
	return value, nil
}

// hasWideSpace reports whether s has a tab, or spaces in a row.
func hasWideSpace(s string) bool {
	return strings.Contains(s, "  ") || strings.ContainsRune(s, '\t')
}

// plain reports whether s reads the same after it has been folded, unfolded
// and searched for encoded-words.
func plain(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	for word := range strings.FieldsSeq(s) {
		if len(word) > maxWordOctets {
			return false
		}
	}
	return !strings.Contains(s, "=?") && !hasWideSpace(s) && strings.TrimSpace(s) == s
}

// encodeText makes free text fit for a header field (RFC 2047).
func encodeText(s string) string {
	switch {
	case plain(s):
		return s
	case isASCII(s):
		return encodeWords(s)
	default:
		return mime.QEncoding.Encode("utf-8", s)
	}
}

// encodeWords puts ASCII into encoded-words, which mime.WordEncoder leaves as
// it is.
func encodeWords(s string) string {
	const octets = 45 // 75 is the most that an encoded-word may have
	var words []string
	for len(s) > 0 {
		n := min(octets, len(s))
		words = append(words, "=?utf-8?b?"+base64.StdEncoding.EncodeToString([]byte(s[:n]))+"?=")
		s = s[n:]
	}
	return strings.Join(words, " ")
}

// formatMailbox returns an address with its display name.
func formatMailbox(name string, m mailbox) string {
	switch {
	case !isASCII(name) && strings.Contains(name, `\`):
		// mail.Address leaves the backslash as it is in a Q-encoded word,
		// where a name must not have one (RFC 2047 5, rule 3).
		return mime.BEncoding.Encode("utf-8", name) + " <" + m.wire + ">"
	case name == "" || plain(name) || !isASCII(name):
		return (&mail.Address{Name: name, Address: m.plain}).String()
	default:
		return encodeWords(name) + " <" + m.wire + ">"
	}
}

// encodeHeaderValue makes a value of Message.Header fit. What is ASCII may be
// structured and stays as it is.
func encodeHeaderValue(s string) string {
	for _, r := range s {
		if r >= utf8.RuneSelf || r < ' ' && r != '\t' || r == 0x7f {
			return encodeText(s)
		}
	}
	return s
}
