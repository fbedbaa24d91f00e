package idemmail_test

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/mail"
	"net/textproto"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/idemmail/idemmail"
)

// typicalMessage has about size bytes, most of them HTML.
func typicalMessage(size int) *idemmail.Message {
	m := &idemmail.Message{
		From:    mail.Address{Name: "Example Shop", Address: "orders@Example.com"},
		To:      []mail.Address{{Name: "Bob Sample", Address: "bob@example.org"}, {Name: "Ann Sample", Address: "ann@example.org"}},
		Subject: "Your order 1042 is on its way",
		Header: textproto.MIMEHeader{
			"List-Unsubscribe": {"<https://shop.example.com/u/1042>"}, "List-Id": {"orders.shop.example.com"}, "X-Campaign": {"orders"},
			"X-Priority": {"3"}, "Feedback-Id": {"1042:orders:shop"}, "Auto-Submitted": {"auto-generated"},
		},
		Attachments: []idemmail.Attachment{{Filename: "invoice-1042.pdf", ContentType: "application/pdf"}},
		Tags:        []string{"order"},
		Metadata:    map[string]string{"order": "1042", "tenant": "north", "template": "shipped", "locale": "en-GB", "release": "2026-03"},
	}
	m.Text = strings.Repeat("Thank you. ", size/11/11)
	m.HTML = strings.Repeat("<p>Thank you.</p>\r\n", max(0, size-len(m.Text)-431)/19)
	return m
}

var benchSizes = []struct {
	name string
	size int
}{{"1KB", 1 << 10}, {"22KB", 22 << 10}, {"100KB", 100 << 10}, {"1MB", 1 << 20}}

// In turn with the plain SHA-256 of the same bytes. The metric is the median of
// the ratios of single rounds.
func BenchmarkFingerprint(b *testing.B) {
	for _, bench := range benchSizes {
		b.Run(bench.name, func(b *testing.B) {
			m := typicalMessage(bench.size)
			plain := formatOneOf(m)
			b.SetBytes(int64(len(plain)))
			b.ReportAllocs()
			calls := max(1, (1<<20)/bench.size)
			var ratios []float64
			for b.Loop() {
				idemmail.Fingerprint(m)
				if len(ratios) < 101 {
					b.StopTimer()
					start := time.Now()
					for range calls {
						sha256.Sum256(plain)
					}
					between := time.Now()
					for range calls {
						idemmail.Fingerprint(m)
					}
					ratios = append(ratios, float64(time.Since(between))/float64(between.Sub(start)))
					b.StartTimer()
				}
			}
			slices.Sort(ratios)
			b.ReportMetric(ratios[len(ratios)/2], "x/Sum256")
		})
	}
}

func BenchmarkSum256(b *testing.B) {
	for _, bench := range benchSizes {
		b.Run(bench.name, func(b *testing.B) {
			plain := formatOneOf(typicalMessage(bench.size))
			b.SetBytes(int64(len(plain)))
			for b.Loop() {
				sha256.Sum256(plain)
			}
		})
	}
}

// The fingerprint that most would write first.
func BenchmarkJSONFingerprint(b *testing.B) {
	for _, bench := range benchSizes {
		b.Run(bench.name, func(b *testing.B) {
			m := typicalMessage(bench.size)
			b.ReportAllocs()
			for b.Loop() {
				text, err := json.Marshal(m)
				if err != nil {
					b.Fatal(err)
				}
				sha256.Sum256(text)
			}
		})
	}
}

func BenchmarkClassifyError(b *testing.B) {
	err := fmt.Errorf("attempt 2: %w", fmt.Errorf("send: %w", replyError(550)))
	b.ReportAllocs()
	for b.Loop() {
		idemmail.ClassifyError(err)
	}
}
