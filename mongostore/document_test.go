package mongostore

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/idemmail/idemmail"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// at is 2026-03-04 05:06:07.089 UTC.
const at bson.DateTime = 1772600767089

// golden has the documents of the files in testdata.
var golden = map[string]document{
	"pending": {
		Key: "orders:order/1042", Format: 1, State: idemmail.StatePending,
		Token: "NSKDFFZXYA7Q6RHWZDVOCHYD4M", Fingerprint: "1:2c26b46b", At: at, Expires: at + 600_000,
	},
	"pending-for-ever": {
		Key: "orders:$set.{a}*\U0001F600", Format: 1, State: idemmail.StatePending,
		Token: "NSKDFFZXYA7Q6RHWZDVOCHYD4M", Fingerprint: "", At: at,
	},
	"done-sent": {
		Key: "orders:order/1042", Format: 1, State: idemmail.StateDone,
		Token: "NSKDFFZXYA7Q6RHWZDVOCHYD4M", Fingerprint: "1:2c26b46b", At: at, Expires: at + 86_400_000,
		Receipt: &idemmail.Receipt{
			Status: idemmail.StatusSent, Transport: "smtp", MessageID: "abc@example.com", ProviderID: "4XyZ",
			Response: "250 2.0.0 Ok: queued as 4XyZ", Accepted: []string{"ann@example.com"},
			Rejected: []idemmail.Rejection{{Address: "bob@example.com", Reason: "no such user", Code: 550}, {Address: "eve@example.com"}},
			At:       at.Time().UTC(),
		},
	},
	"done-unknown": {
		Key: "orders:order/1042", Format: 1, State: idemmail.StateDone,
		Token: "NSKDFFZXYA7Q6RHWZDVOCHYD4M", Fingerprint: "c:v1", At: at,
		Receipt: &idemmail.Receipt{
			Status: idemmail.StatusUnknown, Accepted: []string{}, Rejected: nil, At: at.Time().UTC(),
			Code: idemmail.CodeAborted, Category: idemmail.CategoryTimeout, Retryable: true,
			Detail: "read tcp: i/o timeout\r\n\x00\u2028 \u00e9",
		},
	},
	"done-bare": {
		Key: "orders:order/1042", Format: 1, State: idemmail.StateDone,
		Token: "NSKDFFZXYA7Q6RHWZDVOCHYD4M", Fingerprint: "1:2c26b46b", At: at, Expires: at + 1,
		Receipt: &idemmail.Receipt{Status: idemmail.StatusSent, Rejected: []idemmail.Rejection{}},
	},
}

func TestDocumentFormatIsPinned(t *testing.T) {
	for name, d := range golden {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join("testdata", name+".json")
			raw, err := d.encode()
			require.NoError(t, err)
			text, err := bson.MarshalExtJSON(raw, true, false)
			require.NoError(t, err)
			var pretty bytes.Buffer
			require.NoError(t, json.Indent(&pretty, text, "", "  "))
			pretty.WriteByte('\n')
			if os.Getenv("IDEMMAIL_UPDATE_GOLDEN") == "1" {
				require.NoError(t, os.WriteFile(file, pretty.Bytes(), 0o644))
			}
			want, err := os.ReadFile(file)
			require.NoError(t, err)
			require.Equal(t, string(want), pretty.String(), "the format of kept documents has changed: other versions must still read them")

			got, err := decode(readGolden(t, name))
			require.NoError(t, err)
			require.Equal(t, d, got)
		})
	}
}

func readGolden(t *testing.T, name string) bson.Raw {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name+".json"))
	require.NoError(t, err)
	var raw bson.Raw
	require.NoError(t, bson.UnmarshalExtJSON(text, true, &raw))
	return raw
}

func TestFurtherFieldsAreNoFault(t *testing.T) {
	got, err := decode(readGolden(t, "later-fields"))
	require.NoError(t, err)
	want := golden["done-bare"]
	require.Equal(t, want, got)
}

func TestLaterFormatIsABadRecord(t *testing.T) {
	_, err := decode(readGolden(t, "later-format"))
	require.ErrorIs(t, err, idemmail.ErrBadRecord)
	require.ErrorContains(t, err, "orders:order/1042")
}

