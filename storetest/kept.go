package storetest

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/idemmail/idemmail"
)

// fullReceipt has something in every field that is kept.
func fullReceipt() *idemmail.Receipt {
	return &idemmail.Receipt{
		Status:     idemmail.StatusUnknown,
		Transport:  "smtp-1",
		MessageID:  "full@storetest.example",
		ProviderID: "0100018f-2b",
		Response:   "250 2.0.0 Ok: queued as 4F2A",
		Accepted:   []string{"ann@storetest.example", "ben@storetest.example"},
		Rejected: []idemmail.Rejection{
			{Address: "cid@storetest.example", Reason: "no such user", Code: 550},
			{Address: "dot@storetest.example"},
		},
		At:        time.Date(2024, 2, 29, 23, 59, 59, int(999*time.Millisecond), time.UTC),
		Code:      idemmail.CodeAborted,
		Category:  idemmail.CategoryTimeout,
		Retryable: true,
		Detail:    "no answer within 30s",
	}
}

// A sample is a receipt that something about a store may spoil.
type sample struct {
	name    string
	receipt idemmail.Receipt
}

// at is a receipt of that time.
func at(name string, t time.Time) sample {
	r := *receipt(0)
	r.At, r.Accepted, r.Rejected = t, []string{"a"}, []idemmail.Rejection{{Address: "b"}}
	return sample{name, r}
}

// texts fills every text of a receipt with s.
func texts(name, s string) sample {
	return sample{name, idemmail.Receipt{
		Status: idemmail.StatusSent, Transport: s, MessageID: s, ProviderID: s, Response: s,
		Accepted: []string{s}, Rejected: []idemmail.Rejection{{Address: s, Reason: s}},
		At:   time.Date(2024, 2, 29, 12, 0, 0, 0, time.UTC),
		Code: s, Category: idemmail.Category(s), Detail: s,
	}}
}

var (
	fieldSamples = []sample{
		{"all fields", *fullReceipt()},
		{"a status alone", idemmail.Receipt{Status: idemmail.StatusSent}},
		{"no retry", idemmail.Receipt{Status: idemmail.StatusUnknown, Retryable: false, Code: "x", Detail: "y"}},
		{"a large code", idemmail.Receipt{Status: idemmail.StatusSent, Rejected: []idemmail.Rejection{{Address: "a", Code: math.MaxInt}}}},
		{"a negative code", idemmail.Receipt{Status: idemmail.StatusSent, Rejected: []idemmail.Rejection{{Address: "a", Code: -1}}}},
	}
	listSamples = []sample{
		{"nil lists", idemmail.Receipt{Status: idemmail.StatusSent}},
		{"empty lists", idemmail.Receipt{Status: idemmail.StatusSent, Accepted: []string{}, Rejected: []idemmail.Rejection{}}},
		{"nil and empty", idemmail.Receipt{Status: idemmail.StatusSent, Rejected: []idemmail.Rejection{}}},
		{"empty and nil", idemmail.Receipt{Status: idemmail.StatusSent, Accepted: []string{}}},
		{"empty elements", idemmail.Receipt{Status: idemmail.StatusSent, Accepted: []string{"", ""}, Rejected: []idemmail.Rejection{{}}}},
		{"repeated and unsorted", idemmail.Receipt{Status: idemmail.StatusSent, Accepted: []string{"b", "a", "b"}}},
	}
	timeSamples = []sample{
		at("no time", time.Time{}),
		at("a millisecond", time.Date(2024, 12, 31, 23, 59, 59, int(time.Millisecond), time.UTC)),
		at("999 milliseconds", time.Date(2039, 1, 1, 0, 0, 0, int(999*time.Millisecond), time.UTC)),
		at("a whole second", time.Date(2024, 2, 29, 0, 0, 0, 0, time.UTC)),
		at("a time before 1970", time.Date(1969, 7, 20, 20, 17, 40, int(123*time.Millisecond), time.UTC)),
	}
	textSamples = []sample{
		texts("other scripts", "Grüße, 日本語, العربية, 👩‍👩‍👧, e\u0301 is not \u00e9"),
		texts("HTML", `<b>&amp; "quoted" 'single' </b>`),
		texts("escapes", `\ \\ \n \u0000 \x00 %s %00 {} [] $1 $set a.b`),
		texts("spaces", " leading and trailing \u00a0\u3000 "),
		texts("line separators", "a\u2028b\u2029c\ufeffd\ufffde"),
		texts("what looks like JSON", `{"state":"done","receipt":null}`),
		texts("what looks like a number or null", "1e3"),
		texts("a number too large", "12345678901234567890"),
		texts("the last characters", "\uffff\U0010ffff"),
	}
	controlSamples = []sample{
		texts("line ends", "250-first\r\n250 second\n\r"),
		texts("tabs and escapes", "\t\v\f\b\a\x1b[31mred\x7f"),
		texts("NUL", "before\x00after"),
		texts("C1", "\u0080\u0085\u009f"),
	}
)

