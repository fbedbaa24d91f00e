package main

import (
	"crypto/sha256"
	"testing"

	"github.com/idemmail/idemmail"
)

func fingerprintChapter() chapter {
	return chapter{
		title: "Fingerprint",
		text:  "`Fingerprint` against one `sha256.Sum256` of the very bytes that it hashes.",
		rows: []row{
			{id: "F3", what: "message of 1 KB", atMost: 2.3, why: "some forty short fields, of which the names are sorted, stand beside one hash of a few blocks"},
			{id: "F1", what: "message of 22 KB (20 KB HTML, 2 KB text)", atMost: 1.20},
			{id: "F2", what: "message of 100 KB", atMost: 1.11},
			{id: "F2", what: "message of 1 MB", atMost: 1.10},
			{id: "F4", what: "`json.Marshal` and SHA-256, 22 KB, against `Fingerprint`", atLeast: 4},
			{id: "F4", what: "allocations: 1 at most", test: "TestFingerprintAllocs"},
		},
		measure: measureFingerprint,
	}
}

func measureFingerprint(t testing.TB, s scale, f *findings) {
	for _, message := range []struct {
		what string
		size int
	}{
		{"message of 1 KB", kilobyte},
		{"message of 22 KB (20 KB HTML, 2 KB text)", typical},
		{"message of 100 KB", 100 * kilobyte},
		{"message of 1 MB", kilobyte * kilobyte},
	} {
		m := newMessage(message.size)
		taken := s.compare(t, s.rounds, hashing(m), fingerprinting(m))
		f.add(t, message.what, taken[1].over(taken[0]))
	}
	m := newMessage(typical)
	taken := s.compare(t, s.rounds, fingerprinting(m), way{run: func(times int) {
		for range times {
			jsonFingerprint(t, m)
		}
	}})
	f.add(t, "`json.Marshal` and SHA-256, 22 KB, against `Fingerprint`", taken[1].over(taken[0]))
}

// hashing is the floor of fingerprinting.
func hashing(m *idemmail.Message) way {
	text := canonical(m)
	return way{run: func(times int) {
		for range times {
			sha256.Sum256(text)
		}
	}}
}

func fingerprinting(m *idemmail.Message) way {
	return way{run: func(times int) {
		for range times {
			idemmail.Fingerprint(m)
		}
	}}
}
