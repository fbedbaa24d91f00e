package smtptransport

import (
	"errors"
	"fmt"
	"net/mail"
	"net/netip"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	maxAddressOctets = 254 // RFC 5321 4.5.3.1.3: a path has 256, with its angle brackets
	maxLabelOctets   = 63  // RFC 1035 2.3.4
)

// A mailbox is an address that has been looked at.
type mailbox struct {
	given string // as the caller wrote it
	plain string // the local part without quotes, as net/mail has it
	wire  string // as the envelope has it
}

// key is the same for two spellings of one mailbox: the case of a domain does
// not matter, that of a local part may (RFC 5321 2.4).
func (m mailbox) key() string {
	at := strings.LastIndexByte(m.wire, '@')
	return m.wire[:at] + strings.ToLower(m.wire[at:])
}

// parseMailbox takes local@domain, the local part being a dot-atom or in
// quotes. Letters beyond ASCII are allowed, and need SMTPUTF8. Dots may stand
// where a dot-atom has none ("a..b", "a."), as some providers give them out;
// those go in quotes.
//
// Nothing that could end the path or begin a parameter passes: no space, no
// control character, no angle bracket outside or inside of quotes.
func parseMailbox(s string) (mailbox, error) {
	if s == "" {
		return mailbox{}, errors.New("is empty")
	}
	if err := checkText(s); err != nil {
		return mailbox{}, err
	}
	if len(s) > maxAddressOctets {
		return mailbox{}, fmt.Errorf("has %d octets, %d are allowed", len(s), maxAddressOctets)
	}
	at := strings.LastIndexByte(s, '@')
	if at < 0 {
		return mailbox{}, errors.New("has no @")
	}
	local, err := plainLocal(s[:at])
	if err != nil {
		return mailbox{}, err
	}
	if err := checkDomain(s[at+1:]); err != nil {
		return mailbox{}, err
	}
	m := mailbox{given: s, plain: local + s[at:]}
	path := (&mail.Address{Address: m.plain}).String() // quotes the local part where that is needed
	m.wire = path[1 : len(path)-1]
	if len(m.wire) > maxAddressOctets {
		return mailbox{}, fmt.Errorf("has %d octets with its quotes, %d are allowed", len(m.wire), maxAddressOctets)
	}
	return m, nil
}

// plainLocal takes a local part and returns it without quotes.
func plainLocal(s string) (string, error) {
	if s == "" {
		return "", errors.New("has no local part")
	}
	if s[0] != '"' {
		if i := strings.IndexFunc(s, func(r rune) bool { return r != '.' && !isAtomText(r) }); i >= 0 {
			return "", fmt.Errorf("has %q in the local part, which is not allowed outside of quotes", firstRune(s[i:]))
		}
		return s, nil
	}
	if len(s) < 2 || s[len(s)-1] != '"' {
		return "", errors.New("has a quote without its partner")
	}
	var plain strings.Builder
	for quoted, text := false, s[1:len(s)-1]; text != ""; {
		r, n := utf8.DecodeRuneInString(text)
		text = text[n:]
		switch {
		case r == '<' || r == '>' || r != ' ' && !isVisible(r):
			return "", fmt.Errorf("has %q in the local part, which is not allowed", r)
		case !quoted && r == '\\':
			quoted = true
			if text == "" {
				return "", errors.New("has a quote without its partner")
			}
			continue
		case !quoted && r == '"':
			return "", errors.New("has a quote without its partner")
		}
		quoted = false
		plain.WriteRune(r)
	}
	if strings.Contains(plain.String(), "  ") {
		return "", errors.New("has spaces in a row, which folding the header would change")
	}
	if plain.Len() == 0 {
		return "", errors.New("has no local part")
	}
	return plain.String(), nil
}

// checkDomain takes a domain name, or an address literal (RFC 5321 4.1.2,
// 4.1.3). Underscores are let through, as the DNS does.
func checkDomain(s string) error {
	if literal, ok := strings.CutPrefix(s, "["); ok {
		literal, ok = strings.CutSuffix(literal, "]")
		v6, isV6 := strings.CutPrefix(literal, "IPv6:")
		ip, err := netip.ParseAddr(v6)
		if !ok || err != nil || ip.Zone() != "" || ip.Is4() == isV6 {
			return errors.New("has a domain that is no address literal, as [192.0.2.1] or [IPv6:2001:db8::1]")
		}
		return nil
	}
	for label := range strings.SplitSeq(s, ".") {
		switch {
		case label == "":
			return errors.New("has a domain with an empty label")
		case len(label) > maxLabelOctets:
			return fmt.Errorf("has a domain with a label of %d octets, %d are allowed", len(label), maxLabelOctets)
		case label[0] == '-' || label[len(label)-1] == '-':
			return errors.New("has a domain with a label that begins or ends with '-'")
		}
		if i := strings.IndexFunc(label, func(r rune) bool { return !isDomainRune(r) }); i >= 0 {
			return fmt.Errorf("has %q in the domain, which is not allowed", firstRune(label[i:]))
		}
	}
	return nil
}

func isDomainRune(r rune) bool {
	switch {
	case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9', r == '-', r == '_':
		return true
	default:
		return r >= utf8.RuneSelf && r != utf8.RuneError && (unicode.IsLetter(r) || unicode.IsMark(r) || unicode.IsDigit(r))
	}
}

// isAtomText is atext of RFC 5322 3.2.3 with the additions of RFC 6531 3.3.
func isAtomText(r rune) bool {
	return isVisible(r) && !strings.ContainsRune(`()<>[]:;@\,."`, r)
}

// isVisible reports whether r prints something and is no space.
func isVisible(r rune) bool {
	return r != utf8.RuneError && unicode.IsGraphic(r) && !unicode.IsSpace(r)
}

func firstRune(s string) rune {
	r, _ := utf8.DecodeRuneInString(s)
	return r
}

// An envelope is what MAIL and RCPT carry.
type envelope struct {
	from       string    // empty: the null sender
	recipients []mailbox // each one once
}

// add adds a recipient, unless it is there already.
func (e *envelope) add(seen map[string]bool, m mailbox) {
	if key := m.key(); !seen[key] {
		seen[key] = true
		e.recipients = append(e.recipients, m)
	}
}

// ascii reports whether all addresses can do without SMTPUTF8.
func (e *envelope) ascii() bool {
	for _, m := range e.recipients {
		if !isASCII(m.wire) {
			return false
		}
	}
	return isASCII(e.from)
}

// checkText refuses what must not stand in a header field or a command.
func checkText(s string) error {
	switch i := strings.IndexAny(s, "\r\n\x00"); {
	case i < 0:
	case s[i] == '\r':
		return errors.New("has a CR")
	case s[i] == '\n':
		return errors.New("has an LF")
	default:
		return errors.New("has a NUL")
	}
	if !utf8.ValidString(s) {
		return errors.New("is not valid UTF-8")
	}
	return nil
}

func isASCII[T string | []byte](s T) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}
