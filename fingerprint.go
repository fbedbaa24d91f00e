package idemmail

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
	"unicode/utf8"
)

// fingerprintVersion is the version of what a fingerprint covers and how it is
// encoded. A change of either is a new version, with golden files of its own.
const fingerprintVersion = "1:"

// Fingerprint tells one message from another under a key: the same key with
// another fingerprint is refused with [ErrKeyReused]. It is the version of its
// rules, "1:", and the SHA-256 of the message in a canonical form in 64
// hexadecimal digits, and is the same in every process. A nil message has the
// empty fingerprint.
//
// It covers From, ReplyTo, To, Cc and Bcc with their display names; Subject,
// Text and HTML byte for byte (CRLF is not LF); Header; Filename and
// ContentType of each attachment; InReplyTo and References; SendAt; Tracking;
// Tags; Metadata. It does not cover MessageID, IdempotencyKey, and the bytes,
// content ids and dispositions of attachments: under one key, a message with
// another content in a file of the same name and type is the same message.
//
// What a message that is built again may vary does not count: the order of the
// addresses in one list (how often one stands there does), ASCII case in
// their domains and in the names of header fields, the order of header names
// and metadata, header fields without values, nil against empty, and SendAt
// in another zone or with another fraction of a second. The values of one
// header field, tags, references and attachments count in their order. Field
// names that differ in case alone are one field, its values taken in the order
// of their values. The header fields Date, Message-ID, Received,
// DKIM-Signature and all that begin with ARC- are left out, and so are those
// that ignoreHeaders names, in any case.
//
// Changing what the fingerprint covers (another ignoreHeaders, another
// Options.Fingerprint) while keys are live makes the retries of their messages
// ErrKeyReused. So does a message that is not built alike on each attempt: one
// with a fresh token in its body, or with a SendAt that is reckoned anew.
func Fingerprint(m *Message, ignoreHeaders ...string) string {
	if m == nil {
		return ""
	}
	e := newEncoder()
	e.string("message")
	e.address(splitAddress(m.From.Name, m.From.Address))
	e.addresses(m.ReplyTo)
	e.addresses(m.To)
	e.addresses(m.Cc)
	e.addresses(m.Bcc)
	e.string(m.Subject)
	e.string(m.Text)
	e.string(m.HTML)
	e.header(m.Header, ignoreHeaders)
	e.number(uint64(len(m.Attachments)))
	for i := range m.Attachments {
		e.string(m.Attachments[i].Filename)
		e.string(m.Attachments[i].ContentType)
	}
	e.string(m.InReplyTo)
	e.strings(m.References)
	e.number(uint64(m.SendAt.Unix())) // of the zero time too, which no one can mean otherwise
	e.option(m.Tracking.Opens)
	e.option(m.Tracking.Clicks)
	e.strings(m.Tags)
	e.metadata(m.Metadata)
	return e.sum()
}

// FingerprintRaw is [Fingerprint] for a raw message. It covers the envelope:
// From and To, whose order does not count, nor does ASCII case in their
// domains. Data is not covered, since a message that is composed again has
// other dates, ids and boundaries. A nil message has the empty fingerprint.
func FingerprintRaw(m *RawMessage) string {
	if m == nil {
		return ""
	}
	e := newEncoder()
	e.string("raw")
	e.address(splitAddress("", m.From))
	for _, to := range m.To {
		e.list = append(e.list, splitAddress("", to))
	}
	e.sortedList()
	return e.sum()
}

// sameFingerprint reports whether two fingerprints may be of one message. Two
// of different versions, or of which one has no version, are never taken for
// different messages, so that a change of version refuses nothing. Values of
// Options.Fingerprint have no version, but are compared with each other.
func sameFingerprint(a, b string) bool {
	if a == b {
		return true
	}
	if strings.HasPrefix(a, customPrefix) && strings.HasPrefix(b, customPrefix) {
		return false
	}
	version := versionOf(a)
	return version == "" || version != versionOf(b)
}

// customPrefix marks what Options.Fingerprint or the caller of Guard.Do gave.
const customPrefix = "c:"

// customFingerprint is such a value as stores keep it. Not every store keeps
// what is no text, and a value that was mended could equal another.
func customFingerprint(value string) string {
	if !utf8.ValidString(value) || strings.IndexByte(value, 0) >= 0 {
		sum := sha256.Sum256([]byte(value))
		value = hex.EncodeToString(sum[:])
	}
	return customPrefix + value
}

// versionOf returns the digits before the first colon, or "".
func versionOf(fingerprint string) string {
	version, _, found := strings.Cut(fingerprint, ":")
	if !found || strings.Trim(version, "0123456789") != "" {
		return ""
	}
	return version
}

// isIgnoredHeader reports whether a field does not count: those that are made
// anew each time a message is built or passes a relay, and the caller's.
func isIgnoredHeader(name string, ignored []string) bool {
	const arc = "ARC-"
	switch {
	case equalFold(name, "Date"), equalFold(name, "Message-ID"),
		equalFold(name, "Received"), equalFold(name, "DKIM-Signature"),
		len(name) >= len(arc) && equalFold(name[:len(arc)], arc):
		return true
	}
	return slices.ContainsFunc(ignored, func(i string) bool { return equalFold(name, i) })
}
