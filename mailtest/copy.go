package mailtest

import (
	"maps"
	"slices"

	"github.com/idemmail/idemmail"
)

func copies[T any](of []*T, copied func(*T) *T) []*T {
	all := make([]*T, len(of))
	for i, m := range of {
		all[i] = copied(m)
	}
	return all
}

// copyMessage shares nothing with m.
func copyMessage(m *idemmail.Message) *idemmail.Message {
	if m == nil {
		return nil
	}
	c := *m
	c.ReplyTo, c.To, c.Cc, c.Bcc = slices.Clone(m.ReplyTo), slices.Clone(m.To), slices.Clone(m.Cc), slices.Clone(m.Bcc)
	c.References, c.Tags, c.Metadata = slices.Clone(m.References), slices.Clone(m.Tags), maps.Clone(m.Metadata)
	c.Header = maps.Clone(m.Header)
	for name, values := range c.Header {
		c.Header[name] = slices.Clone(values)
	}
	c.Attachments = slices.Clone(m.Attachments)
	for i := range c.Attachments {
		c.Attachments[i].Content = slices.Clone(c.Attachments[i].Content)
	}
	c.Tracking.Opens, c.Tracking.Clicks = copyBool(m.Tracking.Opens), copyBool(m.Tracking.Clicks)
	return &c
}

func copyBool(b *bool) *bool {
	if b == nil {
		return nil
	}
	c := *b
	return &c
}

// copyRawMessage shares nothing with m.
func copyRawMessage(m *idemmail.RawMessage) *idemmail.RawMessage {
	if m == nil {
		return nil
	}
	c := *m
	c.To, c.Data = slices.Clone(m.To), slices.Clone(m.Data)
	return &c
}
