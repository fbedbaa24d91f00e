package idemmail_test

import (
	"bytes"
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
)

// Fingerprints that were given out once. See testdata/fingerprint/README.md
// before changing anything that makes this fail.
func TestFingerprintGolden(t *testing.T) {
	text, err := os.ReadFile("testdata/fingerprint/v1.json")
	require.NoError(t, err)
	var goldens []struct {
		Name          string               `json:"name"`
		Message       *idemmail.Message    `json:"message"`
		IgnoreHeaders []string             `json:"ignoreHeaders"`
		Raw           *idemmail.RawMessage `json:"raw"`
		Fingerprint   string               `json:"fingerprint"`
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	require.NoError(t, decoder.Decode(&goldens))
	require.NotEmpty(t, goldens)
	for _, golden := range goldens {
		t.Run(golden.Name, func(t *testing.T) {
			if golden.Raw != nil {
				require.Equal(t, golden.Fingerprint, idemmail.FingerprintRaw(golden.Raw))
				require.Equal(t, golden.Fingerprint, formatRaw(golden.Raw), "as the README has it")
				return
			}
			require.NotNil(t, golden.Message)
			require.Equal(t, golden.Fingerprint, idemmail.Fingerprint(golden.Message, golden.IgnoreHeaders...))
			require.Equal(t, golden.Fingerprint, formatMessage(golden.Message, golden.IgnoreHeaders...), "as the README has it")
		})
	}
}
