package mongostore_test

import (
	"context"
	"testing"
	"time"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/internal/testserver"
	"github.com/idemmail/idemmail/mongostore"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// calls are all the methods that ask the server, each for a key of its own.
var calls = map[string]func(ctx context.Context, s *mongostore.Store) error{
	"reserve": func(ctx context.Context, s *mongostore.Store) error {
		_, _, err := s.Reserve(ctx, "down:reserve", "1:x", time.Minute)
		return err
	},
	"reserve many": func(ctx context.Context, s *mongostore.Store) error {
		results := s.ReserveMany(ctx, []idemmail.ReserveRequest{{Key: "down:a", Lease: time.Minute}, {Key: "down:b", Lease: time.Minute}})
		if results[0].Err == nil {
			return nil
		}
		return results[1].Err
	},
	"complete": func(ctx context.Context, s *mongostore.Store) error {
		return s.Complete(ctx, "down:complete", "token", sent("x"), time.Minute)
	},
	"release": func(ctx context.Context, s *mongostore.Store) error {
		return s.Release(ctx, "down:release", "token")
	},
	"renew": func(ctx context.Context, s *mongostore.Store) error {
		return s.Renew(ctx, "down:renew", "token", time.Minute)
	},
	"lookup": func(ctx context.Context, s *mongostore.Store) error {
		_, err := s.Lookup(ctx, "down:lookup")
		return err
	},
	"unsettled": func(ctx context.Context, s *mongostore.Store) error {
		for _, err := range s.Unsettled(ctx, "down:", 0) {
			return err
		}
		return nil
	},
	"forget": func(ctx context.Context, s *mongostore.Store) error {
		return s.Forget(ctx, idemmail.Entry{Key: "down:forget", Token: "token", Record: idemmail.Record{State: idemmail.StatePending}})
	},
}

// returnsSoon runs every method under a context that ends soon, which it must
// notice: the bound is far from the driver's own, of 30 seconds.
func returnsSoon(t *testing.T, srv *testserver.MongoServer, used bool, disturb func()) {
	cold := newStore(collection(t, srv.URI, options.Client().SetServerSelectionTimeout(30*time.Second)))
	warm := newStore(collection(t, srv.URI))
	reserve(t, warm, "down:warm", time.Minute)
	disturb()
	s := cold
	if used {
		s = warm
	}
	for _, end := range []string{"deadline", "cancel"} {
		for what, call := range calls {
			ctx, cancel := context.WithCancel(t.Context())
			want := context.Canceled
			if end == "deadline" {
				want = context.DeadlineExceeded
				ctx, cancel = context.WithTimeout(t.Context(), 50*time.Millisecond)
			} else {
				time.AfterFunc(50*time.Millisecond, cancel)
			}
			began := time.Now()
			err := call(ctx, s)
			took := time.Since(began)
			require.Error(t, err, what)
			if ctx.Err() != nil { // else the server's end was noticed before
				require.ErrorIs(t, err, want, what)
			}
			require.Less(t, took, 10*time.Second, what)
			t.Logf("%s, %s: %v", what, end, took.Round(time.Millisecond))
			cancel()
		}
	}
}

func TestServerThatIsDown(t *testing.T) {
	for _, used := range []bool{false, true} {
		srv := server(t)
		if srv.Process == nil {
			t.Skip("not our server")
		}
		returnsSoon(t, srv, used, func() { require.NoError(t, srv.Process.Kill()) })
	}
}

func TestServerThatHangs(t *testing.T) {
	for _, used := range []bool{false, true} {
		srv := server(t)
		if srv.Process == nil {
			t.Skip("not our server")
		}
		returnsSoon(t, srv, used, func() { pauseProcess(t, srv.Process) })
	}
}
