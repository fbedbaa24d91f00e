package sestransport_test

import (
	"context"
	"errors"
	"net/mail"
	"net/textproto"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sesv2"
	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/sestransport"
)

// uncalled is an API that must not be reached.
func uncalled(t *testing.T) sestransport.API {
	return apiFunc(func(context.Context, *sesv2.SendEmailInput) (*sesv2.SendEmailOutput, error) {
		t.Error("SES was called")
		return nil, errors.New("called")
	})
}

func requireRefused(t *testing.T, r *idemmail.Receipt, err error, field string) {
	t.Helper()
	requireFailed(t, r, err)
	require.Equal(t, idemmail.CategoryValidation, r.Category)
	require.Equal(t, sestransport.CodeInvalid, r.Code)
	require.False(t, r.Retryable)
	if field == "" {
		return
	}
	var e *sestransport.FieldError
	require.ErrorAs(t, err, &e)
	require.Equal(t, field, e.Field)
}

func TestRefusedBeforeAnyRequest(t *testing.T) {
	box := func(s string) []mail.Address { return []mail.Address{{Address: s}} }
	header := func(name string, values ...string) func(*idemmail.Message) {
		return func(m *idemmail.Message) { m.Header = textproto.MIMEHeader{name: values} }
	}
	attach := func(a idemmail.Attachment) func(*idemmail.Message) {
		return func(m *idemmail.Message) { m.Attachments = []idemmail.Attachment{{Filename: "ok.txt"}, a} }
	}
	many := func(n int) []mail.Address {
		list := make([]mail.Address, n)
		for i := range list {
			list[i] = mail.Address{Address: "ann@example.org"}
		}
		return list
	}
	for name, tt := range map[string]struct {
		change func(*idemmail.Message)
		field  string
	}{
		"no sender":                    {func(m *idemmail.Message) { m.From = mail.Address{Name: "Shop"} }, "From"},
		"LF in the sender's name":      {func(m *idemmail.Message) { m.From.Name = "Shop\nBcc: eve@example.net" }, "From"},
		"CR in the sender":             {func(m *idemmail.Message) { m.From.Address = "shop@example.com\r" }, "From"},
		"name that is not UTF-8":       {func(m *idemmail.Message) { m.From.Name = "\xff" }, "From"},
		"no domain":                    {func(m *idemmail.Message) { m.To = box("ann") }, "To[0]"},
		"second recipient":             {func(m *idemmail.Message) { m.To = append(m.To, mail.Address{Address: "a\x00@example.org"}) }, "To[1]"},
		"two addresses in one":         {func(m *idemmail.Message) { m.Cc = box("a@example.org>, <eve@example.net") }, "Cc[0]"},
		"parameter in an address":      {func(m *idemmail.Message) { m.Bcc = box("a@example.org> SIZE=1") }, "Bcc[0]"},
		"international address":        {func(m *idemmail.Message) { m.To = box("ann@bücher.example") }, "To[0]"},
		"international local part":     {func(m *idemmail.Message) { m.To = box("käthe@example.org") }, "To[0]"},
		"reply-to":                     {func(m *idemmail.Message) { m.ReplyTo = box("") }, "ReplyTo[0]"},
		"no recipient":                 {func(m *idemmail.Message) { m.To = nil }, "To"},
		"51 recipients":                {func(m *idemmail.Message) { m.To, m.Cc, m.Bcc = many(20), many(20), many(11) }, "To"},
		"LF in the subject":            {func(m *idemmail.Message) { m.Subject = "a\nBcc: eve@example.net" }, "Subject"},
		"NUL in the subject":           {func(m *idemmail.Message) { m.Subject = "a\x00" }, "Subject"},
		"subject that is not UTF-8":    {func(m *idemmail.Message) { m.Subject = "\xff" }, "Subject"},
		"NUL in the text":              {func(m *idemmail.Message) { m.Text = "a\x00" }, "Text"},
		"HTML that is not UTF-8":       {func(m *idemmail.Message) { m.HTML = "<p>\xff" }, "HTML"},
		"field name with a colon":      {header("X:Y", "v"), `Header["X:Y"]`},
		"field name with a space":      {header("X Y", "v"), `Header["X Y"]`},
		"field name with a line break": {header("X\r\nY", "v"), `Header["X\r\nY"]`},
		"empty field name":             {header("", "v"), `Header[""]`},
		"long field name":              {header(strings.Repeat("X", 127), "v"), `Header["` + strings.Repeat("X", 127) + `"]`},
		"CR in a field":                {header("X-Note", "ok", "a\r b"), `Header["X-Note"]`},
		"NUL in a field":               {header("X-Note", "\x00"), `Header["X-Note"]`},
		"long field":                   {header("X-Note", strings.Repeat("a", 871)), `Header["X-Note"]`},
		"field too long when encoded":  {header("X-Note", strings.Repeat("ü", 300)), `Header["X-Note"]`},
		"16 fields":                    {header("X-Note", strings.Split(strings.Repeat("a", 16), "")...), "Header"},
		"15 fields and a thread": {func(m *idemmail.Message) {
			header("X-Note", strings.Split(strings.Repeat("a", 15), "")...)(m)
			m.InReplyTo = "a@b"
		}, "Header"},
		"reserved From":                {header("From", "eve@example.net"), `Header["From"]`},
		"reserved bcc, lower case":     {header("bcc", "eve@example.net"), `Header["bcc"]`},
		"reserved Message-ID":          {header("Message-Id", "<a@b>"), `Header["Message-Id"]`},
		"reserved MIME-Version":        {header("MIME-VERSION", "1.0"), `Header["MIME-VERSION"]`},
		"In-Reply-To twice":            {func(m *idemmail.Message) { header("In-Reply-To", "<a@b>")(m); m.InReplyTo = "a@b" }, `Header["In-Reply-To"]`},
		"References twice":             {func(m *idemmail.Message) { header("references", "<a@b>")(m); m.References = []string{"a@b"} }, `Header["references"]`},
		"Message-ID with a line break": {func(m *idemmail.Message) { m.MessageID = "a@b\r\nX: y" }, "MessageID"},
		"In-Reply-To in brackets":      {func(m *idemmail.Message) { m.InReplyTo = "<a@b>" }, "InReplyTo"},
		"In-Reply-To too long":         {func(m *idemmail.Message) { m.InReplyTo = strings.Repeat("a", 870) }, `Header["In-Reply-To"]`},
		"a reference with a space":     {func(m *idemmail.Message) { m.References = []string{"a@b", "c d@e"} }, "References[1]"},
		"an empty reference":           {func(m *idemmail.Message) { m.References = []string{""} }, "References"},
		"attachment without a name":    {attach(idemmail.Attachment{}), "Attachments[1].Filename"},
		"attachment name too long":     {attach(idemmail.Attachment{Filename: strings.Repeat("a", 256)}), "Attachments[1].Filename"},
		"attachment name with a LF":    {attach(idemmail.Attachment{Filename: "a\n.txt"}), "Attachments[1].Filename"},
		"media type":                   {attach(idemmail.Attachment{Filename: "a", ContentType: "text/plain\r\nX: y"}), "Attachments[1].ContentType"},
		"media type that is none":      {attach(idemmail.Attachment{Filename: "a", ContentType: "text plain"}), "Attachments[1].ContentType"},
		"media type too long":          {attach(idemmail.Attachment{Filename: "a", ContentType: "text/" + strings.Repeat("a", 80)}), "Attachments[1].ContentType"},
		"content id with a bracket":    {attach(idemmail.Attachment{Filename: "a", ContentID: "<logo>"}), "Attachments[1].ContentID"},
		"content id too long":          {attach(idemmail.Attachment{Filename: "a", ContentID: strings.Repeat("a", 79)}), "Attachments[1].ContentID"},
		"future SendAt":                {func(m *idemmail.Message) { m.SendAt = time.Now().Add(time.Hour) }, "SendAt"},
		"plain tag":                    {func(m *idemmail.Message) { m.Tags = []string{"a=b", "newsletter"} }, "Tags[1]"},
		"tag with a character":         {func(m *idemmail.Message) { m.Tags = []string{"campaign=spring 2026"} }, "Tags[0]"},
		"tag with another equals sign": {func(m *idemmail.Message) { m.Tags = []string{"a=b=c"} }, "Tags[0]"},
		"tag without a name":           {func(m *idemmail.Message) { m.Tags = []string{"=b"} }, "Tags[0]"},
		"tag without a value":          {func(m *idemmail.Message) { m.Tags = []string{"a="} }, "Tags[0]"},
		"tag too long":                 {func(m *idemmail.Message) { m.Tags = []string{"a=" + strings.Repeat("b", 257)} }, "Tags[0]"},
		"tag given twice":              {func(m *idemmail.Message) { m.Tags = []string{"a=b", "a=c"} }, "Tags[1]"},
		"tag of the name of KeyTag":    {func(m *idemmail.Message) { m.Tags = []string{"key=c"} }, "Tags[0]"},
		"metadata with a character":    {func(m *idemmail.Message) { m.Metadata = map[string]string{"user": "ann@example.org"} }, `Metadata["user"]`},
		"metadata named as a tag":      {func(m *idemmail.Message) { m.Tags = []string{"a=b"}; m.Metadata = map[string]string{"a": "b"} }, `Metadata["a"]`},
	} {
		t.Run(name, func(t *testing.T) {
			tr := newTransport(t, uncalled(t), sestransport.Options{KeyTag: "key"})
			m := message()
			tt.change(m)
			r, err := tr.Send(t.Context(), m)
			requireRefused(t, r, err, tt.field)
		})
	}
	t.Run("nil message", func(t *testing.T) {
		tr := newTransport(t, uncalled(t), sestransport.Options{})
		r, err := tr.Send(t.Context(), nil)
		requireRefused(t, r, err, "")
		r, err = tr.SendRaw(t.Context(), nil)
		requireRefused(t, r, err, "")
	})
}

