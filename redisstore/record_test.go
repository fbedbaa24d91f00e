package redisstore_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
)

// goldenToken stands in the golden values for the token, which is random.
const goldenToken = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

// goldenReceipt has something in every field.
func goldenReceipt() *idemmail.Receipt {
	return &idemmail.Receipt{
		Status:     idemmail.StatusUnknown,
		Transport:  "smtp",
		MessageID:  "abc@example.org",
		ProviderID: "4bXyZ",
		Response:   "250 2.0.0 <queued> & \"kept\" \u2028 \U0001F4E7 \x01",
		Accepted:   []string{"a@example.org"},
		Rejected:   []idemmail.Rejection{{Address: "b@example.org", Reason: "no such user", Code: 550}, {Address: "c@example.org", Code: 1<<53 + 1}},
		At:         time.Date(2025, 7, 20, 8, 26, 40, 123000000, time.UTC),
		Code:       idemmail.CodeAborted,
		Category:   idemmail.CategoryTimeout,
		Retryable:  true,
		Detail:     "context deadline exceeded",
	}
}

func golden(t *testing.T, name string) string {
	t.Helper()
	value, err := os.ReadFile(filepath.Join("testdata", name+".value"))
	require.NoError(t, err)
	return string(value)
}

// TestValuesAreAsEver compares what is written with what every earlier version
// wrote: other processes, of other versions, read it.
func TestValuesAreAsEver(t *testing.T) {
	records := map[string]idemmail.Record{
		"pending":                 {State: idemmail.StatePending, Fingerprint: "1:5f4dcc3b"},
		"pending-odd-fingerprint": {State: idemmail.StatePending, Fingerprint: "c:a b 3:\x00\xff\n{}"},
		"pending-no-fingerprint":  {State: idemmail.StatePending},
		"sent":                    {State: idemmail.StateDone, Fingerprint: "1:5f4dcc3b", Receipt: &idemmail.Receipt{Status: idemmail.StatusSent, At: time.Date(2025, 7, 20, 8, 26, 40, 0, time.UTC)}},
		"failed":                  {State: idemmail.StateDone, Fingerprint: "1:5f4dcc3b", Receipt: &idemmail.Receipt{Status: idemmail.StatusFailed, Accepted: []string{}, Rejected: []idemmail.Rejection{}}},
		"unknown":                 {State: idemmail.StateDone, Fingerprint: "1:5f4dcc3b", Receipt: goldenReceipt()},
		"other-status":            {State: idemmail.StateDone, Fingerprint: "1:5f4dcc3b", Receipt: &idemmail.Receipt{Status: "bounced"}},
	}
	for name, rec := range records {
		t.Run(name, func(t *testing.T) {
			s, m := newStore(t)
			token := goldenToken
			if rec.State == idemmail.StatePending {
				var err error
				token, _, err = s.Reserve(t.Context(), "mail:a", rec.Fingerprint, time.Minute)
				require.NoError(t, err)
				require.Len(t, token, len(goldenToken))
				require.NoError(t, s.Renew(t.Context(), "mail:a", token, time.Minute)) // with the server's very time
			} else {
				require.NoError(t, s.Complete(t.Context(), "mail:a", token, rec, time.Minute))
			}
			value, err := m.Get("mail:a")
			require.NoError(t, err)
			require.Equal(t, golden(t, name), strings.Replace(value, token, goldenToken, 1))

			require.NoError(t, m.Set("mail:b", golden(t, name)))
			e, err := s.Lookup(t.Context(), "mail:b")
			require.NoError(t, err)
			require.Equal(t, &idemmail.Entry{Key: "mail:b", Token: goldenToken, Record: rec}, e)
		})
	}
	t.Run("the reservation as it is before any renewal", func(t *testing.T) {
		s, m := newStore(t)
		token := reserve(t, s, "mail:a")
		value, err := m.Get("mail:a")
		require.NoError(t, err)
		require.Regexp(t, `^idm1 p- 175300000[01]\d{6} 26:`+token+` 3:1:f$`, value)
	})
}

// TestLaterValuesAreRead: further fields are no fault.
func TestLaterValuesAreRead(t *testing.T) {
	for name, rec := range map[string]idemmail.Record{
		"later-pending": {State: idemmail.StatePending, Fingerprint: "1:5f4dcc3b"},
		"later-sent":    {State: idemmail.StateDone, Fingerprint: "1:5f4dcc3b", Receipt: &idemmail.Receipt{Status: idemmail.StatusSent, ProviderID: "q1"}},
	} {
		t.Run(name, func(t *testing.T) {
			s, m := newStore(t)
			require.NoError(t, m.Set("mail:a", golden(t, name)))
			e, err := s.Lookup(t.Context(), "mail:a")
			require.NoError(t, err)
			require.Equal(t, rec, e.Record)
			require.NoError(t, s.Complete(t.Context(), "mail:a", goldenToken, done(idemmail.StatusSent), time.Minute))
		})
	}
}

