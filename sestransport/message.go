package sestransport

import (
	"errors"
	"fmt"
	"maps"
	"mime"
	"net/textproto"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sesv2"
	"github.com/aws/aws-sdk-go-v2/service/sesv2/types"

	"github.com/idemmail/idemmail"
)

// The rules of SES, from its API v2 Reference (SendEmail, Message,
// MessageHeader, MessageTag, Attachment) and from the Developer Guide (Service
// quotas, Header fields). Lengths are in bytes of ASCII.
const (
	maxRecipients   = 50
	maxFields       = 15
	maxFieldName    = 126
	maxFieldValue   = 870
	maxTagPart      = 256
	maxFilename     = 255
	maxContentID    = 78
	maxContentType  = 78
	charset         = "UTF-8"
	fieldInReplyTo  = "In-Reply-To"
	fieldReferences = "References"
)

// reserved are the fields of a message that SES sets itself and allows in no
// other way, by their canonical names, with what sets them. Message.MessageID is
// not sent at all.
var reserved = map[string]string{
	"Bcc":                       "Bcc",
	"Cc":                        "Cc",
	"Content-Disposition":       "SES",
	"Content-Transfer-Encoding": "SES",
	"Content-Type":              "SES",
	"Date":                      "SES",
	"From":                      "From",
	"Message-Id":                "SES",
	"Mime-Version":              "SES",
	"Reply-To":                  "ReplyTo",
	"Return-Path":               "SES",
	"Subject":                   "Subject",
	"To":                        "To",
}

// input turns a message into a request, or says which field of it SES, or mail
// itself, does not allow.
func (t *Transport) input(m *idemmail.Message) (*sesv2.SendEmailInput, error) {
	if m == nil {
		return nil, errors.New("message is nil")
	}
	if m.SendAt.After(time.Now()) {
		return nil, &FieldError{"SendAt", "is in the future: SES cannot schedule"}
	}
	if m.MessageID != "" { // not sent; but what cannot be one is refused all the same
		if _, err := messageIDs("MessageID", m.MessageID); err != nil {
			return nil, err
		}
	}
	from, err := address("From", m.From)
	if err != nil {
		return nil, err
	}
	destination, err := destination(m)
	if err != nil {
		return nil, err
	}
	replyTo, err := addresses("ReplyTo", m.ReplyTo)
	if err != nil {
		return nil, err
	}
	content, err := content(m)
	if err != nil {
		return nil, err
	}
	in := &sesv2.SendEmailInput{
		FromEmailAddress:       aws.String(from),
		ReplyToAddresses:       replyTo,
		Destination:            destination,
		Content:                &types.EmailContent{Simple: content},
		ConfigurationOverrides: tracking(m.Tracking),
	}
	if in.EmailTags, err = t.tags(m); err != nil {
		return nil, err
	}
	t.configure(in)
	return in, nil
}

// rawInput is input for a message that is ready.
func (t *Transport) rawInput(m *idemmail.RawMessage) (*sesv2.SendEmailInput, error) {
	if m == nil {
		return nil, errors.New("message is nil")
	}
	if m.From == "" {
		return nil, &FieldError{"From", "is empty: SES has no null sender"}
	}
	from, err := mailbox("From", m.From)
	if err != nil {
		return nil, err
	}
	to := make([]string, 0, len(m.To))
	for i, a := range m.To {
		s, err := mailbox(fmt.Sprintf("To[%d]", i), a)
		if err != nil {
			return nil, err
		}
		to = append(to, s)
	}
	if err := countRecipients(len(to)); err != nil {
		return nil, err
	}
	if err := checkData(m.Data); err != nil {
		return nil, err
	}
	in := &sesv2.SendEmailInput{
		FeedbackForwardingEmailAddress: aws.String(from),
		Destination:                    &types.Destination{ToAddresses: to},
		Content:                        &types.EmailContent{Raw: &types.RawMessage{Data: m.Data}},
		EmailTags:                      t.keyTag(nil, m.IdempotencyKey),
	}
	t.configure(in)
	return in, nil
}

