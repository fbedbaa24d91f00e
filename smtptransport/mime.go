package smtptransport

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"mime"
	"mime/quotedprintable"
	"net/url"
	"path"
	"strings"

	"github.com/emersion/go-message/textproto"

	"github.com/idemmail/idemmail"
)

const maxFilenameOctets = 255

// An encoding is how the content of a part goes (RFC 2045 6).
type encoding string

const (
	quotedPrintable encoding = "quoted-printable" // texts
	base64Encoding  encoding = "base64"           // files, octet for octet
	sevenBit        encoding = "7bit"             // messages, which must not be encoded
)

// A part is an entity of a message (RFC 2045 2.4): content, or other parts.
type part struct {
	kind     string // the media type
	fields   []field
	encoding encoding
	content  []byte

	multipart string // "alternative", "related" or "mixed"; empty: there is content
	parts     []part
}

// body makes the parts of a message: the two texts as alternatives, inline
// files beside the HTML that refers to them, all others after both.
func body(m *idemmail.Message) (part, *Error) {
	var inline, attached []part
	for i, a := range m.Attachments {
		p, err := file(fmt.Sprintf("Attachments[%d]", i), a)
		if err != nil {
			return part{}, err
		}
		if a.Inline && m.HTML != "" {
			inline = append(inline, p)
		} else {
			attached = append(attached, p)
		}
	}
	var texts []part
	if m.Text != "" || m.HTML == "" && len(attached) == 0 {
		texts = append(texts, text("text/plain; charset=utf-8", m.Text))
	}
	if m.HTML != "" {
		html := text("text/html; charset=utf-8", m.HTML)
		texts = append(texts, join("related", append([]part{html}, inline...)))
	}
	switch {
	case len(attached) == 0:
		return join("alternative", texts), nil
	case len(texts) == 0:
		return part{multipart: "mixed", parts: attached}, nil
	default:
		return part{multipart: "mixed", parts: append([]part{join("alternative", texts)}, attached...)}, nil
	}
}

// join makes one part of several; one alone stays as it is.
func join(multipart string, parts []part) part {
	if len(parts) == 1 {
		return parts[0]
	}
	return part{multipart: multipart, parts: parts}
}

func text(kind, content string) part {
	return part{kind: kind, encoding: quotedPrintable, content: []byte(content)}
}

// file makes the part of an attachment.
func file(of string, a idemmail.Attachment) (part, *Error) {
	if err := checkText(a.Filename); err != nil {
		return part{}, invalid(of+".Filename", "%w", err)
	}
	if len(a.Filename) > maxFilenameOctets {
		return part{}, invalid(of+".Filename", "has %d octets, %d are allowed", len(a.Filename), maxFilenameOctets)
	}
	kind, err := contentType(a)
	if err != nil {
		return part{}, invalid(of+".ContentType", "%w", err)
	}
	p := part{kind: kind, encoding: base64Encoding, content: a.Content}
	if strings.HasPrefix(kind, "message/") { // RFC 2046 5.2.1: not to be encoded
		if _, err := checkLines(a.Content); err != nil {
			return part{}, invalid(of+".Content", "%w: such a message goes as application/octet-stream only", err)
		}
		if !isASCII(a.Content) {
			return part{}, invalid(of+".Content", "is beyond ASCII: such a message goes as application/octet-stream only")
		}
		p.encoding, p.content = sevenBit, toCRLF(a.Content)
	}
	p.fields = []field{{"Content-Disposition", disposition(a), of + ".Filename"}}
	if a.ContentID != "" {
		if err := checkMessageID(a.ContentID); err != nil {
			return part{}, invalid(of+".ContentID", "%w", err)
		}
		if !isASCII(a.ContentID) {
			return part{}, invalid(of+".ContentID", "is beyond ASCII")
		}
		p.fields = append(p.fields, field{"Content-ID", "<" + a.ContentID + ">", of + ".ContentID"})
	}
	return p, nil
}

// contentType returns the media type of an attachment.
func contentType(a idemmail.Attachment) (string, error) {
	if a.ContentType == "" {
		if t := mime.TypeByExtension(path.Ext(a.Filename)); t != "" {
			return t, nil
		}
		return "application/octet-stream", nil
	}
	if err := checkText(a.ContentType); err != nil {
		return "", err
	}
	kind, parameters, err := mime.ParseMediaType(a.ContentType)
	if err != nil {
		return "", err
	}
	t := mime.FormatMediaType(kind, parameters)
	switch {
	case t == "" || !strings.Contains(kind, "/"):
		return "", fmt.Errorf("%q is not a media type", kind)
	case strings.HasPrefix(kind, "multipart/"):
		return "", fmt.Errorf("%s: an attachment has no parts", kind)
	}
	return foldable("Content-Type", t)
}

