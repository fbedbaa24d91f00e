package faults_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/itest/internal/backend"
	"github.com/idemmail/idemmail/itest/internal/soak"
	"github.com/idemmail/idemmail/itest/internal/worker"
)

// TestKilledAtAnyMoment runs a job of many messages in processes that are killed
// at random moments, until one comes through.
func TestKilledAtAnyMoment(t *testing.T) {
	t.Parallel()
	backend.EachShared(t, func(t *testing.T, s *backend.Server) {
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		random := rand.New(rand.NewPCG(seed, 0))
		mails := startProvider(t)
		for _, mode := range []string{"default, short lease", "AtMostOnce, short lease"} {
			t.Run(mode, func(t *testing.T) { storm(t, s, mails, mode, random) })
		}
	})
}

func storm(t *testing.T, s *backend.Server, mails *provider, mode string, random *rand.Rand) {
	const jobs = 8 // of each process; those of the killed ones before it come on top
	kills := soak.Scaled(6, 300)
	config := worker.Config{URL: s.URL, Namespace: "storm", Modes: crashModes, SMTP: mails.addr}
	key := func(process, job int) string { return fmt.Sprintf("%s/%d/%d", mode, process, job) }
	began := map[int]time.Time{} // each process's sends, by its PID
	for process := range kills {
		w := worker.Start(t, config)
		began[w.PID] = time.Now()
		var sends []*worker.Send
		for p := max(0, process-3); p <= process; p++ {
			for job := range jobs {
				sends = append(sends, w.Send(mode, worker.Message{Key: key(p, job)}))
			}
		}
		victim := sends[len(sends)-1-random.IntN(jobs)]
		switch random.IntN(3) {
		case 0:
			victim.AwaitBegun(t)
		case 1:
			require.Eventually(t, func() bool { return len(mails.deliveries(victim.Key)) > 0 }, worker.Patience, 100*time.Microsecond)
		case 2:
			victim.Answer(t)
		}
		time.Sleep(time.Duration(random.IntN(1000)) * time.Microsecond)
		w.Kill()
	}

	w := worker.Start(t, config)
	began[w.PID] = time.Now()
	answers := map[string]worker.Answer{}
	require.Eventually(t, func() bool {
		for process := range kills {
			var sends []*worker.Send
			for job := range jobs {
				if k := key(process, job); answers[k].Status == "" {
					sends = append(sends, w.Send(mode, worker.Message{Key: k}))
				}
			}
			for _, send := range sends {
				if a := send.Answer(t); a.Code != idemmail.CodeInFlight {
					answers[send.Key] = a
				}
			}
		}
		return len(answers) == kills*jobs
	}, worker.Patience, 100*time.Millisecond, "no key may be stuck")

	guard, err := idemmail.NewGuard(idemmail.Options{Store: backend.Open(t, s.URL), Namespace: "storm"})
	require.NoError(t, err)
	listed := map[string]bool{}
	for e, err := range guard.Unsettled(t.Context(), 0) {
		require.NoError(t, err)
		listed[e.Key] = true
	}
	repeats, left := 0, 0
	for key, a := range answers {
		deliveries := mails.deliveries(key)
		repeats += max(0, len(deliveries)-1)
		if !crashModes[mode].AtMostOnce {
			require.True(t, a.Nil, "%s: %+v", key, a)
			require.NotEmpty(t, deliveries, "%s is lost", key)
			requireApart(t, key, deliveries, began)
			require.False(t, listed[key])
			continue
		}
		require.LessOrEqual(t, len(deliveries), 1, "%s was repeated", key)
		if a.Code == idemmail.CodeAbandoned {
			left++
			require.True(t, listed[key], "%s is abandoned and not listed", key)
			continue
		}
		require.True(t, a.Nil, "%s: %+v", key, a)
		require.Len(t, deliveries, 1, "%s is lost", key)
		require.False(t, listed[key])
	}
	t.Logf("%d messages, %d processes killed: %d repeated after their lease, %d abandoned and listed", len(answers), kills, repeats, left)
}

// requireApart requires that a message was repeated only once the lease of the
// process that had sent it before had passed. began is when the processes began
// to send.
func requireApart(t *testing.T, key string, deliveries []delivery, began map[int]time.Time) {
	for i := 1; i < len(deliveries); i++ {
		const vague = 250 * time.Millisecond // how well a client may know the server's time
		require.Greater(t, deliveries[i].at.Sub(began[deliveries[i-1].by]), shortLease-vague, "%s was repeated within its lease", key)
	}
}

func await(t testing.TB, c <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(worker.Patience):
		t.Fatal("waited in vain for " + what)
	}
}
