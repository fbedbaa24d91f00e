package smtptransport

import (
	"net/mail"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
)

func BenchmarkCompose(b *testing.B) {
	for name, attachment := range map[string]int{"text alone": 0, "16 MiB attached": 16 << 20} {
		b.Run(name, func(b *testing.B) {
			tr, err := New(Options{Addr: "mx.test:25"})
			require.NoError(b, err)
			m := &idemmail.Message{
				From:    mail.Address{Name: "Shop", Address: "shop@example.com"},
				To:      []mail.Address{{Name: "Zoë", Address: "zoe@example.org"}},
				Subject: "Ihre Bestellung № 17",
				Text:    "Grüße\n",
			}
			if attachment > 0 {
				m.Attachments = []idemmail.Attachment{{Filename: "a.pdf", Content: make([]byte, attachment)}}
			}
			b.ReportAllocs()
			for b.Loop() {
				_, err := tr.compose(m)
				require.Nil(b, err)
			}
		})
	}
}
