package main

import (
	"encoding/base32"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/idemmail/idemmail"
)

// An entryLine is an entry as JSON. Scripts rely on its fields.
type entryLine struct {
	Key         string            `json:"key"` // with its namespace
	State       idemmail.State    `json:"state,omitempty"`
	AgeSeconds  float64           `json:"age_seconds,omitempty"`
	ExpiresAt   time.Time         `json:"expires_at,omitzero"` // missing: never
	Fingerprint string            `json:"fingerprint,omitempty"`
	ProviderKey string            `json:"provider_key,omitempty"`
	Receipt     *idemmail.Receipt `json:"receipt,omitempty"`
	Error       string            `json:"error,omitempty"` // the data is no record
}

// lineOf answers the JSON of an entry whose Key has its namespace.
func lineOf(e idemmail.Entry) entryLine {
	return entryLine{
		Key:         e.Key,
		State:       e.Record.State,
		AgeSeconds:  e.Record.Age.Seconds(),
		ExpiresAt:   e.ExpiresAt,
		Fingerprint: e.Record.Fingerprint,
		ProviderKey: providerKey(e.Key),
		Receipt:     e.Record.Receipt,
	}
}

// newEncoder writes JSON as it is: it is for no web page.
func newEncoder(out io.Writer) *json.Encoder {
	e := json.NewEncoder(out)
	e.SetEscapeHTML(false)
	return e
}

// providerKey answers what providers were given for a KEY; "" for what is none.
func providerKey(key string) string {
	namespace, rest, err := splitKey(key)
	if err != nil {
		return ""
	}
	return idemmail.ProviderKey(namespace, rest)
}

// stableMessageID answers the Message-ID that Options.MessageIDDomain gives to
// the message of a KEY, up to the domain.
func stableMessageID(key string) string {
	sum, _ := hex.DecodeString(providerKey(key))
	return strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum))
}

// condition says in a word how things stand with a record: pending, or the
// status of its receipt.
func condition(r idemmail.Record) string {
	if r.State == idemmail.StateDone && r.Receipt != nil {
		return string(r.Receipt.Status)
	}
	return string(r.State)
}

// isUnsettled reports whether a record is one that waits for an operator, or
// will once its send is known to be dead.
func isUnsettled(r idemmail.Record) bool {
	return r.State == idemmail.StatePending ||
		r.Receipt != nil && r.Receipt.Status == idemmail.StatusUnknown
}

// short writes a time span with two units at most: 42s, 12m05s, 3h07m, 4d11h.
func short(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", d/time.Minute, d%time.Minute/time.Second)
	case d < day:
		return fmt.Sprintf("%dh%02dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%dd%02dh", d/day, d%day/time.Hour)
}

// A lifetime is a flag's value: a positive duration, or "never" for
// idemmail.NoExpiry.
type lifetime time.Duration

func (l *lifetime) Type() string { return "duration" }

func (l *lifetime) String() string {
	if time.Duration(*l) == idemmail.NoExpiry {
		return "never"
	}
	return time.Duration(*l).String()
}

func (l *lifetime) Set(text string) error {
	if text == "never" {
		*l = lifetime(idemmail.NoExpiry)
		return nil
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		return err
	}
	if d <= 0 {
		return errors.New("it must be positive, or never")
	}
	*l = lifetime(d)
	return nil
}
