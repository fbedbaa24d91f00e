package idemmail

import (
	"encoding/base32"
	"strings"
)

// messageID is the message's own Message-ID, from its field or its header,
// without angle brackets.
func messageID(m *Message) string {
	if m.MessageID != "" {
		return m.MessageID
	}
	for name, values := range m.Header {
		if !strings.EqualFold(name, "Message-ID") {
			continue
		}
		for _, value := range values {
			if id := strings.Trim(value, " \t<>"); id != "" {
				return id
			}
		}
	}
	return ""
}

// stableMessageID is the same for a key on every attempt in every process.
// Base32 in lower case, since some systems fold the case of Message-IDs.
func stableMessageID(namespace, key, domain string) string {
	sum := keySum(namespace, key)
	return strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:])) + "@" + domain
}
