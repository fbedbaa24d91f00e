package main

import (
	"encoding/json"
	"net/mail"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/mailtest"
)

// fields reads what show writes: a name, two spaces or more, and a value.
func fields(text string) map[string]string {
	fields := make(map[string]string)
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "  ")
		fields[name] = strings.TrimSpace(value)
	}
	return fields
}

func TestShow(t *testing.T) {
	onEveryBed(t, func(t *testing.T, b *bed) {
		b.done("orders:order/1042", unknown)
		b.age(2*time.Hour + 30*time.Second)
		r := b.run("show", "orders:order/1042")
		require.Equal(t, exitDone, r.code, r.stderr)
		require.Empty(t, r.stderr)
		e := b.lookup("orders:order/1042")
		require.Equal(t, map[string]string{
			"key":               "orders:order/1042",
			"state":             "unknown for 2h00m",
			"expires":           e.ExpiresAt.Format(time.RFC3339),
			"code":              "idempotency.aborted",
			"category":          "timeout",
			"detail":            "no answer in time",
			"transport":         "ses",
			"provider id":       "0100",
			"message id":        "abc@example.com",
			"response":          "250 maybe",
			"accepted":          "ada@example.org",
			"rejected":          "bob@example.org 550 no such user",
			"outcome at":        "2026-01-02T03:04:05Z",
			"fingerprint":       "1:f",
			"provider key":      idemmail.ProviderKey("orders", "order/1042"),
			"stable message id": stableMessageID("orders:order/1042") + "@DOMAIN",
		}, fields(r.stdout))
		require.NotContains(t, r.stdout, e.Token)

		b.pending("orders:2")
		got := fields(b.run("show", "orders:2").stdout)
		require.Equal(t, "never", got["expires"])
		require.Contains(t, got["state"], "pending for ")
	})
}

func TestShowJSON(t *testing.T) {
	onEveryBed(t, func(t *testing.T, b *bed) {
		b.done("orders:1", unknown)
		r := b.run("show", "orders:1", "--json")
		require.Equal(t, exitDone, r.code, r.stderr)
		require.Equal(t, 1, strings.Count(r.stdout, "\n"))
		var got entryLine
		require.NoError(t, json.Unmarshal([]byte(r.stdout), &got))
		require.Equal(t, &unknown, got.Receipt)
		require.Equal(t, "orders:1", got.Key)
		require.Empty(t, got.Error)
	})
}

// The Message-ID that show names is the one that the message had.
func TestShowNamesTheStableMessageID(t *testing.T) {
	b := redisBed(t)
	var sender mailtest.Transport
	mailer, err := idemmail.New(&sender, idemmail.Options{Store: b.store, Namespace: "orders", MessageIDDomain: "example.com"})
	require.NoError(t, err)
	_, err = mailer.Send(t.Context(), &idemmail.Message{From: mail.Address{Address: "shop@example.com"}, IdempotencyKey: "order/1042"})
	require.NoError(t, err)
	id := sender.Messages()[0].MessageID
	got := fields(b.run("show", "orders:order/1042").stdout)
	require.Equal(t, id, strings.Replace(got["stable message id"], "DOMAIN", "example.com", 1))
}

func TestShort(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0:                              "0s",
		59*time.Second + 999999999:     "59s",
		time.Minute + 5*time.Second:    "1m05s",
		time.Hour - 1:                  "59m59s",
		3*time.Hour + 7*time.Minute:    "3h07m",
		24*time.Hour - 1:               "23h59m",
		4*24*time.Hour + 11*time.Hour:  "4d11h",
		400*24*time.Hour + 1*time.Hour: "400d01h",
	} {
		require.Equal(t, want, short(d))
	}
}