func TestRawRefusedBeforeAnyRequest(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*idemmail.RawMessage)
		field  string
	}{
		"null sender":               {func(m *idemmail.RawMessage) { m.From = "" }, "From"},
		"sender with a name":        {func(m *idemmail.RawMessage) { m.From = "Shop <shop@example.com>" }, "From"},
		"sender with a line break":  {func(m *idemmail.RawMessage) { m.From = "shop@example.com\r\n" }, "From"},
		"no recipient":              {func(m *idemmail.RawMessage) { m.To = nil }, "To"},
		"51 recipients":             {func(m *idemmail.RawMessage) { m.To = strings.Split(strings.Repeat("a@example.org,", 51), ",")[:51] }, "To"},
		"recipient in brackets":     {func(m *idemmail.RawMessage) { m.To = []string{"a@example.org", "<b@example.org>"} }, "To[1]"},
		"recipient with parameters": {func(m *idemmail.RawMessage) { m.To = []string{"a@example.org> NOTIFY=NEVER"} }, "To[0]"},
		"two recipients in one":     {func(m *idemmail.RawMessage) { m.To = []string{"a@example.org>, <b@example.org"} }, "To[0]"},
		"international recipient":   {func(m *idemmail.RawMessage) { m.To = []string{"a@bücher.example"} }, "To[0]"},
		"no data":                   {func(m *idemmail.RawMessage) { m.Data = nil }, "Data"},
		"NUL":                       {func(m *idemmail.RawMessage) { m.Data = append(m.Data, 0) }, "Data"},
		"bare CR":                   {func(m *idemmail.RawMessage) { m.Data = append(m.Data, "a\rb\r\n"...) }, "Data"},
		"bare CR at the end":        {func(m *idemmail.RawMessage) { m.Data = append(m.Data, '\r') }, "Data"},
	} {
		t.Run(name, func(t *testing.T) {
			tr := newTransport(t, uncalled(t), sestransport.Options{})
			m := &idemmail.RawMessage{
				From: "shop@example.com",
				To:   []string{"ann@example.org"},
				Data: []byte("From: shop@example.com\r\n\r\nText\r\n"),
			}
			tt.change(m)
			r, err := tr.SendRaw(t.Context(), m)
			requireRefused(t, r, err, tt.field)
		})
	}
}