// TestDamagedValuesAreBadRecords: what only Go decodes. For what the scripts
// see too, see TestForeignDataIsABadRecord.
func TestDamagedValuesAreBadRecords(t *testing.T) {
	const head = "idm1 ds 1753000000123456 "
	for name, value := range map[string]string{
		"truncated token":       head + "26:ABC",
		"token length too long": head + "99999999999999999999:ABC 3:1:f {}",
		"token length signed":   head + "+3:ABC 3:1:f {}",
		"no fingerprint":        head + "3:ABC",
		"fingerprint too short": head + "3:ABC 9:1:f",
		"no receipt":            head + "3:ABC 3:1:f",
		"null receipt":          head + "3:ABC 3:1:f null",
		"no receipt at all":     "idm1 d- 1753000000123456 " + "3:ABC 3:1:f null",
		"truncated receipt":     head + `3:ABC 3:1:f {"status":"sent`,
		"more than a receipt":   head + `3:ABC 3:1:f {"status":"sent"} {}`,
		"receipt of a type":     head + `3:ABC 3:1:f {"status":7}`,
		"status of the head":    head + `3:ABC 3:1:f {"status":"unknown"}`,
		"later status":          "idm1 dq 1753000000123456 " + `3:ABC 3:1:f {"status":"queued"}`,
		"pending with a status": "idm1 ps 1753000000123456 3:ABC 3:1:f",
		"pending with more":     "idm1 p- 1753000000123456 3:ABC 3:1:f {",
		"no space":              "idm1 p-_1753000000123456 3:ABC 3:1:f",
	} {
		t.Run(name, func(t *testing.T) {
			s, m := newStore(t)
			require.NoError(t, m.Set("mail:a", value))
			_, _, err := s.Reserve(t.Context(), "mail:a", "1:f", time.Minute)
			require.ErrorIs(t, err, idemmail.ErrBadRecord)
			_, err = s.Lookup(t.Context(), "mail:a")
			require.ErrorIs(t, err, idemmail.ErrBadRecord)
			require.Error(t, s.Complete(t.Context(), "mail:a", "another", done(idemmail.StatusSent), time.Minute))
			kept, err := m.Get("mail:a")
			require.NoError(t, err)
			require.Equal(t, value, kept)
		})
	}
	t.Run("a fingerprint that a script cannot take over", func(t *testing.T) {
		for _, rest := range []string{"", " ", " 3", " 9:1:f", " 9999999999:1:f", "x3:1:f", " -1:f"} {
			s, m := newStore(t)
			value := "idm1 p- 1753000000123456 3:ABC" + rest
			require.NoError(t, m.Set("mail:a", value))
			e := idemmail.Entry{Key: "mail:a", Token: "ABC", Record: idemmail.Record{State: idemmail.StatePending}}
			require.ErrorIs(t, s.Resolve(t.Context(), e, nil, time.Minute), idemmail.ErrBadRecord, rest)
			kept, err := m.Get("mail:a")
			require.NoError(t, err)
			require.Equal(t, value, kept)
		}
	})
}

// TestReceiptsSurvive covers what JSON and Lua are known to lose.
func TestReceiptsSurvive(t *testing.T) {
	s, _ := newStore(t)
	for name, change := range map[string]func(*idemmail.Receipt){
		"as it is":    func(*idemmail.Receipt) {},
		"nil lists":   func(r *idemmail.Receipt) { r.Accepted, r.Rejected = nil, nil },
		"empty lists": func(r *idemmail.Receipt) { r.Accepted, r.Rejected = []string{}, []idemmail.Rejection{} },
		"no time":     func(r *idemmail.Receipt) { r.At = time.Time{} },
		"long":        func(r *idemmail.Receipt) { r.Detail = strings.Repeat("é\u2029", 1<<16) },
	} {
		t.Run(name, func(t *testing.T) {
			want := goldenReceipt()
			change(want)
			given := *want
			given.Replayed = true // is not kept
			key := "mail:" + name
			token := reserve(t, s, key)
			rec := idemmail.Record{State: idemmail.StateDone, Fingerprint: "1:f", Receipt: &given}
			require.NoError(t, s.Complete(t.Context(), key, token, rec, time.Minute))
			require.Equal(t, want, holder(t, s, key).Receipt)
		})
	}
}
