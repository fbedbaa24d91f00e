package redisstore_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/redisstore"
)

// refusing makes a server answer some commands as another would.
func refusing(m *mini, answer func(c *server.Peer, cmd string, args []string) bool) {
	m.Server().SetPreHook(func(c *server.Peer, cmd string, args ...string) bool { return answer(c, cmd, args) })
}

func TestServersThatCannotReserve(t *testing.T) {
	for name, set := range map[string]func(c *server.Peer, taken bool) (answered bool){
		"older than 7.0": func(c *server.Peer, _ bool) bool {
			c.WriteError("ERR syntax error")
			return true
		},
		"answers nil for a held key": func(c *server.Peer, taken bool) bool {
			if taken {
				c.WriteNull()
			}
			return taken
		},
		"answers nil and takes nothing": func(c *server.Peer, _ bool) bool {
			c.WriteNull()
			return true
		},
		"answers OK": func(c *server.Peer, _ bool) bool {
			c.WriteOK()
			return true
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, m := newStore(t)
			other := redisstore.New(newClient(t, m.Addr()), redisstore.Options{})
			reserve(t, other, "mail:held")
			taken := map[string]bool{"mail:held": true}
			refusing(m, func(c *server.Peer, cmd string, args []string) bool {
				if cmd != "SET" || !slices.Contains(args, "NX") {
					return false
				}
				before := taken[args[0]]
				taken[args[0]] = true
				return set(c, before)
			})
			for _, key := range []string{"mail:held", "mail:free"} {
				token, held, err := s.Reserve(t.Context(), key, "1:f", time.Minute)
				require.ErrorIs(t, err, errors.ErrUnsupported)
				require.Empty(t, token)
				require.Nil(t, held)
				r := s.ReserveMany(t.Context(), []idemmail.ReserveRequest{{Key: key, Lease: time.Minute}})[0]
				require.ErrorIs(t, r.Err, errors.ErrUnsupported)
				require.Empty(t, r.Token)
			}
			require.ErrorIs(t, s.Check(t.Context()), errors.ErrUnsupported)
			require.False(t, m.Exists("mail:free"))

			refusing(m, func(*server.Peer, string, []string) bool { return false })
			reserve(t, s, "mail:free") // the server was replaced by a better one
		})
	}
}

func TestAMissingRightShowsBeforeAnythingIsReserved(t *testing.T) {
	for _, missing := range []string{"SET", "EVAL", "EVALSHA"} {
		t.Run(missing, func(t *testing.T) {
			s, m := newStore(t)
			var refuse atomic.Bool
			refuse.Store(true)
			refusing(m, func(c *server.Peer, cmd string, _ []string) bool {
				if cmd != missing || !refuse.Load() {
					return false
				}
				c.WriteError("NOPERM this user has no permissions to run the '" + strings.ToLower(cmd) + "' command")
				return true
			})
			_, _, err := s.Reserve(t.Context(), "mail:a", "1:f", time.Minute)
			require.ErrorContains(t, err, "NOPERM")
			require.ErrorContains(t, s.Check(t.Context()), "NOPERM")
			require.False(t, m.Exists("mail:a"))
			refuse.Store(false)
			reserve(t, s, "mail:a")
		})
	}
}

// TestTheFirstCallersEndIsNotTheOthers: the one who began the preparation goes,
// and another who waits for it gets his key.
func TestTheFirstCallersEndIsNotTheOthers(t *testing.T) {
	m := startMini(t)
	s := redisstore.New(newClient(t, m.Addr(), func(o *redis.Options) { o.ReadTimeout = -1 }), redisstore.Options{})
	arrived, goOn := make(chan struct{}), make(chan struct{})
	var first atomic.Bool
	refusing(m, func(_ *server.Peer, cmd string, _ []string) bool {
		if cmd == "SET" && first.CompareAndSwap(false, true) {
			close(arrived)
			<-goOn
		}
		return false
	})
	ctx, cancel := context.WithCancel(t.Context())
	returned := make(chan error)
	go func() {
		_, _, err := s.Reserve(ctx, "mail:a", "1:f", time.Minute)
		returned <- err
	}()
	<-arrived
	go func() {
		_, _, err := s.Reserve(t.Context(), "mail:b", "1:f", time.Minute)
		returned <- err
	}()
	cancel()
	require.ErrorIs(t, <-returned, context.Canceled)
	close(goOn)
	require.NoError(t, <-returned)
	require.Equal(t, []string{"mail:b"}, m.Keys())
}

func TestAFullServer(t *testing.T) {
	s, m := newStore(t)
	token := reserve(t, s, "mail:a")
	refusing(m, func(c *server.Peer, cmd string, _ []string) bool {
		if cmd == "SET" {
			c.WriteError("OOM command not allowed when used memory > 'maxmemory'.")
		}
		return cmd == "SET"
	})
	_, _, err := s.Reserve(t.Context(), "mail:b", "1:f", time.Minute)
	require.ErrorIs(t, err, idemmail.ErrStoreFull)
	require.ErrorIs(t, s.ReserveMany(t.Context(), reserveRequests("mail:", 1))[0].Err, idemmail.ErrStoreFull)
	err = s.Complete(t.Context(), "mail:a", token, done(idemmail.StatusSent), time.Hour)
	require.Error(t, err)
	require.NotErrorIs(t, err, idemmail.ErrStoreFull, "it is worth more tries")
}
