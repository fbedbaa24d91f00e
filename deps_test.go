package idemmail_test

import (
	"go/parser"
	"go/token"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Whoever imports the root package, or a test kit, gets nothing else with it.
func TestDependencies(t *testing.T) {
	for _, pkg := range []struct {
		folder  string
		allowed []string // besides the standard library
	}{
		{".", nil},
		{"storetest", []string{"github.com/idemmail/idemmail"}},
		{"mailtest", []string{"github.com/idemmail/idemmail"}},
	} {
		t.Run(pkg.folder, func(t *testing.T) {
			files, err := filepath.Glob(filepath.Join(pkg.folder, "*.go"))
			require.NoError(t, err)
			read := 0
			for _, file := range files {
				if strings.HasSuffix(file, "_test.go") {
					continue
				}
				read++
				parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
				require.NoError(t, err)
				for _, spec := range parsed.Imports {
					path, err := strconv.Unquote(spec.Path.Value)
					require.NoError(t, err)
					if !isStandard(path) {
						require.Contains(t, pkg.allowed, path, "%s imports it", file)
					}
				}
			}
			require.NotZero(t, read, "no files in %s", pkg.folder)
		})
	}
}

// isStandard: only module paths have a dot in their first element, and of
// those without one the go command takes none but the standard library's.
func isStandard(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return !strings.Contains(first, ".") && first != "C"
}
