package idemmail_test

import (
	"context"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
)

// New and NewGuard refuse what cannot be meant, naming the field and its rule.
func TestWrongOptions(t *testing.T) {
	const negative, minimum = "must not be negative", time.Duration(math.MinInt64)
	for name, test := range map[string]struct {
		options idemmail.Options
		field   string
		rule    string
	}{
		"Namespace with a colon":           {idemmail.Options{Namespace: "a:b"}, "Namespace", "':'"},
		"Namespace of 65 bytes":            {idemmail.Options{Namespace: strings.Repeat("a", 65)}, "Namespace", "64"},
		"Namespace of 33 runes, 66 bytes":  {idemmail.Options{Namespace: strings.Repeat("é", 33)}, "Namespace", "64"},
		"Namespace that is not UTF-8":      {idemmail.Options{Namespace: "a\xff"}, "Namespace", "UTF-8"},
		"Namespace with a line feed":       {idemmail.Options{Namespace: "a\n"}, "Namespace", "control character"},
		"Namespace with NUL":               {idemmail.Options{Namespace: "\x00"}, "Namespace", "control character"},
		"Namespace with a control of C1":   {idemmail.Options{Namespace: "a\u0085"}, "Namespace", "control character"},
		"Lease negative":                   {idemmail.Options{Lease: -2}, "Lease", "NoExpiry"},
		"Lease as small as can be":         {idemmail.Options{Lease: minimum}, "Lease", "NoExpiry"},
		"TTL negative":                     {idemmail.Options{TTL: -time.Second}, "TTL", "NoExpiry"},
		"StoreTimeout negative":            {idemmail.Options{StoreTimeout: -time.Second}, "StoreTimeout", negative},
		"StoreTimeout NoExpiry":            {idemmail.Options{StoreTimeout: idemmail.NoExpiry}, "StoreTimeout", negative},
		"MaxSend negative":                 {idemmail.Options{MaxSend: minimum}, "MaxSend", negative},
		"MaxSend NoExpiry":                 {idemmail.Options{MaxSend: idemmail.NoExpiry}, "MaxSend", negative},
		"WaitInFlight negative":            {idemmail.Options{WaitInFlight: -time.Second}, "WaitInFlight", negative},
		"WaitInFlight NoExpiry":            {idemmail.Options{WaitInFlight: idemmail.NoExpiry}, "WaitInFlight", negative},
		"FailOpen with AtMostOnce":         {idemmail.Options{FailOpen: true, AtMostOnce: true}, "FailOpen", "AtMostOnce"},
		"MessageIDDomain with brackets":    {idemmail.Options{MessageIDDomain: "<example.org>"}, "MessageIDDomain", "only letters"},
		"MessageIDDomain with an @":        {idemmail.Options{MessageIDDomain: "@example.org"}, "MessageIDDomain", "only letters"},
		"MessageIDDomain with a line feed": {idemmail.Options{MessageIDDomain: "example.org\r\nBcc: x"}, "MessageIDDomain", "only letters"},
		"MessageIDDomain with a space":     {idemmail.Options{MessageIDDomain: "example .org"}, "MessageIDDomain", "only letters"},
		"MessageIDDomain not ASCII":        {idemmail.Options{MessageIDDomain: "größe.example"}, "MessageIDDomain", "punycode"},
		"MessageIDDomain that ends in dot": {idemmail.Options{MessageIDDomain: "example.org."}, "MessageIDDomain", "empty label"},
		"MessageIDDomain of two dots":      {idemmail.Options{MessageIDDomain: "example..org"}, "MessageIDDomain", "empty label"},
		"MessageIDDomain with - at an end": {idemmail.Options{MessageIDDomain: "example-.org"}, "MessageIDDomain", "hyphen"},
		"MessageIDDomain, label too long":  {idemmail.Options{MessageIDDomain: strings.Repeat("a", 64) + ".org"}, "MessageIDDomain", "63 bytes"},
		"MessageIDDomain of 254 bytes":     {idemmail.Options{MessageIDDomain: strings.Repeat("a.", 126) + "io"}, "MessageIDDomain", "253 bytes"},
		"Store nil in an interface":        {idemmail.Options{Store: (*idemmail.MemStore)(nil)}, "Store", "nil"},
	} {
		t.Run(name, func(t *testing.T) {
			transport, err := idemmail.New(new(handedOn).single(), test.options)
			require.Nil(t, transport)
			require.ErrorContains(t, err, "Options."+test.field)
			require.ErrorContains(t, err, test.rule)
			require.NotContains(t, err.Error(), "\n", "one wrong option, one line")

			if test.options.Namespace == "" {
				test.options.Namespace = "shop"
			}
			guard, err := idemmail.NewGuard(test.options)
			require.Nil(t, guard)
			require.ErrorContains(t, err, "Options."+test.field)
			require.ErrorContains(t, err, test.rule)
		})
	}

	t.Run("a Guard without a namespace", func(t *testing.T) {
		_, err := idemmail.NewGuard(idemmail.Options{})
		require.ErrorContains(t, err, "Options.Namespace")
		require.ErrorContains(t, err, "empty")
	})

	t.Run("each is named", func(t *testing.T) {
		_, err := idemmail.NewGuard(idemmail.Options{Lease: -2, TTL: -2, StoreTimeout: -2, MaxSend: -2, WaitInFlight: -2, FailOpen: true, AtMostOnce: true, MessageIDDomain: "."})
		for _, field := range []string{"Namespace", "Lease", "TTL", "StoreTimeout", "MaxSend", "WaitInFlight", "FailOpen", "MessageIDDomain"} {
			require.ErrorContains(t, err, "Options."+field)
		}
	})

	t.Run("no transport", func(t *testing.T) {
		for _, next := range []idemmail.Transport{nil, idemmail.TransportFunc(nil)} {
			_, err := idemmail.New(next, idemmail.Options{})
			require.ErrorContains(t, err, "transport is nil")
		}
	})
}

