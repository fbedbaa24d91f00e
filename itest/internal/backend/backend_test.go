package backend_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/itest/internal/backend"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestTwoClientsSeeOneStore(t *testing.T) {
	backend.Each(t, func(t *testing.T, s *backend.Server) {
		one, two := backend.Open(t, s.URL), backend.Open(t, s.URL)
		token, held, err := one.Reserve(t.Context(), "itest:key", "1:f", idemmail.NoExpiry)
		require.NoError(t, err)
		require.Nil(t, held)
		_, held, err = two.Reserve(t.Context(), "itest:key", "1:f", idemmail.NoExpiry)
		require.NoError(t, err)
		require.NotNil(t, held)
		require.NoError(t, two.Release(t.Context(), "itest:key", token))
	})
}