func TestWhatIsAllowedAtTheLimit(t *testing.T) {
	for name, change := range map[string]func(*idemmail.Message){
		"50 recipients": func(m *idemmail.Message) {
			m.To = nil
			for range 50 {
				m.Bcc = append(m.Bcc, mail.Address{Address: "ann@example.org"})
			}
		},
		"15 fields": func(m *idemmail.Message) {
			m.Header = textproto.MIMEHeader{"X-Note": strings.Split(strings.Repeat("a", 13), ""), "X-None": nil}
			m.InReplyTo, m.References = "a@b", []string{"a@b"}
		},
		"field of 870 bytes":     func(m *idemmail.Message) { m.Header = textproto.MIMEHeader{"X-Note": {strings.Repeat("a", 870)}} },
		"In-Reply-To as a field": func(m *idemmail.Message) { m.Header = textproto.MIMEHeader{"In-Reply-To": {"<a@b>"}} },
		"quoted local part":      func(m *idemmail.Message) { m.To = []mail.Address{{Name: "Ann", Address: "ann b@example.org"}} },
		"tag of 256 and 256": func(m *idemmail.Message) {
			m.Tags = []string{strings.Repeat("a", 256) + "=" + strings.Repeat("b", 256)}
		},
		"no subject, no body":           func(m *idemmail.Message) { m.Subject, m.Text = "", "" },
		"a SendAt that has just passed": func(m *idemmail.Message) { m.SendAt = time.Now() },
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t, sent)
			tr := newTransport(t, newClient(t, s.URL), sestransport.Options{})
			m := message()
			change(m)
			_, err := tr.Send(t.Context(), m)
			require.NoError(t, err)
			require.Equal(t, 1, s.count())
		})
	}
}

// A FieldError is stored in receipts and logs: it says nothing of the value.
func TestFieldErrorHasNothingOfTheValue(t *testing.T) {
	tr := newTransport(t, uncalled(t), sestransport.Options{})
	m := message()
	m.To = []mail.Address{{Address: "secret@@example.org"}}
	_, err := tr.Send(t.Context(), m)
	require.Error(t, err)
	require.NotContains(t, err.Error(), "secret")
}
