package idemmail_test

import (
	"encoding/hex"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
)

// Nobody can guess a token: not from those of other keys, and not from those
// of other stores. Each has 128 bits at least, all of which vary.
func TestMemStoreTokensCannotBeGuessed(t *testing.T) {
	const bits = 128
	seen := map[string]bool{}
	var ones, zeros [bits]bool
	for range 2000 {
		store := idemmail.NewMemStore(idemmail.MemStoreOptions{})
		for _, key := range []string{"a", "b"} {
			token, _, err := store.Reserve(t.Context(), key, "", time.Hour)
			require.NoError(t, err)
			require.False(t, seen[token], "%s came twice", token)
			seen[token] = true
			random, err := hex.DecodeString(token)
			require.NoError(t, err)
			require.GreaterOrEqual(t, 8*len(random), bits)
			for i := range bits {
				one := random[i/8]>>(i%8)&1 == 1
				ones[i], zeros[i] = ones[i] || one, zeros[i] || !one
			}
		}
	}
	require.NotContains(t, ones, false)
	require.NotContains(t, zeros, false)
}
