package storetest

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/idemmail/idemmail"
)

// Fingerprints: of the message that a rule sends, and of one that asks for the
// same key.
const (
	mine  = "1:mine"
	other = "1:other"
)

// record is a done record with the receipt of that number.
func record(number int) idemmail.Record {
	return idemmail.Record{State: idemmail.StateDone, Fingerprint: mine, Receipt: receipt(number)}
}

// receipt is a plain receipt that can be told from those of other numbers.
func receipt(number int) *idemmail.Receipt {
	return &idemmail.Receipt{
		Status:    idemmail.StatusSent,
		MessageID: strconv.Itoa(number) + "@storetest.example",
		At:        time.Date(2024, 2, 29, 12, 30, 0, 0, time.UTC),
	}
}

// unknown is receipt with status unknown.
func unknown(number int) *idemmail.Receipt {
	r := receipt(number)
	r.Status = idemmail.StatusUnknown
	r.Code = idemmail.CodeAborted
	return r
}

// numberOf tells which receipt r is; -1: none of ours.
func numberOf(r *idemmail.Receipt) int {
	if r == nil {
		return -1
	}
	digits, _ := strings.CutSuffix(r.MessageID, "@storetest.example")
	number, err := strconv.Atoi(digits)
	if err != nil {
		return -1
	}
	return number
}

// show describes a record in a few words.
func show(r *idemmail.Record) string {
	if r == nil {
		return "no record"
	}
	s := fmt.Sprintf("a record (state %q, fingerprint %.60q", r.State, r.Fingerprint)
	switch number := numberOf(r.Receipt); {
	case r.Receipt == nil:
		s += ", no receipt)"
	case number < 0:
		s += fmt.Sprintf(", a receipt with message id %.60q)", r.Receipt.MessageID)
	default:
		s += fmt.Sprintf(", receipt %d)", number)
	}
	return s
}

// differences names the fields in which got is not what was kept.
func differences(kept, got *idemmail.Receipt) []string {
	switch {
	case got == nil && kept == nil:
		return nil
	case got == nil:
		return []string{"the receipt is gone"}
	case kept == nil:
		return []string{"there is a receipt that was never kept"}
	}
	var all []string
	differ := func(field string, kept, got any) {
		all = append(all, fmt.Sprintf("%s: kept %.200s, answered %.200s", field, fmt.Sprintf("%#v", kept), fmt.Sprintf("%#v", got)))
	}
	text := func(field, kept, got string) {
		if kept != got {
			differ(field, kept, got)
		}
	}
	text("Status", string(kept.Status), string(got.Status))
	text("Transport", kept.Transport, got.Transport)
	text("MessageID", kept.MessageID, got.MessageID)
	text("ProviderID", kept.ProviderID, got.ProviderID)
	text("Response", kept.Response, got.Response)
	text("Code", kept.Code, got.Code)
	text("Category", string(kept.Category), string(got.Category))
	text("Detail", kept.Detail, got.Detail)
	if kept.Retryable != got.Retryable {
		differ("Retryable", kept.Retryable, got.Retryable)
	}
	if _, offset := got.At.Zone(); !kept.At.Equal(got.At) || offset != 0 {
		differ("At", kept.At.Format(time.RFC3339Nano), got.At.Format(time.RFC3339Nano))
	}
	list(differ, "Accepted", kept.Accepted, got.Accepted)
	list(differ, "Rejected", kept.Rejected, got.Rejected)
	if got.Replayed {
		all = append(all, "Replayed: answered true, though it is never kept")
	}
	return all
}

// list compares two lists, telling nil from empty.
func list[T comparable](differ func(field string, kept, got any), field string, kept, got []T) {
	switch {
	case (kept == nil) != (got == nil):
		differ(field, kept, got)
	case len(kept) != len(got):
		differ("len("+field+")", len(kept), len(got))
	default:
		for i := range kept {
			if kept[i] != got[i] {
				differ(fmt.Sprintf("%s[%d]", field, i), kept[i], got[i])
				return
			}
		}
	}
}
