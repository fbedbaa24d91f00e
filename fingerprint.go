package idemmail

// Fingerprint is a placeholder.
func Fingerprint(m *Message, ignoreHeaders ...string) string { return "1:" }

// FingerprintRaw is a placeholder.
func FingerprintRaw(m *RawMessage) string { return "1:" }