func TestRightOptions(t *testing.T) {
	const longest = time.Duration(math.MaxInt64)
	for name, options := range map[string]idemmail.Options{
		"zero":                     {},
		"NoExpiry":                 {Lease: idemmail.NoExpiry, TTL: idemmail.NoExpiry},
		"the longest":              {Lease: longest, TTL: longest, StoreTimeout: longest, MaxSend: longest, WaitInFlight: longest},
		"the shortest":             {Lease: 1, TTL: 1, StoreTimeout: 1, MaxSend: 1, WaitInFlight: 1},
		"Namespace of 64 bytes":    {Namespace: strings.Repeat("é", 32)},
		"MessageIDDomain":          {MessageIDDomain: "mail-1.Example.org"},
		"MessageIDDomain, a label": {MessageIDDomain: "localhost"},
		"MessageIDDomain of 253":   {MessageIDDomain: strings.Repeat(strings.Repeat("a", 62)+".", 4) + "b"},
		"FailOpen":                 {FailOpen: true},
		"AtMostOnce":               {AtMostOnce: true},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := idemmail.New(new(handedOn).single(), options)
			require.NoError(t, err)
			if options.Namespace == "" {
				options.Namespace = "shop"
			}
			_, err = idemmail.NewGuard(options)
			require.NoError(t, err)
		})
	}
}

// What zero means, and that the longest durations overflow nowhere.
func TestDurationDefaults(t *testing.T) {
	const longest = time.Duration(math.MaxInt64)
	for name, test := range map[string]struct {
		options    idemmail.Options
		lease, ttl time.Duration
		maxSend    time.Duration // 0: none
	}{
		"zero":                  {idemmail.Options{}, 10 * time.Minute, 24 * time.Hour, 100 * time.Minute},
		"a lease":               {idemmail.Options{Lease: time.Second}, time.Second, 24 * time.Hour, 10 * time.Second},
		"a lease and MaxSend":   {idemmail.Options{Lease: time.Second, MaxSend: 3 * time.Second}, time.Second, 24 * time.Hour, 3 * time.Second},
		"NoExpiry":              {idemmail.Options{Lease: idemmail.NoExpiry, TTL: idemmail.NoExpiry}, idemmail.NoExpiry, idemmail.NoExpiry, 0},
		"NoExpiry, and MaxSend": {idemmail.Options{Lease: idemmail.NoExpiry, MaxSend: time.Hour}, idemmail.NoExpiry, 24 * time.Hour, time.Hour},
		"the longest":           {idemmail.Options{Lease: longest, TTL: longest}, longest, longest, 0},
		"one that wraps around": {idemmail.Options{Lease: math.MaxUint64/10 + 1}, math.MaxUint64/10 + 1, 24 * time.Hour, 0},
		"nearly the longest":    {idemmail.Options{Lease: longest/10 + 1, TTL: longest - 1}, longest/10 + 1, longest - 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			throughDoors(t, func(t *testing.T, d door) {
				synctest.Test(t, func(t *testing.T) {
					s := newShelf()
					options := test.options
					options.Store = leaseless{s.mem}
					send := d.open(t, options, func(ctx context.Context) (*idemmail.Receipt, error) {
						s.requirePending(t, "k", test.lease)
						began := time.Now()
						select {
						case <-ctx.Done():
							require.Equal(t, test.maxSend, time.Since(began))
						case <-time.After(365 * 24 * time.Hour):
							require.Zero(t, test.maxSend)
						}
						return receiptOf(statusSent), nil
					})
					r, err := send(t.Context(), "k", "a")
					requireFirst(t, r, err)
					s.requireKept(t, "k", r, test.ttl)
				})
			})
		})
	}
}

// leaseless is a store that cannot renew.
type leaseless struct{ idemmail.Store }
