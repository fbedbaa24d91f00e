package idemmail

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// fill sets every field that v has to a value of its own.
func fill(t *testing.T, v reflect.Value, n *int) {
	*n++
	switch v.Kind() {
	case reflect.String:
		v.SetString(strings.Repeat("é", *n))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int:
		v.SetInt(int64(-*n))
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 200, 200))
		for i := range v.Len() {
			fill(t, v.Index(i), n)
		}
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(time.Date(2026, 3, 1, 12, 0, 0, 123456789, time.UTC)))
			return
		}
		for i := range v.NumField() {
			fill(t, v.Field(i), n)
		}
	default:
		t.Fatalf("a receipt has a %v now: fill it, and pack it", v.Type())
	}
}

func TestPackedReceipt(t *testing.T) {
	var full Receipt
	fill(t, reflect.ValueOf(&full).Elem(), new(int))
	full.Replayed = false // never kept
	long := Receipt{Status: StatusUnknown, Detail: strings.Repeat("x", 1<<20)}
	for _, r := range []*Receipt{
		&full,
		&long,
		{},
		{Accepted: []string{}},
		{Rejected: []Rejection{}},
		{Accepted: []string{""}, Rejected: []Rejection{{}}},
		{At: time.Date(1, 1, 1, 0, 0, 0, 1, time.UTC)},
		{At: time.Date(9999, 12, 31, 23, 59, 59, 999999999, time.UTC)},
		{Retryable: true},
		{Detail: "\x00\xff not UTF-8"},
	} {
		packed := packReceipt(r)
		require.NotEmpty(t, packed)
		require.Equal(t, r, packed.unpack())
	}

	zoned := Receipt{At: time.Date(2026, 3, 1, 12, 0, 0, 0, time.FixedZone("", 3600))}
	require.Equal(t, zoned.At.UTC(), packReceipt(&zoned).unpack().At)
	replayed := Receipt{Status: StatusSent, Replayed: true}
	require.Equal(t, &Receipt{Status: StatusSent}, packReceipt(&replayed).unpack())
}

func TestPackedReceiptAllocations(t *testing.T) {
	r := &Receipt{Status: StatusSent, MessageID: "m@example.org", Response: "250 2.0.0 Ok"}
	var packed packedReceipt
	require.EqualValues(t, 1, testing.AllocsPerRun(100, func() { packed = packReceipt(r) }))
	require.EqualValues(t, 1, testing.AllocsPerRun(100, func() { r = packed.unpack() }))
}
