package idemmail_test

import (
	"context"
	"errors"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/idemmail/idemmail"
)

// A key is used exactly as it is, or refused: never cut, never changed.
func FuzzKey(f *testing.F) {
	for _, seed := range []string{"order/1042", "", "a\nb", "\x7f", "\u0085", "\xff", "é", "{}*[$.", "a:b"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, key string) {
		mem, _ := newMemStore(0)
		guard, err := idemmail.NewGuard(idemmail.Options{Namespace: doorNamespace, Store: mem, RequireKey: true, Logger: quietLogger})
		if err != nil {
			t.Fatal(err)
		}
		valid := key != "" && len(key) <= 512 && utf8.ValidString(key)
		for _, r := range key {
			valid = valid && !unicode.IsControl(r)
		}
		ran := false
		_, err = guard.Do(t.Context(), key, "", func(context.Context) (*idemmail.Receipt, error) {
			ran = true
			return nil, nil
		})
		if ran != valid || errors.Is(err, idemmail.ErrInvalidKey) == valid {
			t.Fatalf("key %q, valid %v: ran %v, error %v", key, valid, ran, err)
		}
		e, err := mem.Lookup(t.Context(), doorNamespace+":"+key)
		if err != nil || (e != nil) != valid {
			t.Fatalf("key %q, valid %v: the store has %v, %v", key, valid, e, err)
		}
	})
}
