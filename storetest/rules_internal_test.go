package storetest

import (
	"go/build"
	"regexp"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

func TestRulesAreWellFormed(t *testing.T) {
	name := regexp.MustCompile(`^[a-z]+(-[a-z]+)*$`)
	judged := make(map[string]ability)
	for _, r := range rules() {
		require.Regexp(t, name, r.name)
		require.NotContains(t, judged, r.name, "two rules of one name")
		require.NotNil(t, r.run, r.name)
		require.Greater(t, len(r.wants), 40, "rule %s: a sentence", r.name)
		require.NotRegexp(t, `[.]$`, r.wants, r.name)
		for _, need := range r.needs {
			require.Contains(t, judged, need, "rule %s builds on one that is judged before it", r.name)
			require.Contains(t, []ability{everyStore, r.of, renews}, judged[need], "rule %s builds on one of another ability", r.name)
		}
		judged[r.name] = r.of
	}
	require.Greater(t, len(judged), 60)
}

func TestOddKeysAreValidAndDistinct(t *testing.T) {
	seen := make(map[string]bool)
	for _, key := range oddKeys("storetest:keys/" + strings.Repeat("R", 26) + "/") {
		require.False(t, seen[key], "%q is there twice", key)
		seen[key] = true
		require.True(t, utf8.ValidString(key), "%q", key)
		require.LessOrEqual(t, len(key), 64+1+512)
		require.Equal(t, -1, strings.IndexFunc(key, unicode.IsControl), "%q", key)
	}
}

func TestStandardLibraryOnly(t *testing.T) {
	p, err := build.ImportDir(".", 0)
	require.NoError(t, err)
	for _, path := range p.Imports {
		if path == "github.com/idemmail/idemmail" {
			continue
		}
		require.NotContains(t, path, ".", "a kit for everyone's stores adds nothing to their go.mod")
	}
}