func (t *Transport) configure(in *sesv2.SendEmailInput) {
	if t.opts.ConfigurationSet != "" {
		in.ConfigurationSetName = aws.String(t.opts.ConfigurationSet)
	}
}

func destination(m *idemmail.Message) (*types.Destination, error) {
	to, err := addresses("To", m.To)
	if err != nil {
		return nil, err
	}
	cc, err := addresses("Cc", m.Cc)
	if err != nil {
		return nil, err
	}
	bcc, err := addresses("Bcc", m.Bcc)
	if err != nil {
		return nil, err
	}
	if err := countRecipients(len(to) + len(cc) + len(bcc)); err != nil {
		return nil, err
	}
	return &types.Destination{ToAddresses: to, CcAddresses: cc, BccAddresses: bcc}, nil
}

func content(m *idemmail.Message) (*types.Message, error) {
	if err := checkLine("Subject", m.Subject); err != nil {
		return nil, err
	}
	if err := checkText("Text", m.Text); err != nil {
		return nil, err
	}
	if err := checkText("HTML", m.HTML); err != nil {
		return nil, err
	}
	headers, err := headers(m)
	if err != nil {
		return nil, err
	}
	attachments, err := attachments(m.Attachments)
	if err != nil {
		return nil, err
	}
	body := &types.Body{}
	if m.HTML != "" {
		body.Html = text(m.HTML)
	}
	if m.Text != "" || m.HTML == "" {
		body.Text = text(m.Text)
	}
	return &types.Message{
		Subject:     text(m.Subject),
		Body:        body,
		Headers:     headers,
		Attachments: attachments,
	}, nil
}

func text(s string) *types.Content {
	return &types.Content{Data: aws.String(s), Charset: aws.String(charset)}
}

// headers returns In-Reply-To and References, and then the further fields by
// name.
func headers(m *idemmail.Message) ([]types.MessageHeader, error) {
	var fields []types.MessageHeader
	add := func(name, value string) {
		fields = append(fields, types.MessageHeader{Name: aws.String(name), Value: aws.String(value)})
	}
	if m.InReplyTo != "" {
		ids, err := messageIDs("InReplyTo", m.InReplyTo)
		if err != nil {
			return nil, err
		}
		add(fieldInReplyTo, ids[0])
	}
	if len(m.References) > 0 {
		ids, err := messageIDs("References", m.References...)
		if err != nil {
			return nil, err
		}
		add(fieldReferences, joinReferences(ids))
	}
	for _, name := range slices.Sorted(maps.Keys(m.Header)) {
		if len(m.Header[name]) == 0 {
			continue
		}
		if err := checkFieldName(name, m); err != nil {
			return nil, err
		}
		for _, value := range m.Header[name] {
			if err := checkLine(fmt.Sprintf("Header[%q]", name), value); err != nil {
				return nil, err
			}
			add(name, mime.QEncoding.Encode(charset, value))
		}
	}
	if len(fields) > maxFields {
		return nil, &FieldError{"Header", fmt.Sprintf("comes to %d fields with In-Reply-To and References, SES allows %d: use SendRaw", len(fields), maxFields)}
	}
	for _, f := range fields {
		if n := len(*f.Value); n > maxFieldValue {
			return nil, &FieldError{fmt.Sprintf("Header[%q]", *f.Name), fmt.Sprintf("has %d bytes as it is sent, SES allows %d: use SendRaw", n, maxFieldValue)}
		}
	}
	return fields, nil
}

// checkFieldName checks the name of a field in Message.Header.
func checkFieldName(name string, m *idemmail.Message) error {
	field := fmt.Sprintf("Header[%q]", name)
	if name == "" || len(name) > maxFieldName {
		return &FieldError{field, fmt.Sprintf("the name has %d bytes, SES allows 1 to %d", len(name), maxFieldName)}
	}
	if strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r > '~' || r == ':' }) {
		return &FieldError{field, "is no name of a header field (RFC 5322 2.2)"}
	}
	canonical := textproto.CanonicalMIMEHeaderKey(name)
	if by, ok := reserved[canonical]; ok {
		return &FieldError{field, "is set by " + by + ", SES allows no other"}
	}
	switch {
	case canonical == fieldInReplyTo && m.InReplyTo != "":
		return &FieldError{field, "is set by InReplyTo"}
	case canonical == fieldReferences && len(m.References) > 0:
		return &FieldError{field, "is set by References"}
	}
	return nil
}

