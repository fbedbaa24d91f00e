package idemmail_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
)

// A memModel says what a MemStore is to answer, in the plainest way there is:
// it looks through everything, each time.
type memModel struct {
	max     int
	now     time.Time
	entries map[string]*modelEntry
	settled int // how often a key was completed or resolved
}

type modelEntry struct {
	token    string
	record   idemmail.Record
	since    time.Time
	lifetime time.Duration
	settled  int // when, by memModel.settled
}

// forget drops what has expired.
func (m *memModel) forget() {
	maps.DeleteFunc(m.entries, func(_ string, e *modelEntry) bool {
		return e.lifetime != idemmail.NoExpiry && m.now.Sub(e.since) >= e.lifetime
	})
}

func (m *memModel) room() error {
	if len(m.entries) < m.max {
		return nil
	}
	oldest := ""
	for key, e := range m.entries {
		if e.record.State != idemmail.StateDone {
			continue
		}
		if e.lifetime == idemmail.NoExpiry && e.record.Receipt.Status == idemmail.StatusUnknown {
			continue
		}
		if oldest == "" || e.settled < m.entries[oldest].settled {
			oldest = key
		}
	}
	if oldest == "" {
		return idemmail.ErrStoreFull
	}
	delete(m.entries, oldest)
	return nil
}

func (m *memModel) settle(key, token string, rec idemmail.Record, ttl time.Duration) {
	m.settled++
	m.entries[key] = &modelEntry{token, rec, m.now, ttl, m.settled}
}

// holds returns the entry of a key, if token holds it in that state.
func (m *memModel) holds(key, token string, state idemmail.State) *modelEntry {
	if e := m.entries[key]; e != nil && e.token == token && e.record.State == state {
		return e
	}
	return nil
}

func (m *memModel) reserve(key, fingerprint string, lease time.Duration) (held bool, err error) {
	if m.entries[key] != nil {
		return true, nil
	}
	if err := m.room(); err != nil {
		return false, err
	}
	m.entries[key] = &modelEntry{
		record:   idemmail.Record{State: idemmail.StatePending, Fingerprint: fingerprint},
		since:    m.now,
		lifetime: lease,
	}
	return false, nil
}

func (m *memModel) complete(key, token string, rec idemmail.Record, ttl time.Duration) error {
	switch e := m.entries[key]; {
	case e == nil:
		if err := m.room(); err != nil {
			return err
		}
	case e.token != token:
		return idemmail.ErrLeaseLost
	}
	m.settle(key, token, rec, ttl)
	return nil
}

func (m *memModel) release(key, token string) error {
	if m.entries[key] == nil {
		return nil
	}
	if m.holds(key, token, idemmail.StatePending) == nil {
		return idemmail.ErrLeaseLost
	}
	delete(m.entries, key)
	return nil
}

func (m *memModel) renew(key, token string, lease time.Duration) error {
	e := m.holds(key, token, idemmail.StatePending)
	if e == nil {
		return idemmail.ErrLeaseLost
	}
	e.since, e.lifetime = m.now, lease
	return nil
}

// entry is what Lookup is to answer.
func (m *memModel) entry(key string) *idemmail.Entry {
	e := m.entries[key]
	if e == nil {
		return nil
	}
	shown := &idemmail.Entry{Key: key, Token: e.token, Record: e.record}
	shown.Record.Age = max(0, m.now.Sub(e.since))
	if e.lifetime != idemmail.NoExpiry {
		shown.ExpiresAt = e.since.Add(e.lifetime)
	}
	return shown
}

func (m *memModel) unsettled(prefix string, olderThan time.Duration) []string {
	var keys []string
	for key := range m.entries {
		rec := m.entry(key).Record
		unknown := rec.Receipt != nil && rec.Receipt.Status == idemmail.StatusUnknown
		if strings.HasPrefix(key, prefix) && (unknown || rec.State == idemmail.StatePending && rec.Age >= olderThan) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// Whatever is done to it, a MemStore answers as the model does.
func TestMemStoreModel(t *testing.T) {
	for seed := range uint64(40) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { runMemModel(t, seed) })
	}
}

