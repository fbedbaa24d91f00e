package faults_test

import (
	"cmp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/itest/internal/backend"
	"github.com/idemmail/idemmail/itest/internal/worker"
)

// What a second process is answered that runs the job of a killed one.
type sequel string

const (
	goes      sequel = "goes"      // its message is delivered
	replays   sequel = "replays"   // it gets the first one's receipt
	inFlight  sequel = "in flight" // it is told to come again
	abandoned sequel = "abandoned" // it is told that the outcome is unknown
)

// A crash is a step at which a sender is killed, and what then may and must
// happen.
type crash struct {
	name     string
	stop     worker.Step // in the sender; empty: the provider has come so far
	provider stage

	delivered int    // messages, before the second process
	soon      sequel // by default, before the lease has passed
	later     sequel // and after
	onceSoon  sequel // with AtMostOnce, before
	onceLater sequel // and after
}

var crashes = []crash{
	{"before reserve", worker.BeforeReserve, 0, 0, goes, goes, goes, goes},
	{"mid-reserve", worker.MidReserve, 0, 0, inFlight, goes, inFlight, abandoned},
	{"after reserve", worker.AfterReserve, 0, 0, inFlight, goes, inFlight, abandoned},
	{"mid-send", "", underWay, 0, inFlight, goes, inFlight, abandoned},
	{"after the provider's accept", "", accepted, 1, inFlight, goes, inFlight, abandoned},
	{"before complete", worker.BeforeComplete, 0, 1, inFlight, goes, inFlight, abandoned},
	{"mid-complete", worker.MidComplete, 0, 1, replays, replays, replays, replays},
	{"after complete", worker.AfterComplete, 0, 1, replays, replays, replays, replays},
	{"refused, before release", worker.BeforeRelease, refused, 0, inFlight, goes, inFlight, abandoned},
	{"refused, mid-release", worker.MidRelease, refused, 0, goes, goes, goes, goes},
	{"refused, after release", worker.AfterRelease, refused, 0, goes, goes, goes, goes},
}

// Each sender that is killed has four jobs at the same step: by default and
// with AtMostOnce, each with a lease that does not pass before the end of the
// test and with one that does.
const (
	longLease  = time.Hour
	shortLease = time.Second
)

var crashModes = map[string]worker.Mode{
	"default, long lease":     {Lease: longLease},
	"default, short lease":    {Lease: shortLease},
	"AtMostOnce, long lease":  {Lease: longLease, AtMostOnce: true},
	"AtMostOnce, short lease": {Lease: shortLease, AtMostOnce: true},
}

func init() {
	for name, m := range crashModes {
		m.StoreTimeout, m.MaxSend = time.Hour, time.Hour // a step takes as long as the test does
		crashModes[name] = m
	}
}

// follows answers what is to follow in a mode.
func (c crash) follows(mode string) sequel {
	switch mode {
	case "default, long lease":
		return c.soon
	case "default, short lease":
		return c.later
	case "AtMostOnce, long lease":
		return c.onceSoon
	}
	return c.onceLater
}

func crashKey(c crash, mode string) string { return c.name + "/" + mode }

// TestCrashes kills senders with SIGKILL at every step, and has another process
// run their jobs.
func TestCrashes(t *testing.T) {
	t.Parallel()
	backend.EachShared(t, func(t *testing.T, s *backend.Server) {
		mails := startProvider(t)
		store := backend.Open(t, s.URL)
		began := map[string]time.Time{}
		for _, c := range crashes {
			c.run(t, s, store, mails, began)
		}

		heir := worker.Start(t, worker.Config{URL: s.URL, Namespace: "crash", Modes: crashModes, SMTP: mails.addr})
		for _, c := range crashes {
			for mode := range crashModes {
				t.Run(crashKey(c, mode), func(t *testing.T) {
					inherit(t, c, mode, heir, mails, began[crashKey(c, mode)])
				})
			}
		}
		t.Run("unsettled keys", func(t *testing.T) { settle(t, store, heir, mails) })
	})
}

// run has a sender begin the jobs of a crash, and kills it when all of them have
// come to the step.
func (c crash) run(t *testing.T, s *backend.Server, store backend.Store, mails *provider, began map[string]time.Time) {
	config := worker.Config{URL: s.URL, Namespace: "crash", Modes: crashModes, SMTP: mails.addr, StopAt: c.stop}
	var p *proxy
	if s.Addr != "" {
		p = startProxy(t, s.Addr)
		config.URL = s.Through(p.addr)
	}
	sender := worker.Start(t, config)
	for mode := range crashModes { // it has met the store, and the store has prepared itself
		warm := sender.Send(mode, worker.Message{Key: "warm " + c.name + mode})
		require.Equal(t, idemmail.StatusSent, warm.Answer(t).Status)
	}

	dead := make(chan struct{})
	defer close(dead)
	sends := map[string]*worker.Send{}
	var reached []<-chan struct{}
	for mode := range crashModes {
		key := crashKey(c, mode)
		if c.provider != 0 {
			reached = append(reached, mails.next(key, c.provider, dead))
		}
		sends[mode] = sender.Send(mode, worker.Message{Key: key, Stop: true})
		began[key] = sends[mode].At
	}
	if c.stop == "" {
		for _, r := range reached {
			await(t, r, "the message at the provider")
		}
	} else {
		for _, send := range sends {
			send.AwaitStop(t)
		}
	}
	if strings.HasPrefix(string(c.stop), "mid-") {
		if p != nil {
			p.spoil("crash:"+c.name, fault{answer: none, end: hangs}, -1)
		}
		for mode, send := range sends {
			send.GoOn()
			c.awaitAct(t, store, mode)
		}
	}
	sender.Kill()
	for _, send := range sends {
		require.False(t, send.HasAnswer(), "%s: the sender must not have come further", c.name)
	}
}

