package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
)

// slowStore lists one key each 1.6 seconds, and then fails.
type slowStore struct {
	store
	keys int
}

func (s slowStore) Unsettled(context.Context, string, time.Duration) iter.Seq2[idemmail.Entry, error] {
	return func(yield func(idemmail.Entry, error) bool) {
		for i := range s.keys {
			time.Sleep(1600 * time.Millisecond)
			e := idemmail.Entry{Key: fmt.Sprintf("orders:%d", i), Record: idemmail.Record{State: idemmail.StatePending}}
			if !yield(e, nil) {
				return
			}
		}
		yield(idemmail.Entry{}, errors.New("the store went away"))
	}
}

func TestProgressOfALongListing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var screen bytes.Buffer // stdout and stderr on one terminal
		a := app{stdout: &screen, stderr: &screen, terminal: true, timeout: time.Second}
		var looked atomic.Int64
		s := &openStore{
			store: slowStore{keys: 2},
			watch: func(context.Context) func() string {
				return func() string { return fmt.Sprintf("step %d", looked.Add(1)) }
			},
		}
		err := a.list(t.Context(), s, listFlags{json: true})
		require.ErrorContains(t, err, "the store went away")
		line := func(i int) string {
			return fmt.Sprintf(`{"key":"orders:%d","state":"pending","provider_key":"%s"}`+"\n", i, idemmail.ProviderKey("orders", fmt.Sprint(i)))
		}
		require.Equal(t, eraseLine+"1s: step 1, 0 unsettled"+eraseLine+line(0)+
			eraseLine+"2s: step 2, 1 unsettled"+eraseLine+"3s: step 3, 1 unsettled"+eraseLine+line(1), screen.String())
	})
}

func TestNoProgressOnWhatIsNoTerminal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var stdout, stderr bytes.Buffer
		a := app{stdout: &stdout, stderr: &stderr}
		err := a.list(t.Context(), &openStore{store: slowStore{keys: 3}}, listFlags{})
		require.ErrorContains(t, err, "the store went away")
		require.Empty(t, stderr.String())
		require.Equal(t, 4, strings.Count(stdout.String(), "\n"), "what came before the failure is shown")
	})
}

func TestProgressOfRedisCountsKeys(t *testing.T) {
	b := redisBed(t)
	for i := range 7 {
		b.done(fmt.Sprintf("orders:%d", i), unknown)
	}
	u, err := parseStoreURL(b.url)
	require.NoError(t, err)
	s, err := u.open(time.Second)
	require.NoError(t, err)
	defer s.close()
	far := s.watch(t.Context())
	require.Equal(t, "looked at 0 of about 7 keys", far())
	for _, err := range s.store.Unsettled(t.Context(), "", 0) {
		require.NoError(t, err)
	}
	require.Equal(t, "looked at 7 of about 7 keys", far())
}
