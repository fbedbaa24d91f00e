package property

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/idemmail/idemmail"
)

// operate has an operator list what is unsettled, and settle a key.
func (m *machine) operate() {
	ctx := context.Background()
	m.clear(0, slices.Collect(maps.Keys(m.keys))...)
	olderThan := time.Duration(0)
	if m.options.Lease != idemmail.NoExpiry {
		olderThan = rapid.SampledFrom([]time.Duration{0, m.options.Lease + 1}).Draw(m.T, "older than")
	}
	m.compareListed(ctx, olderThan)

	key := rapid.SampledFrom([]string{"one", "two", "three"}).Draw(m.T, "key")
	k := m.find(key)
	e, err := m.operator.Lookup(ctx, key)
	if err != nil || (e == nil) != (k == nil) {
		m.Fatalf("looked up %+v, %v, wanted %+v", e, err, k)
	}
	if e == nil {
		return
	}
	var want error
	if k.state == idemmail.StatePending && m.options.Lease != idemmail.NoExpiry && time.Now().Before(k.stale.earliest) {
		want = idemmail.ErrInFlight
	}
	changed := rapid.IntRange(0, 3).Draw(m.T, "entry has changed") == 0
	if changed {
		e.Token += "x"
		want = idemmail.ErrChanged
	}
	resolves := rapid.Bool().Draw(m.T, "resolves")
	if resolves {
		err = m.operator.Resolve(ctx, *e, &idemmail.Receipt{Status: idemmail.StatusSent, ProviderID: "resolved"})
	} else {
		err = m.operator.Forget(ctx, *e)
	}
	if !errors.Is(err, want) || want == nil && err != nil {
		m.Fatalf("settled %+v: %v, wanted %v", e, err, want)
	}
	switch {
	case want != nil:
	case resolves:
		now := time.Now()
		m.keys[key] = &kept{state: idemmail.StateDone, variant: k.variant, status: idemmail.StatusSent,
			ends: span{now, now}.plus(m.options.TTL), unending: m.options.TTL == idemmail.NoExpiry}
	default:
		delete(m.keys, key)
	}
}

// compareListed: what is unsettled is done with an unknown outcome, or pending
// for so long.
func (m *machine) compareListed(ctx context.Context, olderThan time.Duration) {
	want, seen := make(map[string]bool), make(map[string]bool)
	for _, key := range slices.Collect(maps.Keys(m.keys)) {
		k := m.find(key)
		switch {
		case k == nil:
		case k.state == idemmail.StatePending && (olderThan == 0 || !time.Now().Before(k.ends.latest.Add(1))),
			k.state == idemmail.StateDone && k.status == idemmail.StatusUnknown:
			want[key] = true
		}
	}
	for e, err := range m.operator.Unsettled(ctx, olderThan) {
		if err != nil {
			m.Fatal(err)
		}
		seen[e.Key] = true
	}
	if !maps.Equal(want, seen) {
		m.Fatalf("listed %v, wanted %v", seen, want)
	}
}