func runMemModel(t *testing.T, seed uint64) {
	ctx := context.Background()
	random := rand.New(rand.NewPCG(seed, 0))
	size := 1 + random.IntN(12)
	s, clock := newMemStore(size)
	if seed%4 == 0 {
		s, clock = newMemStore(-1)
		size = math.MaxInt
	}
	m := &memModel{max: size, now: clock.Now(), entries: make(map[string]*modelEntry)}

	keys := make([]string, 16)
	for i := range keys {
		keys[i] = fmt.Sprintf("%c:%d", 'a'+i%3, i)
	}
	var tokens []string
	pick := func(key string) string { // a token: mostly the one that holds the key
		if e := m.entries[key]; e != nil && random.IntN(4) > 0 {
			return e.token
		}
		if len(tokens) > 0 && random.IntN(2) > 0 {
			return tokens[random.IntN(len(tokens))]
		}
		return fmt.Sprint("made up ", random.IntN(100))
	}
	duration := func() time.Duration {
		switch random.IntN(8) {
		case 0:
			return idemmail.NoExpiry
		case 1:
			return math.MaxInt64
		case 2:
			return time.Duration(1 + random.Int64N(1e10))
		default:
			return time.Duration(1+random.IntN(3)) * time.Second
		}
	}
	receipt := func() *idemmail.Receipt {
		statuses := []idemmail.Status{idemmail.StatusSent, idemmail.StatusUnknown, idemmail.StatusFailed, "other"}
		return &idemmail.Receipt{
			Status:    statuses[random.IntN(len(statuses))],
			MessageID: fmt.Sprint(random.IntN(1000)),
			Accepted:  make([]string, random.IntN(3)),
		}
	}
	same := func(what string, want, got error) {
		t.Helper()
		if !errors.Is(got, want) {
			t.Fatalf("%s answered %v, not %v", what, got, want)
		}
	}

	for range 1500 {
		key := keys[random.IntN(len(keys))]
		switch random.IntN(13) {
		case 0, 1, 2, 3:
			fingerprint, lease := fmt.Sprint("fp", random.IntN(5)), duration()
			wantHeld, want := m.reserve(key, fingerprint, lease)
			token, held, err := s.Reserve(ctx, key, fingerprint, lease)
			same("Reserve", want, err)
			switch {
			case wantHeld:
				require.Empty(t, token)
				require.Equal(t, &m.entry(key).Record, held)
			case want == nil:
				require.Nil(t, held)
				require.NotContains(t, tokens, token)
				m.entries[key].token = token
				tokens = append(tokens, token)
			}
		case 4, 5, 6:
			rec := idemmail.Record{State: idemmail.StateDone, Fingerprint: fmt.Sprint("fp", random.IntN(5)), Receipt: receipt()}
			token, ttl := pick(key), duration()
			same("Complete", m.complete(key, token, rec, ttl), s.Complete(ctx, key, token, rec, ttl))
		case 7:
			token := pick(key)
			same("Release", m.release(key, token), s.Release(ctx, key, token))
		case 8:
			token, lease := pick(key), duration()
			same("Renew", m.renew(key, token, lease), s.Renew(ctx, key, token, lease))
		case 9:
			e := idemmail.Entry{Key: key, Token: pick(key), Record: idemmail.Record{State: idemmail.StatePending}}
			if random.IntN(2) == 0 {
				e.Record.State = idemmail.StateDone
			}
			held := m.holds(key, e.Token, e.Record.State)
			var want error
			if held == nil {
				want = idemmail.ErrChanged
			}
			if random.IntN(2) == 0 {
				same("Forget", want, s.Forget(ctx, e))
				if held != nil {
					delete(m.entries, key)
				}
				break
			}
			r, ttl := receipt(), duration()
			r.Status = idemmail.StatusSent
			same("Resolve", want, s.Resolve(ctx, e, r, ttl))
			if held != nil {
				token := lookup(t, s, key).Token
				require.NotContains(t, tokens, token)
				tokens = append(tokens, token)
				m.settle(key, token, idemmail.Record{State: idemmail.StateDone, Fingerprint: held.record.Fingerprint, Receipt: r}, ttl)
			}
		case 10:
			clock.Advance(time.Duration(random.IntN(2e9)))
		case 11:
			clock.Advance(time.Duration(random.IntN(3)) * time.Second)
		case 12:
			if random.IntN(5) > 0 {
				break
			}
			// What has expired may be gone when the clock goes back, or may
			// not. Len sees to it that it is.
			require.Equal(t, len(m.entries), s.Len())
			clock.Advance(-time.Duration(random.Int64N(6e9)))
		}
		m.now = clock.Now()
		m.forget()
		if random.IntN(10) > 0 { // looking drops what has expired, so it is not done each time
			continue
		}
		for _, key := range keys {
			require.Equal(t, m.entry(key), lookup(t, s, key))
		}
		olderThan := time.Duration(random.IntN(2e9))
		require.Equal(t, m.unsettled("b:", olderThan), unsettled(t, s, "b:", olderThan))
		require.Equal(t, len(m.entries), s.Len())
	}
}
