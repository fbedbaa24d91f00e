package sestransport

import (
	"bytes"
	"fmt"
	"mime"
	"net/mail"
	"strings"
	"unicode/utf8"

	"github.com/idemmail/idemmail"
)

// A FieldError names the field of a message that SES, or mail itself, does not
// allow as it is. Nothing was sent. Neither text has anything of the field's
// value.
type FieldError struct {
	Field  string // "Subject", "To[1]", "Header[\"X-Note\"]", "Attachments[0].Filename"
	Reason string
}

func (e *FieldError) Error() string { return e.Field + ": " + e.Reason }

// checkLine is for what becomes part of a header field: a line break in it
// would begin another.
func checkLine(field, s string) error {
	switch {
	case !utf8.ValidString(s):
		return &FieldError{field, "is not valid UTF-8"}
	case strings.ContainsAny(s, "\r\n\x00"):
		return &FieldError{field, "has a CR, LF or NUL"}
	}
	return nil
}

func checkText(field, s string) error {
	switch {
	case !utf8.ValidString(s):
		return &FieldError{field, "is not valid UTF-8"}
	case strings.ContainsRune(s, 0):
		return &FieldError{field, "has a NUL"}
	}
	return nil
}

// checkData refuses what RFC 5322 2.2 allows nowhere in a message. Lines that
// end in LF alone are left to SES, which takes them.
func checkData(data []byte) error {
	switch {
	case len(data) == 0:
		return &FieldError{"Data", "is empty"}
	case bytes.IndexByte(data, 0) >= 0:
		return &FieldError{"Data", "has a NUL"}
	case bytes.Count(data, []byte("\r")) != bytes.Count(data, []byte("\r\n")):
		return &FieldError{"Data", "has a CR without an LF"}
	}
	return nil
}

func countRecipients(n int) error {
	switch {
	case n == 0:
		return &FieldError{"To", "the message has no recipient"}
	case n > maxRecipients:
		return &FieldError{"To", fmt.Sprintf("the message has %d recipients, SES allows %d", n, maxRecipients)}
	}
	return nil
}

func addresses(field string, list []mail.Address) ([]string, error) {
	var out []string
	for i, a := range list {
		s, err := address(fmt.Sprintf("%s[%d]", field, i), a)
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, nil
}

// address renders an address, with its name in encoded words (RFC 2047) where
// that is not ASCII.
func address(field string, a mail.Address) (string, error) {
	if err := checkLine(field, a.Name); err != nil {
		return "", err
	}
	box, err := mailbox(field, a.Address)
	if err != nil || a.Name == "" {
		return box, err
	}
	if encoded := mime.BEncoding.Encode("utf-8", a.Name); encoded != a.Name && strings.Contains(a.Name, `\`) {
		// mail.Address leaves the backslash as it is in a Q-encoded word,
		// where a name must not have one (RFC 2047 5, rule 3).
		return encoded + " <" + box + ">", nil
	}
	// The name as mail.Address writes it, the address as it was read.
	name, _ := strings.CutSuffix((&mail.Address{Name: a.Name, Address: "x@x"}).String(), "<x@x>")
	return name + "<" + box + ">", nil
}

// mailbox reads an address, as it is written in an envelope or as net/mail has
// it (a local part that needs quotes without them), and writes it as in an
// envelope. Nothing in it can become a second address: it is read as one, and
// what was read is sent.
func mailbox(field, s string) (string, error) {
	switch {
	case s == "":
		return "", &FieldError{field, "has no address"}
	case checkLine(field, s) != nil:
		return "", checkLine(field, s)
	case !isPrintable(s):
		return "", &FieldError{field, "the address is not printable ASCII, and SES has no SMTPUTF8: write the domain in punycode"}
	}
	parsed, err := mail.ParseAddress("<" + s + ">")
	if err != nil && !strings.ContainsAny(s, `<>()[]:;,"\`) && strings.Count(s, "@") == 1 {
		parsed, err = mail.ParseAddress((&mail.Address{Address: s}).String())
	}
	if err != nil {
		return "", &FieldError{field, "is not an address (RFC 5322 3.4.1)"}
	}
	bare := (&mail.Address{Address: parsed.Address}).String()
	return bare[1 : len(bare)-1], nil
}

// messageIDs puts Message-IDs into angle brackets.
func messageIDs(field string, ids ...string) ([]string, error) {
	out := make([]string, 0, len(ids))
	for i, id := range ids {
		if id == "" || !isPrintable(id) || strings.ContainsAny(id, " <>") {
			if len(ids) > 1 {
				field = fmt.Sprintf("%s[%d]", field, i)
			}
			return nil, &FieldError{field, "is no Message-ID: printable ASCII without spaces and angle brackets"}
		}
		out = append(out, "<"+id+">")
	}
	return out, nil
}

func checkAttachment(field string, a idemmail.Attachment) error {
	switch {
	case a.Filename == "":
		return &FieldError{field + ".Filename", "is empty, SES needs one"}
	case len(a.Filename) > maxFilename:
		return &FieldError{field + ".Filename", fmt.Sprintf("has %d bytes, SES allows %d", len(a.Filename), maxFilename)}
	case len(a.ContentType) > maxContentType:
		return &FieldError{field + ".ContentType", fmt.Sprintf("has %d bytes, SES allows %d", len(a.ContentType), maxContentType)}
	case len(a.ContentID) > maxContentID:
		return &FieldError{field + ".ContentID", fmt.Sprintf("has %d bytes, SES allows %d", len(a.ContentID), maxContentID)}
	}
	if err := checkLine(field+".Filename", a.Filename); err != nil {
		return err
	}
	if a.ContentType != "" {
		if err := checkLine(field+".ContentType", a.ContentType); err != nil {
			return err
		}
		if _, _, err := mime.ParseMediaType(a.ContentType); err != nil || !isPrintable(a.ContentType) {
			return &FieldError{field + ".ContentType", "is no media type (RFC 2045 5.1)"}
		}
	}
	if a.ContentID != "" {
		if _, err := messageIDs(field+".ContentID", a.ContentID); err != nil {
			return &FieldError{field + ".ContentID", "is no Content-ID: printable ASCII without spaces and angle brackets"}
		}
	}
	return nil
}

const tagPartRule = "the name and the value of a tag are 1 to 256 of A-Z, a-z, 0-9, _ and -"

func isTagPart(s string) bool {
	return s != "" && len(s) <= maxTagPart && !strings.ContainsFunc(s, func(r rune) bool {
		switch {
		case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9', r == '_', r == '-':
			return false
		}
		return true
	})
}

// isPrintable reports whether s is printable ASCII, spaces included.
func isPrintable(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' })
}
