package linear

import (
	crand "crypto/rand"
	"math/rand/v2"
	"testing"
	"time"

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

	// Where ages, or ends too, are reckoned by an idea that each client has of
	// the server's time, they are wrong by a round trip at most.
	guessesAges, guessesEnds bool

	// commitsLate: a write counts its time from its beginning, and is seen once
	// it is on disk; until then readers see, at a later time, what was before.
	commitsLate bool
}

// clocks are those of the stores in package backend, by their names.
var clocks = map[string]clock{
	"memory":     {unit: 2 * time.Millisecond},
	"Redis":      {unit: 5 * time.Millisecond, rounding: 2 * time.Millisecond, guessesAges: true},
	"MongoDB":    {unit: 20 * time.Millisecond, rounding: 2 * time.Millisecond, guessesAges: true, guessesEnds: true},
	"PostgreSQL": {unit: 5 * time.Millisecond, rounding: 4 * time.Millisecond},
	"SQLite":     {unit: 5 * time.Millisecond, rounding: 4 * time.Millisecond, commitsLate: true},
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
			for range soak.Scaled(3, 100) {
				t.Run("history", func(t *testing.T) { testHistory(t, server, clock) })
			}
		})
	}
}

func testHistory(t *testing.T, server *backend.Server, clock clock) {
	clients, vagueness := warm(t, server, clock)
	seed := rand.Uint64()
	r := record(seed, clock.unit, 4, 120, clients)
	require.NoError(t, r.broken, "seed %d", seed)

	s := slack{ends: clock.rounding, age: clock.rounding}
	if clock.guessesAges {
		s.age += r.longest
	}
	if clock.commitsLate {
		s.ends += r.longest
		s.age += r.longest
	}
	if clock.guessesEnds { // a client is as far off as its reading was vague, and so is another
		s.ends += 2 * vagueness
	}
	require.NoError(t, check(s, r.history), "seed %d", seed)
	t.Logf("%d answers, ends within %v, ages within %v", len(r.history), s.ends, s.age)
}

// warm opens the stores of five clients and lets each learn the server's time.
// The vagueness is how long the answers to that took; of a store that reckons
// ends by it, it is kept small by trying again.
func warm(t *testing.T, server *backend.Server, clock clock) (clients []idemmail.Store, vagueness time.Duration) {
	for tries := 0; len(clients) < 5; tries++ {
		store := backend.Open(t, server.URL)
		began := time.Now()
		token, _, err := store.Reserve(t.Context(), "warm:"+crand.Text(), "", time.Second)
		require.NoError(t, err)
		require.NotEmpty(t, token)
		took := time.Since(began)
		if clock.guessesEnds && took > clock.unit/2 && tries < 50 {
			continue
		}
		vagueness = max(vagueness, took)
		clients = append(clients, store)
	}
	return clients, vagueness
}
