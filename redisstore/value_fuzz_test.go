package redisstore

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/idemmail/idemmail"
)

// Whatever stands under a key is a record of ours or ErrBadRecord, and nothing
// that is taken for one is without what a record has.
func FuzzValue(f *testing.F) {
	golden, err := filepath.Glob("testdata/*.value")
	if err != nil {
		f.Fatal(err)
	}
	for _, name := range golden {
		value, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(value))
	}
	for _, seed := range []string{"", "1", "null", "{}", "idm1 ", "idm2 ds 1753000000123456 1:a 0: {}", "idm1 p- 9999999999999999 26:"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, value string) {
		token, at, rec, err := parse(value)
		switch {
		case errors.Is(err, idemmail.ErrBadRecord):
		case err != nil:
			t.Fatalf("%q: %v", value, err)
		case at < 0:
			t.Fatalf("%q: reserved at %d", value, at)
		case rec.State == idemmail.StatePending:
			if value[:len(pendingValue(token, rec.Fingerprint, at))] != pendingValue(token, rec.Fingerprint, at) {
				t.Fatalf("%q is written %q", value, pendingValue(token, rec.Fingerprint, at))
			}
		case rec.State != idemmail.StateDone || rec.Receipt == nil:
			t.Fatalf("%q: %+v", value, rec)
		}
	})
}