// disposition returns a Content-Disposition (RFC 2183), a file name beyond
// ASCII in the form of RFC 2231.
func disposition(a idemmail.Attachment) string {
	kind := "attachment"
	if a.Inline {
		kind = "inline"
	}
	switch {
	case a.Filename == "":
		return kind
	case hasWideSpace(a.Filename): // would not outlive folding in quotes
		return kind + "; filename*=utf-8''" + strings.ReplaceAll(url.QueryEscape(a.Filename), "+", "%20")
	default:
		return mime.FormatMediaType(kind, map[string]string{"filename": a.Filename})
	}
}

// write writes a message down. The same fields and parts give the same octets.
func write(fields []field, root part, messageID string) ([]byte, error) {
	w := writer{seed: root.seed(messageID)}
	var b bytes.Buffer
	b.Grow(root.size())
	own, boundary := w.header(root)
	fields = append(fields, field{name: "MIME-Version", value: "1.0"})
	if err := textproto.WriteHeader(&b, header(append(fields, own...))); err != nil {
		return nil, err
	}
	if err := w.body(&b, root, boundary); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// A writer writes parts, each multipart with a boundary of its own.
type writer struct {
	seed       string
	boundaries int
}

// header returns the fields of a part, and the boundary between its parts.
func (w *writer) header(p part) (fields []field, boundary string) {
	if p.multipart == "" {
		return append([]field{
			{name: "Content-Type", value: p.kind},
			{name: "Content-Transfer-Encoding", value: string(p.encoding)},
		}, p.fields...), ""
	}
	boundary = fmt.Sprintf("=_%s_%d", w.seed, w.boundaries) // "=_" is in no quoted-printable and in no base64
	w.boundaries++
	parameters := map[string]string{"boundary": boundary}
	if p.multipart == "related" {
		parameters["type"] = "text/html" // RFC 2387 3.1
	}
	return []field{{name: "Content-Type", value: mime.FormatMediaType("multipart/"+p.multipart, parameters)}}, boundary
}

func (w *writer) body(to io.Writer, p part, boundary string) error {
	if p.multipart == "" {
		return p.encode(to)
	}
	parts := textproto.NewMultipartWriter(to)
	if err := parts.SetBoundary(boundary); err != nil {
		return err
	}
	for _, child := range p.parts {
		fields, boundary := w.header(child)
		to, err := parts.CreatePart(header(fields))
		if err != nil {
			return err
		}
		if err := w.body(to, child, boundary); err != nil {
			return err
		}
	}
	return parts.Close()
}

func (p part) encode(to io.Writer) error {
	switch p.encoding {
	case quotedPrintable:
		w := quotedprintable.NewWriter(to)
		if _, err := w.Write(p.content); err != nil {
			return err
		}
		return w.Close()
	case base64Encoding:
		const octets = 57 // of a line of 76, which is the most (RFC 2045 6.8)
		line := make([]byte, 0, 78)
		for content := p.content; len(content) > 0; {
			n := min(octets, len(content))
			line = append(base64.StdEncoding.AppendEncode(line[:0], content[:n]), "\r\n"...)
			content = content[n:]
			if _, err := to.Write(line); err != nil {
				return err
			}
		}
		return nil
	default:
		_, err := to.Write(p.content)
		return err
	}
}

// header turns fields into a header: go-message adds at the top.
func header(fields []field) textproto.Header {
	var h textproto.Header
	for i := len(fields) - 1; i >= 0; i-- {
		h.Add(fields[i].name, fields[i].value)
	}
	return h
}

// seed is what the boundaries are made of. What is not encoded is part of it,
// so that nobody can write a boundary into it.
func (p part) seed(messageID string) string {
	h := sha256.New()
	io.WriteString(h, messageID)
	for _, child := range p.parts {
		if child.encoding == sevenBit {
			h.Write(child.content)
		}
	}
	return hex.EncodeToString(h.Sum(nil))[:32]
}

// size guesses how many octets the part will have, for one allocation.
func (p part) size() int {
	n := 2<<10 + len(p.content)*3/2
	for _, child := range p.parts {
		n += child.size()
	}
	return n
}