// awaitAct waits until the store has carried out the command in whose middle
// the sender is to be killed.
func (c crash) awaitAct(t *testing.T, store backend.Store, mode string) {
	if mode == "default, short lease" && c.stop == worker.MidReserve {
		return // it may have expired before it is seen; whether it was there makes no difference then
	}
	require.Eventually(t, func() bool {
		e, err := store.Lookup(t.Context(), "crash:"+crashKey(c, mode))
		require.NoError(t, err)
		switch c.stop {
		case worker.MidReserve:
			return e != nil
		case worker.MidComplete:
			return e != nil && e.Record.State == idemmail.StateDone
		}
		return e == nil
	}, worker.Patience, 2*time.Millisecond, "%s: the server must have acted", crashKey(c, mode))
}

// inherit has another process run a job of a killed one, and asserts one cell
// of the table.
func inherit(t *testing.T, c crash, mode string, heir *worker.Worker, mails *provider, began time.Time) {
	key, lease, want := crashKey(c, mode), crashModes[mode].Lease, c.follows(mode)
	require.Len(t, mails.deliveries(key), c.delivered, "before the second process")

	if lease == shortLease {
		time.Sleep(lease - time.Since(began)) // most often it has passed
	}
	var answer worker.Answer
	require.Eventually(t, func() bool { // it may have been renewed since
		answer = heir.Send(mode, worker.Message{Key: key}).Answer(t)
		return lease == longLease || answer.Code != idemmail.CodeInFlight
	}, worker.Patience, 20*time.Millisecond, "the lease must pass")
	require.Equal(t, want, sequelOf(t, answer), "%+v", answer)

	deliveries := mails.deliveries(key)
	switch want {
	case goes:
		require.Len(t, deliveries, c.delivered+1)
		if c.soon == inFlight { // it was reserved
			const vague = 250 * time.Millisecond // how well a client may know the server's time
			require.Greater(t, deliveries[c.delivered].at.Sub(began), lease-vague, "delivered within the lease")
		}
	default:
		require.Len(t, deliveries, c.delivered)
	}
	if crashModes[mode].AtMostOnce {
		require.LessOrEqual(t, len(deliveries), 1, "AtMostOnce never repeats")
	}
	if len(deliveries) == 0 { // not lost: reported
		require.Contains(t, []sequel{inFlight, abandoned}, want)
		require.False(t, answer.Nil)
	}
}

func sequelOf(t *testing.T, a worker.Answer) sequel {
	switch {
	case a.Nil && a.Status == idemmail.StatusSent && a.Replayed:
		return replays
	case a.Nil && a.Status == idemmail.StatusSent:
		return goes
	case a.Code == idemmail.CodeInFlight && a.Retryable && slices.Contains(a.Is, "ErrInFlight"):
		return inFlight
	case a.Code == idemmail.CodeAbandoned && a.Status == idemmail.StatusUnknown && !a.Retryable && slices.Contains(a.Is, "ErrAbandoned"):
		return abandoned
	}
	t.Errorf("another answer: %+v", a)
	return ""
}

// settle has an operator list what the crashes have left and settle what was
// abandoned, by what the provider knows; then the jobs are run once more.
func settle(t *testing.T, store backend.Store, heir *worker.Worker, mails *provider) {
	guard, err := idemmail.NewGuard(idemmail.Options{Store: store, Namespace: "crash", Lease: shortLease, AtMostOnce: true})
	require.NoError(t, err)
	want := map[string]bool{}
	for _, c := range crashes {
		for mode := range crashModes {
			if s := c.follows(mode); s == abandoned || s == inFlight {
				want[crashKey(c, mode)] = true
			}
		}
	}
	var left []idemmail.Entry
	listed := map[string]bool{}
	for e, err := range guard.Unsettled(t.Context(), shortLease) {
		require.NoError(t, err)
		require.Equal(t, idemmail.StatePending, e.Record.State)
		left = append(left, e)
		listed[e.Key] = true
	}
	require.Equal(t, want, listed)

	slices.SortFunc(left, func(a, b idemmail.Entry) int { return cmp.Compare(a.Key, b.Key) })
	for _, e := range left {
		mode := e.Key[strings.LastIndex(e.Key, "/")+1:]
		if mode != "AtMostOnce, short lease" {
			continue
		}
		delivered := len(mails.deliveries(e.Key))
		next := goes
		if delivered > 0 {
			require.NoError(t, guard.Resolve(t.Context(), e, nil))
			next = replays
		} else {
			require.NoError(t, guard.Forget(t.Context(), e))
		}
		require.Equal(t, next, sequelOf(t, heir.Send(mode, worker.Message{Key: e.Key}).Answer(t)), e.Key)
		require.Len(t, mails.deliveries(e.Key), 1, e.Key)
	}
}
