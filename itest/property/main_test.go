// Package property has random sends compared with a model of what package
// idemmail promises, in the time of testing/synctest.
package property

import (
	"flag"
	"strconv"
	"testing"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/idemmail/idemmail/itest/internal/soak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// check is rapid.Check in a bubble, for so many random cases, unless
// -rapid.checks says how many.
func check(t *testing.T, short, long int, property func(*rapid.T)) {
	chosen := false
	flag.Visit(func(f *flag.Flag) { chosen = chosen || f.Name == "rapid.checks" })
	if !chosen {
		f := flag.Lookup("rapid.checks")
		before := f.Value.String()
		_ = f.Value.Set(strconv.Itoa(soak.Scaled(short, long)))
		defer func() { _ = f.Value.Set(before) }()
	}
	rapid.Check(t, func(t *rapid.T) { rapid.SyncTest(t, property) })
}
