package faults_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/itest/internal/backend"
	"github.com/idemmail/idemmail/itest/internal/worker"
)

// A batch goes one message after another: a sender that is killed in the middle
// of one repeats nothing that was kept, and abandons one key.
func TestCrashInTheMiddleOfABatch(t *testing.T) {
	t.Parallel()
	for _, c := range []crash{
		{name: "mid-send", provider: underWay, delivered: 0, later: goes, onceLater: abandoned},
		{name: "after the provider's accept", provider: accepted, delivered: 1, later: goes, onceLater: abandoned},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			backend.EachShared(t, func(t *testing.T, s *backend.Server) {
				mails := startProvider(t)
				config := worker.Config{URL: s.URL, Namespace: "batch", Modes: crashModes, SMTP: mails.addr}
				heir := worker.Start(t, config)
				for _, mode := range []string{"default, short lease", "AtMostOnce, short lease"} {
					sender := worker.Start(t, config)
					var batch []worker.Message
					for _, n := range []string{"1", "2", "3", "4", "5"} {
						batch = append(batch, worker.Message{Key: mode + "/" + n})
					}
					dead := make(chan struct{})
					third := batch[2].Key
					reached := mails.next(third, c.provider, dead)
					sender.SendMany(mode, batch...)
					await(t, reached, "the third message at the provider")
					sender.Kill()
					close(dead)

					first := heir.SendMany(mode, batch...)
					for i, want := range []sequel{replays, replays, inFlight, goes, goes} {
						a := first[i].Answer(t)
						if i == 2 && a.Code != idemmail.CodeInFlight {
							continue // the lease has passed already
						}
						require.Equal(t, want, sequelOf(t, a), "%d", i)
					}
					var again []*worker.Send
					require.Eventually(t, func() bool {
						again = heir.SendMany(mode, batch...)
						return again[2].Answer(t).Code != idemmail.CodeInFlight
					}, worker.Patience, 20*time.Millisecond)
					for i, m := range batch {
						want := 1
						if i == 2 {
							if want = c.delivered; !crashModes[mode].AtMostOnce {
								want++
							}
						} else {
							require.Equal(t, replays, sequelOf(t, again[i].Answer(t)))
						}
						require.Len(t, mails.deliveries(m.Key), want, m.Key)
					}
				}
				guard, err := idemmail.NewGuard(idemmail.Options{Store: backend.Open(t, s.URL), Namespace: "batch"})
				require.NoError(t, err)
				var left []string
				for e, err := range guard.Unsettled(t.Context(), 0) {
					require.NoError(t, err)
					left = append(left, e.Key)
				}
				require.Equal(t, []string{"AtMostOnce, short lease/3"}, left, "one key at most, and only with AtMostOnce")
			})
		})
	}
}