// damaged answers documents that are no records, each by what is wrong with it.
func damaged(t *testing.T, good document) map[string]bson.D {
	raw, err := good.encode()
	require.NoError(t, err)
	with := func(name string, value any) bson.D {
		var d bson.D
		require.NoError(t, bson.Unmarshal(raw, &d))
		for i := range d {
			if d[i].Key == name {
				d[i].Value = value
				return d
			}
		}
		return append(d, bson.E{Key: name, Value: value})
	}
	without := func(name string) bson.D {
		var d, rest bson.D
		require.NoError(t, bson.Unmarshal(raw, &d))
		for _, e := range d {
			if e.Key != name {
				rest = append(rest, e)
			}
		}
		return rest
	}
	docs := map[string]bson.D{
		"only a key":            {{Key: "_id", Value: good.Key}},
		"another application's": {{Key: "_id", Value: good.Key}, {Key: "expires", Value: good.At}, {Key: "name", Value: "x"}},
		"format 2":              with("idemmail", int32(2)),
		"format 1.5":            with("idemmail", 1.5),
		"format a string":       with("idemmail", "1"),
		"state of a later day":  with("state", "queued"),
		"state empty":           with("state", ""),
		"state a number":        with("state", int32(1)),
		"token empty":           with("token", ""),
		"token a number":        with("token", int32(7)),
		"token null":            with("token", nil),
		"fingerprint a number":  with("fingerprint", int32(7)),
		"at a string":           with("at", "2026-03-04T05:06:07Z"),
		"at a number":           with("at", int64(at)),
		"expires a string":      with("expires", "2026-03-04T05:06:07Z"),
		"expires a number":      with("expires", int64(1)),
		"expires null":          with("expires", nil),
		"expires a document":    with("expires", bson.D{}),
		"expires a timestamp":   with("expires", bson.Timestamp{T: 1}),
	}
	for _, name := range []string{"idemmail", "state", "token", "fingerprint", "at"} {
		docs["no "+name] = without(name)
	}
	if good.State == idemmail.StateDone {
		docs["no receipt"] = without("receipt")
		docs["receipt null"] = with("receipt", nil)
		docs["receipt a string"] = with("receipt", "{}")
		docs["receipt without a status"] = with("receipt", bson.D{})
		docs["receipt with a numeric status"] = with("receipt", bson.D{{Key: "status", Value: int32(1)}})
	}
	return docs
}

func TestWhatIsNoRecordIsABadRecord(t *testing.T) {
	for name, d := range damaged(t, golden["done-sent"]) {
		t.Run(name, func(t *testing.T) {
			raw, err := bson.Marshal(d)
			require.NoError(t, err)
			_, err = decode(raw)
			require.ErrorIs(t, err, idemmail.ErrBadRecord)
			require.ErrorContains(t, err, "orders:order/1042")
		})
	}
}

func TestFormatNumberMayBeOfAnyType(t *testing.T) {
	for _, n := range []any{int32(1), int64(1), 1.0} {
		raw, err := bson.Marshal(damaged(t, golden["pending"])["format 2"])
		require.NoError(t, err)
		var d bson.D
		require.NoError(t, bson.Unmarshal(raw, &d))
		for i := range d {
			if d[i].Key == "idemmail" {
				d[i].Value = n
			}
		}
		raw, err = bson.Marshal(d)
		require.NoError(t, err)
		got, err := decode(raw)
		require.NoError(t, err)
		require.Equal(t, golden["pending"], got)
	}
}

func TestExpiry(t *testing.T) {
	now := time.Date(2026, 3, 4, 5, 6, 7, 89_000_001, time.UTC)
	require.Equal(t, at, bson.NewDateTimeFromTime(now))
	require.Zero(t, expiry(now, idemmail.NoExpiry))
	require.Equal(t, at+1, expiry(now, 1), "rounded up")
	require.Equal(t, at+1, expiry(now.Add(-1), time.Millisecond), "a whole millisecond stays one")
	require.Equal(t, at+2, expiry(now, time.Millisecond))
	forever := expiry(now, 1<<63-1)
	require.Equal(t, 2318, forever.Time().UTC().Year())

	d := document{At: at, Expires: at + 2}
	require.False(t, d.expired(now.Add(time.Millisecond)))
	require.True(t, d.expired(now.Add(2*time.Millisecond)))
	require.False(t, document{At: at}.expired(now.AddDate(1000, 0, 0)))
	require.Equal(t, time.Duration(1), d.record(now).Age)
	require.Zero(t, d.record(now.Add(-time.Hour)).Age, "never negative")
}

func TestCheckLife(t *testing.T) {
	for _, d := range []time.Duration{1, time.Hour, 1<<63 - 1, idemmail.NoExpiry} {
		require.NoError(t, checkLife(d))
	}
	for _, d := range []time.Duration{0, -2, -time.Hour} {
		require.Error(t, checkLife(d))
	}
}

func TestPrefixEnd(t *testing.T) {
	for prefix, want := range map[string]string{
		"a": "b", "orders:": "orders;", "a\U0010FFFF": "b", "\uD7FF": "\uE000", "\U0001F600": "\U0001F601", "z\x7f": "z\u0080",
	} {
		end, ok := prefixEnd(prefix)
		require.True(t, ok)
		require.Equal(t, want, end)
		require.Less(t, prefix+strings.Repeat("\U0010FFFF", 3), end)
	}
	for _, prefix := range []string{"", "\U0010FFFF\U0010FFFF"} {
		_, ok := prefixEnd(prefix)
		require.False(t, ok)
	}
}