// joinReferences joins Message-IDs, leaving out the oldest but the first where
// they are more than SES takes (RFC 5537 3.4.4).
func joinReferences(ids []string) string {
	length := len(ids) - 1
	for _, id := range ids {
		length += len(id)
	}
	kept := slices.Clone(ids)
	for length > maxFieldValue && len(kept) > 2 {
		length -= len(kept[1]) + 1
		kept = slices.Delete(kept, 1, 2)
	}
	return strings.Join(kept, " ")
}

func attachments(list []idemmail.Attachment) ([]types.Attachment, error) {
	var out []types.Attachment
	for i, a := range list {
		if err := checkAttachment(fmt.Sprintf("Attachments[%d]", i), a); err != nil {
			return nil, err
		}
		t := types.Attachment{
			FileName:                aws.String(a.Filename),
			RawContent:              a.Content,
			ContentDisposition:      types.AttachmentContentDispositionAttachment,
			ContentTransferEncoding: types.AttachmentContentTransferEncodingBase64,
		}
		if t.RawContent == nil {
			t.RawContent = []byte{} // an empty file; the SDK refuses nil
		}
		if a.Inline {
			t.ContentDisposition = types.AttachmentContentDispositionInline
		}
		if a.ContentID != "" {
			t.ContentId = aws.String(a.ContentID)
		}
		if a.ContentType != "" {
			t.ContentType = aws.String(a.ContentType)
		}
		out = append(out, t)
	}
	return out, nil
}

func tracking(t idemmail.Tracking) *types.ConfigurationOverrides {
	if t.Opens == nil && t.Clicks == nil {
		return nil
	}
	return &types.ConfigurationOverrides{Tracking: &types.TrackingConfigurationOverrides{
		OpenTrackingEnabled:  feature(t.Opens),
		ClickTrackingEnabled: feature(t.Clicks),
	}}
}

func feature(on *bool) types.FeatureStatus {
	switch {
	case on == nil:
		return ""
	case *on:
		return types.FeatureStatusEnabled
	default:
		return types.FeatureStatusDisabled
	}
}

// tags returns Tags, Metadata by name, and the tag of the key.
func (t *Transport) tags(m *idemmail.Message) ([]types.MessageTag, error) {
	var tags []types.MessageTag
	names := map[string]bool{}
	if t.opts.KeyTag != "" {
		names[t.opts.KeyTag] = true
	}
	add := func(field, name, value string) error {
		switch {
		case !isTagPart(name) || !isTagPart(value):
			return &FieldError{field, tagPartRule}
		case names[name]:
			return &FieldError{field, fmt.Sprintf("the tag %q is given twice, or is KeyTag", name)}
		}
		names[name] = true
		tags = append(tags, types.MessageTag{Name: aws.String(name), Value: aws.String(value)})
		return nil
	}
	for i, tag := range m.Tags {
		field := fmt.Sprintf("Tags[%d]", i)
		name, value, ok := strings.Cut(tag, "=")
		if !ok {
			return nil, &FieldError{field, "is not name=value, which is what SES has for tags"}
		}
		if err := add(field, name, value); err != nil {
			return nil, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(m.Metadata)) {
		if err := add(fmt.Sprintf("Metadata[%q]", name), name, m.Metadata[name]); err != nil {
			return nil, err
		}
	}
	return t.keyTag(tags, m.IdempotencyKey), nil
}

func (t *Transport) keyTag(tags []types.MessageTag, key string) []types.MessageTag {
	if t.opts.KeyTag == "" || key == "" {
		return tags
	}
	return append(tags, types.MessageTag{
		Name:  aws.String(t.opts.KeyTag),
		Value: aws.String(idemmail.ProviderKey(t.namespace, key)),
	})
}
