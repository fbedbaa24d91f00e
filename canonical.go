package idemmail

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
	"net/mail"
	"net/textproto"
	"slices"
	"strings"
	"sync"
)

// An encoder writes a message in its canonical form into a hash. Each string
// goes with its length in front and each list with its count, so that no two
// different messages have one form. Small fields are gathered in a window
// first: hashing each by itself takes several times as long, and the message
// as a whole need not be copied.
type encoder struct {
	hash   hash.Hash
	window [4096]byte
	used   int // of the window

	// What is being sorted; empty between two lists.
	list  []address
	names []string
}

// maxScratch is how many entries a list keeps room for from one message to
// the next.
const maxScratch = 256

var encoders = sync.Pool{New: func() any { return &encoder{hash: sha256.New()} }}

func newEncoder() *encoder {
	e := encoders.Get().(*encoder)
	e.hash.Reset()
	e.used = 0
	return e
}

// sum returns the fingerprint of what was written and frees the encoder.
func (e *encoder) sum() string {
	e.flush()
	sum := e.hash.Sum(e.window[:0])
	text := append(e.window[len(sum):len(sum)], fingerprintVersion...)
	fingerprint := string(hex.AppendEncode(text, sum))
	encoders.Put(e)
	return fingerprint
}

func (e *encoder) flush() {
	e.hash.Write(e.window[:e.used])
	e.used = 0
}

// number writes a count, a length or a time.
func (e *encoder) number(n uint64) {
	if n < 0x80 && e.used < len(e.window) { // most are
		e.window[e.used] = byte(n)
		e.used++
		return
	}
	if len(e.window)-e.used < binary.MaxVarintLen64 {
		e.flush()
	}
	e.used += binary.PutUvarint(e.window[e.used:], n)
}

func (e *encoder) string(s string) {
	e.number(uint64(len(s)))
	e.bytes(s)
}

// bytes writes s without its length.
func (e *encoder) bytes(s string) {
	for {
		n := copy(e.window[e.used:], s)
		e.used += n
		if n == len(s) {
			return
		}
		s = s[n:]
		e.flush()
	}
}

// folded writes s in lower case without its length.
func (e *encoder) folded(s string) {
	for {
		room := e.window[e.used:]
		n := copy(room, s)
		for i, c := range room[:n] {
			room[i] = lower(c)
		}
		e.used += n
		if n == len(s) {
			return
		}
		s = s[n:]
		e.flush()
	}
}

func (e *encoder) strings(list []string) {
	e.number(uint64(len(list)))
	for _, s := range list {
		e.string(s)
	}
}

func (e *encoder) option(b *bool) {
	switch {
	case b == nil:
		e.number(0)
	case !*b:
		e.number(1)
	default:
		e.number(2)
	}
}

// An address in its canonical parts. The domain begins with the last '@', if
// there is one, and counts in lower case.
type address struct{ name, local, domain string }

func splitAddress(name, addr string) address {
	at := strings.LastIndexByte(addr, '@')
	if at < 0 {
		at = len(addr)
	}
	return address{name, addr[:at], addr[at:]}
}

func compareAddresses(a, b address) int {
	if c := strings.Compare(a.local, b.local); c != 0 {
		return c
	}
	if c := compareFold(a.domain, b.domain); c != 0 {
		return c
	}
	return strings.Compare(a.name, b.name)
}

func (e *encoder) address(a address) {
	e.string(a.name)
	e.number(uint64(len(a.local) + len(a.domain)))
	e.bytes(a.local)
	e.folded(a.domain)
}

func (e *encoder) addresses(list []mail.Address) {
	for i := range list {
		e.list = append(e.list, splitAddress(list[i].Name, list[i].Address))
	}
	e.sortedList()
}

// sortedList writes the addresses in e.list, sorted.
func (e *encoder) sortedList() {
	e.number(uint64(len(e.list)))
	if len(e.list) == 0 {
		return
	}
	slices.SortFunc(e.list, compareAddresses)
	for i := range e.list {
		e.address(e.list[i])
	}
	e.list = emptied(e.list)
}

// header writes one name and value after the other, as they stand in a mail.
// So a field without values is nothing, and two keys of the map that differ in
// case alone are one field.
func (e *encoder) header(h textproto.MIMEHeader, ignored []string) {
	names, lines := e.names, 0
	for name, values := range h {
		if isIgnoredHeader(name, ignored) {
			continue
		}
		names = append(names, name)
		lines += len(values)
	}
	slices.SortFunc(names, func(a, b string) int {
		if c := compareFold(a, b); c != 0 {
			return c
		}
		return slices.Compare(h[a], h[b])
	})
	e.number(uint64(lines))
	for _, name := range names {
		for _, value := range h[name] {
			e.number(uint64(len(name)))
			e.folded(name)
			e.string(value)
		}
	}
	e.names = emptied(names)
}

func (e *encoder) metadata(m map[string]string) {
	names := e.names
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	e.number(uint64(len(names)))
	for _, name := range names {
		e.string(name)
		e.string(m[name])
	}
	e.names = emptied(names)
}

// emptied returns s without entries, and without a hold on any message. Room
// that few messages need is given back.
func emptied[T any](s []T) []T {
	if cap(s) > maxScratch {
		return nil
	}
	clear(s)
	return s[:0]
}

// lower folds ASCII letters, which is all that may vary in a domain (RFC 5321
// 2.4) or in the name of a header field (RFC 5322 1.2.2) without being another.
func lower(c byte) byte {
	if 'A' <= c && c <= 'Z' {
		return c + ('a' - 'A')
	}
	return c
}

func equalFold(a, b string) bool { return len(a) == len(b) && compareFold(a, b) == 0 }

// compareFold is strings.Compare of the two in lower case.
func compareFold(a, b string) int {
	for i := range min(len(a), len(b)) {
		if a[i] == b[i] {
			continue
		}
		if c, d := lower(a[i]), lower(b[i]); c != d {
			return cmp.Compare(c, d)
		}
	}
	return cmp.Compare(len(a), len(b))
}
