package linear

import (
	crand "crypto/rand"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/itest/internal/backend"
	"github.com/idemmail/idemmail/itest/internal/soak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A clock says how the time of a store differs from that of its clients.
type clock struct {
	unit     time.Duration // a lease that is short for the store, but not too short
	rounding time.Duration // how much sooner or later than asked a record may end

	// doubtful: of several renewals in one call, the server tells how many it
	// made. If those are not all, each is judged by what holds its key then; one
	// that was made, and whose key was settled since, is refused.
	doubtful bool

	// By whose time a call goes, if not by the store's at the moment of its step.
	kind clockKind
}

type clockKind int

const (
	// ofStep: the clock is the store's, as it takes the step.
	ofStep clockKind = iota

	// ofStatement: the clock is the store's, but a statement looks at it before
	// it has the row, or before what it did is on disk, where others see it.
	ofStatement

	// guessedAges: ages are reckoned by an idea that each client has of the
	// server's time, and which its newest answer corrects.
	guessedAges

	// guessed: ends and ages are reckoned by such an idea, which each client
	// has had from its first call on.
	guessed
)

// clocks are those of the stores in package backend, by their names.
var clocks = map[string]clock{
	"memory":     {unit: 2 * time.Millisecond, kind: ofStep},
	"Redis":      {unit: 5 * time.Millisecond, rounding: 2 * time.Millisecond, kind: guessedAges},
	"MongoDB":    {unit: 20 * time.Millisecond, rounding: 3 * time.Millisecond, kind: guessed, doubtful: true},
	"PostgreSQL": {unit: 5 * time.Millisecond, rounding: 4 * time.Millisecond, kind: ofStatement},
	"SQLite":     {unit: 5 * time.Millisecond, rounding: 4 * time.Millisecond, kind: ofStatement},
}

// slack answers how far the store's times may be off in a history. A client's
// idea of the server's time is behind it, by no more than the answer took that
// it has it from; and so two clients' ideas differ by no more than that.
func (c clock) slack(vagueness, longest time.Duration) slack {
	s := slack{ends: c.rounding, age: c.rounding}
	switch c.kind {
	case ofStatement:
		s.endsApart, s.agesApart = true, true
	case guessedAges:
		s.agesApart = true
		s.age += max(vagueness, longest)
	case guessed:
		s.endsApart, s.agesApart = true, true
		s.ends += vagueness
		s.age += vagueness
	}
	return s
}

// Each call of a store is one atomic step at some moment between question and
// answer, whoever else asks at the time, and time takes what it may.
func TestStoresAreLinearizable(t *testing.T) {
	for _, b := range backend.All {
		t.Run(b.Name, func(t *testing.T) {
			clock, ok := clocks[b.Name]
			if b.Name == "miniredis" {
				t.Skip("its keys end when the test says so, not in time")
			}
			require.True(t, ok, "add its clock")
			server := b.Start(t)
			for range soak.Scaled(2, 50) {
				t.Run("history", func(t *testing.T) { testHistory(t, server, clock, false, 4, 120) })
				t.Run("crowd", func(t *testing.T) { testHistory(t, server, clock, true, 1, 300) })
			}
		})
	}
}

// testHistory checks one history. A crowd, whose clients ask about one key at
// the same time, shows a step that is not atomic; the others have time for
// records to end.
func testHistory(t *testing.T, server *backend.Server, clock clock, crowd bool, keys, steps int) {
	clients, vagueness := warm(t, server, clock)
	seed := rand.Uint64()
	r := record(seed, clock.unit, crowd, keys, steps, clients)
	require.NoError(t, r.broken, "seed %d", seed)

	if clock.doubtful {
		r.history = withDoubts(r.history)
	}
	s := clock.slack(vagueness, r.longest)
	require.NoError(t, check(s, r.history), "seed %d", seed)
	t.Logf("%d answers, %+v", len(r.history), s)
}

// withDoubts adds to a history, for each renewal that was one of several and
// refused, that it may have been made all the same, in a step before.
func withDoubts(history []porcupine.Operation) []porcupine.Operation {
	for _, op := range history {
		if q := op.Input.(question); q.method == "renew" && q.many && op.Output.(answer).refused {
			q.method = "renew, perhaps"
			op.Input, op.ClientId = q, len(history)%64
			history = append(history, op)
		}
	}
	return history
}

// warm opens the stores of five clients and lets each learn the server's time.
// The vagueness is how long the answers to that took; where times are reckoned
// by it, it is kept small by trying again.
func warm(t *testing.T, server *backend.Server, clock clock) (clients []idemmail.Store, vagueness time.Duration) {
	for tries := 0; len(clients) < 5; tries++ {
		store := backend.Open(t, server.URL)
		began := time.Now()
		token, _, err := store.Reserve(t.Context(), "warm:"+crand.Text(), "", time.Second)
		require.NoError(t, err)
		require.NotEmpty(t, token)
		took := time.Since(began)
		if clock.kind >= guessedAges && took > 10*time.Millisecond && tries < 50 {
			continue
		}
		vagueness = max(vagueness, took)
		clients = append(clients, store)
	}
	return clients, vagueness
}
