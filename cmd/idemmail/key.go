package main

import (
	"fmt"
	"log/slog"
	"strconv"
	"strings"
)

// discard stands in for the log: the program itself says what happened.
var discard = slog.New(slog.DiscardHandler)

// splitKey takes a KEY apart: a namespace has no colon.
func splitKey(key string) (namespace, rest string, err error) {
	namespace, rest, ok := strings.Cut(key, ":")
	if !ok || namespace == "" || rest == "" {
		return "", "", fmt.Errorf("KEY %q: it must be a namespace, a colon and a key, as list prints it", key)
	}
	return namespace, rest, nil
}

// printable makes an error's text fit for a terminal, and shows passwords of
// the store URL as ***.
func (a *app) printable(text string) string {
	for _, secret := range a.secrets {
		text = strings.ReplaceAll(text, secret, "***")
	}
	return printable(text)
}

// cell makes text fit for one cell of a table.
func cell(text string) string {
	if text == "" {
		return "-"
	}
	return strings.ReplaceAll(printable(text), "\n", `\n`)
}

// printable shows what a terminal could take for a command as Go writes it in a
// string: errors, foreign keys and receipts have text from anywhere.
func printable(text string) string {
	var b strings.Builder
	for i, r := range text {
		switch {
		case r == '\uFFFD' && !strings.HasPrefix(text[i:], "\uFFFD"): // not UTF-8
			fmt.Fprintf(&b, `\x%02x`, text[i])
		case strconv.IsPrint(r), r == '\n':
			b.WriteRune(r)
		default:
			quoted := strconv.QuoteRune(r)
			b.WriteString(quoted[1 : len(quoted)-1])
		}
	}
	return b.String()
}