// keeps is a rule's run: each sample comes back as it was kept.
func keeps(samples []sample) func(p *probe) {
	return func(p *probe) {
		for _, s := range samples {
			key, kept := p.key(), s.receipt
			token := p.take(key, long)
			err := p.store.Complete(p.ctx, key, token, idemmail.Record{State: idemmail.StateDone, Fingerprint: mine, Receipt: &kept}, long)
			if err != nil {
				p.failf("a receipt with %s could not be kept: %w", s.name, err)
				continue
			}
			if held := p.held(key, "completed"); held != nil {
				for _, d := range differences(&s.receipt, held.Receipt) {
					p.failf("a receipt with %s: %s", s.name, d)
				}
			}
		}
	}
}

var keptRules = []rule{
	{
		name: "fingerprint",
		wants: "the fingerprint is kept exactly, from the reservation on and through Complete; " +
			"without it another message under the key is answered with this one's receipt",
		needs: needComplete,
		run: func(p *probe) {
			for _, fingerprint := range []string{
				"1:" + strings.Repeat("0123456789abcdef", 4),
				"1:" + strings.Repeat("0123456789ABCDEF", 4),
				"c:" + strings.Repeat("long ", 200) + ".",
				"c: spaces, 'quotes', \"double\", back\\slash, <&>, {}, $set, a.b, % ",
				"c:Grüße 日本語 👩‍👩‍👧 e\u0301 \u2028",
				"c:\tlines\r\nand tabs",
				"c:", "12345678901234567890", "null", ":",
			} {
				key := p.key()
				token := p.takeFor(fingerprint, key, long)
				if held := p.held(key, "reserved"); held != nil && held.Fingerprint != fingerprint {
					p.failf("reserved with fingerprint %q, the key shows %q", fingerprint, held.Fingerprint)
				}
				rec := record(1)
				rec.Fingerprint = fingerprint
				p.ok(p.store.Complete(p.ctx, key, token, rec, long), "completing with fingerprint %q", fingerprint)
				if held := p.held(key, "completed"); held != nil && held.Fingerprint != fingerprint {
					p.failf("completed with fingerprint %q, the key shows %q", fingerprint, held.Fingerprint)
				}
			}
		},
	},
	{
		name:  "receipt-times",
		wants: "At is kept to the millisecond and in UTC, and the zero time stays zero",
		needs: needComplete,
		run:   keeps(timeSamples),
	},
	{
		name:  "receipt-lists",
		wants: "the lists of a receipt are kept in their order, and a nil one stays nil and an empty one empty",
		needs: append([]string{"receipt-times"}, needComplete...),
		run:   keeps(listSamples),
	},
	{
		name:  "receipt-fields",
		wants: "every field of a receipt is kept, and none gets a value that it did not have",
		needs: append([]string{"receipt-lists", "receipt-times"}, needComplete...),
		run:   keeps(fieldSamples),
	},
	{
		name:  "receipt-texts",
		wants: "texts in a receipt are kept as they are, whatever they look like: servers' replies and errors hold anything",
		needs: append([]string{"receipt-times"}, needComplete...),
		run:   keeps(textSamples),
	},
	{
		name:  "receipt-control-characters",
		wants: "control characters in a receipt are kept: replies of several lines have them, and errors quote what came in",
		needs: append([]string{"receipt-times"}, needComplete...),
		run:   keeps(controlSamples),
	},
	{
		name:  "receipt-large",
		wants: "a receipt with 1,000 recipients taken and 1,000 refused is kept whole",
		needs: append([]string{"receipt-fields"}, needComplete...),
		run: func(p *probe) {
			large := *fullReceipt()
			large.Detail = strings.Repeat("d", 1024)
			large.Accepted, large.Rejected = nil, nil
			for i := range 1000 {
				large.Accepted = append(large.Accepted, fmt.Sprintf("accepted-%d@%s.example", i, strings.Repeat("x", 60)))
				large.Rejected = append(large.Rejected, idemmail.Rejection{
					Address: fmt.Sprintf("rejected-%d@%s.example", i, strings.Repeat("y", 60)),
					Reason:  strings.Repeat("mailbox full ", 10), Code: 452,
				})
			}
			keeps([]sample{{"2,000 recipients", large}})(p)
		},
	},
	{
		name:  "replayed",
		wants: "Replayed is not kept: it says how a receipt was answered, and the caller sets it",
		needs: needComplete,
		run: func(p *probe) {
			key, rec := p.key(), record(1)
			rec.Receipt.Replayed = true
			p.keep(key, rec, long)
			if held := p.held(key, "completed"); held != nil && held.Receipt != nil && held.Receipt.Replayed {
				p.failf("completed with a receipt that says Replayed, the store answers it so")
			}
		},
	},
	{
		name: "aliasing",
		wants: "what a store was given, and what it answers, shares no memory with what it keeps; " +
			"where it does, a caller who changes a receipt changes every later answer",
		needs: append([]string{"fingerprint", "receipt-fields"}, needComplete...),
		run: func(p *probe) {
			key := p.key()
			rec := idemmail.Record{State: idemmail.StateDone, Fingerprint: mine, Receipt: fullReceipt()}
			p.keep(key, rec, long)
			spoil(rec.Receipt)
			p.unspoiled(key, "the receipt that it was given")
			if held := p.held(key, "completed"); held != nil {
				spoil(held.Receipt)
				*held = idemmail.Record{}
			}
			p.unspoiled(key, "the record that it had answered")

			reserved := p.key()
			p.take(reserved, long)
			if held := p.held(reserved, "reserved"); held != nil {
				*held = idemmail.Record{State: idemmail.StateDone, Fingerprint: "spoiled", Receipt: receipt(1)}
			}
			if held := p.held(reserved, "reserved"); held != nil && (held.State != idemmail.StatePending || held.Fingerprint != mine || held.Receipt != nil) {
				p.failf("after the caller had changed the record that it had answered, Reserve answers %s", show(held))
			}
		},
	},
}

// spoil changes all of a receipt that can be reached.
func spoil(r *idemmail.Receipt) {
	if r == nil {
		return
	}
	for i := range r.Accepted {
		r.Accepted[i] = "spoiled"
	}
	for i := range r.Rejected {
		r.Rejected[i] = idemmail.Rejection{Address: "spoiled", Reason: "spoiled", Code: 1}
	}
	*r = idemmail.Receipt{Detail: "spoiled", Accepted: append(r.Accepted[:0], "spoiled"), Rejected: append(r.Rejected[:0], idemmail.Rejection{Address: "spoiled"})}
}

// unspoiled notes whether the key shows another receipt than the full one.
func (p *probe) unspoiled(key, what string) { p.shows(key, fullReceipt(), what) }

// shows notes whether the key, done, shows another receipt than r, now that
// what is changed.
func (p *probe) shows(key string, r *idemmail.Receipt, what string) {
	held := p.held(key, "completed")
	if held == nil {
		return
	}
	if held.State != idemmail.StateDone || held.Fingerprint != mine {
		p.failf("after the caller had changed %s, Reserve answers %s", what, show(held))
	}
	for _, d := range differences(r, held.Receipt) {
		p.failf("after the caller had changed %s: %s", what, d)
	}
}
