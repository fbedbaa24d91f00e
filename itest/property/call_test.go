package property

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/idemmail/idemmail"
)

// send makes a call about one message.
func (m *machine) send() {
	a := m.drawAttempt(true)
	before := rapid.IntRange(0, 9).Draw(m.T, "cancelled before") == 0
	patience := rapid.Bool().Draw(m.T, "gives up") || m.options.Lease == idemmail.NoExpiry
	m.clear(0, a.key)

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	mirror, end := context.WithCancel(context.Background()) // the model's idea of ctx
	defer end()
	if before {
		cancel()
		end()
	}
	if a.outcome.waits && patience {
		defer time.AfterFunc(30*time.Minute, cancel).Stop()
	}
	m.admit(mirror, a)
	if !a.want.decided {
		m.take(a, end)
		m.judge(mirror, a)
	}
	exits := ""
	if !a.want.decided || a.unkeyed {
		exits = a.outcome.exit
	}
	if !a.want.decided {
		if a.outcome.cancels {
			end()
		}
		m.weigh(a, mirror.Err() != nil || a.outcome.waits, exits != "", false)
	}
	if a.unkeyed && a.outcome.waits && !patience {
		a.outcome.waits = false // nothing would end it
	}

	m.lasts = a.outcome.lasts
	switch {
	case a.outcome.waits && patience:
		m.lasts = max(m.lasts, 30*time.Minute)
	case a.outcome.waits:
		m.lasts = max(m.lasts, maxSend)
	}
	m.run([]*attempt{a}, []*attempt{a}, exits, cancel, func() []idemmail.Result {
		var r idemmail.Result
		switch m.door {
		case "Send":
			r.Receipt, r.Err = m.transport.Send(ctx, newMessage(a.key, a.variant))
		case "SendRaw":
			r.Receipt, r.Err = m.transport.SendRaw(ctx, newRawMessage(a.key, a.variant))
		case "Do":
			r.Receipt, r.Err = m.guard.Do(ctx, a.key, a.variant, func(ctx context.Context) (*idemmail.Receipt, error) {
				return m.hand(ctx, a.key, a.variant)
			})
		}
		return []idemmail.Result{r}
	})
}

// sendMany makes a call about several messages, whose keys may be the same.
func (m *machine) sendMany() {
	attempts := make([]*attempt, rapid.IntRange(0, 5).Draw(m.T, "messages"))
	var keys []string
	var messages []*idemmail.Message
	for i := range attempts {
		attempts[i] = m.drawAttempt(false)
		keys = append(keys, attempts[i].key)
		messages = append(messages, newMessage(attempts[i].key, attempts[i].variant))
	}
	m.lasts = 0
	m.dropped = max(0, rapid.IntRange(-8, 2).Draw(m.T, "dropped"))
	before := rapid.IntRange(0, 9).Draw(m.T, "cancelled before") == 0
	m.clear(5*time.Minute, keys...)

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	mirror, end := context.WithCancel(context.Background())
	defer end()
	if before {
		cancel()
		end()
	}
	told := m.predictInTurn
	if m.together {
		told = m.predictTogether
	}
	reached, exits := told(mirror, end, attempts)
	m.run(attempts, reached, exits, cancel, func() []idemmail.Result { return m.transport.SendMany(ctx, messages) })
	m.dropped = 0
}

// predictInTurn says what becomes of messages that go one after another. The
// first that the transport does not come back from is the last.
func (m *machine) predictInTurn(ctx context.Context, cancel func(), attempts []*attempt) (reached []*attempt, exits string) {
	firsts := make(map[string]*attempt)
	for i, a := range attempts {
		m.admit(ctx, a)
		if !a.want.decided {
			if a.first = firsts[a.key]; a.first != nil {
				m.follow(a)
				continue
			}
			firsts[a.key] = a
			m.take(a, cancel)
			m.judge(ctx, a)
		}
		if a.want.decided && !a.unkeyed {
			continue
		}
		if a.outcome.cancels {
			cancel()
		}
		if !a.unkeyed {
			m.weigh(a, ctx.Err() != nil, a.outcome.exit != "", false)
		}
		if a.outcome.exit != "" {
			return attempts[:i+1], a.outcome.exit
		}
	}
	return attempts, ""
}

// predictTogether says what becomes of messages that go in one call. Where the
// transport does not come back, nobody follows any more.
func (m *machine) predictTogether(ctx context.Context, cancel func(), attempts []*attempt) (reached []*attempt, exits string) {
	firsts := make(map[string]*attempt)
	var leaders, handed []*attempt
	for _, a := range attempts {
		m.admit(ctx, a)
		if a.want.decided {
			continue
		}
		if a.first = firsts[a.key]; a.first != nil {
			continue
		}
		firsts[a.key] = a
		leaders = append(leaders, a)
	}
	for _, a := range leaders {
		m.take(a, cancel)
	}
	for _, a := range leaders {
		m.judge(ctx, a)
	}
	for _, a := range attempts {
		if a.first == nil && (!a.want.decided || a.unkeyed) {
			handed = append(handed, a)
		}
	}
	for _, a := range handed {
		if a.outcome.cancels {
			cancel()
		}
		if exits = a.outcome.exit; exits != "" {
			break
		}
	}
	for i, a := range handed {
		missing := exits == "" && i >= len(handed)-m.dropped
		switch {
		case !a.unkeyed:
			m.weigh(a, ctx.Err() != nil, exits != "", missing)
		case missing:
			a.unkeyed = false
			a.want.refuse("", idemmail.CodeBatchMismatch, idemmail.ErrBatchMismatch)
			a.want.sends = true
		}
	}
	for _, a := range attempts {
		if a.first == nil {
			reached = append(reached, a)
		} else if exits == "" {
			m.follow(a)
			reached = append(reached, a)
		}
	}
	return reached, exits
}

// run makes the call and compares what comes of it with what the attempts that
// it reaches want.
func (m *machine) run(attempts, reached []*attempt, exits string, cancel func(), call func() []idemmail.Result) {
	m.attempts, m.handed, m.events = attempts, nil, nil
	m.given = make(map[*attempt]bool)
	m.cancel = cancel
	troubles := make(map[string]*trouble)
	for _, a := range attempts {
		if tr := a.trouble; a.first == nil && troubles[namespace+":"+a.key] == nil {
			troubles[namespace+":"+a.key] = &tr
		}
	}
	m.store.meetWith(troubles, cancel)
	began := time.Now()
	results, how := watch(call)
	during := span{began, time.Now()}
	// One call to reserve, one to free what that took, and one to settle.
	bound := m.lasts + time.Duration(max(1, len(attempts)))*3*(storeTimeout+200*time.Millisecond)
	if took := during.latest.Sub(began); took > bound {
		m.Fatalf("the call took %v, its bound is %v", took, bound)
	}
	if slices.ContainsFunc(attempts, func(a *attempt) bool { return a.trouble.reserve == late }) {
		time.Sleep(lateness)
	}
	m.store.meetWith(nil, nil)

	if how != exits {
		m.Fatalf("the call ended by %q, wanted %q", how, exits)
	}
	m.compareHanded(reached, exits)
	m.compareEvents(reached)
	if exits == "" && len(results) != len(attempts) {
		m.Fatalf("%d results for %d messages", len(results), len(attempts))
	}
	for i, a := range attempts {
		for _, effect := range a.effects {
			effect(during)
		}
		if exits != "" {
			continue
		}
		r := results[i]
		if a.unkeyed {
			continue
		}
		if err := a.want.agrees(r.Receipt, r.Err); err != nil {
			m.Fatalf("message %d, %q: %v", i, a.key, err)
		}
		m.compareReceipt(a, r.Receipt, results, attempts)
	}
}

// compareReceipt: a replayed receipt is the first one's, and the first one's
// is what will be replayed.
func (m *machine) compareReceipt(a *attempt, r *idemmail.Receipt, results []idemmail.Result, attempts []*attempt) {
	var first *idemmail.Receipt
	switch {
	case a.want.replayed != nil && a.first != nil && a.first.held == nil:
		first = results[slices.Index(attempts, a.first)].Receipt
	case a.want.replayed != nil:
		first = a.want.replayed.receipt
	}
	if first != nil {
		want := *first
		want.Replayed = true
		if !reflect.DeepEqual(&want, r) {
			m.Fatalf("replayed %+v, wanted %+v", r, want)
		}
	}
	if a.made != nil {
		receipt := *r
		a.made.receipt = &receipt
	}
}

// watch tells how a call ends.
func watch(call func() []idemmail.Result) (results []idemmail.Result, how string) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer func() {
			if v := recover(); v != nil {
				how = fmt.Sprintf("panic of %v", v)
				if v == errTransport {
					how = "panic"
				}
			}
		}()
		how = "goexit"
		results = call()
		how = ""
	}()
	<-ended
	return results, how
}

// compareHanded: the transport was handed what was to go, in order.
func (m *machine) compareHanded(reached []*attempt, exits string) {
	var want []*attempt
	for _, a := range reached {
		if a.want.sends {
			want = append(want, a)
			if exits != "" && a.outcome.exit != "" {
				break
			}
		}
	}
	if !slices.Equal(want, m.handed) {
		m.Fatalf("the transport was handed %v, wanted %v", names(m.handed), names(want))
	}
}

func names(attempts []*attempt) (all []string) {
	for _, a := range attempts {
		all = append(all, a.key+"/"+a.variant)
	}
	return all
}

// compareEvents: each decision is one event; what is wrong with the store comes
// besides.
func (m *machine) compareEvents(reached []*attempt) {
	decided, upset := make(map[string]int), make(map[string]bool)
	for _, a := range reached {
		if a.want.kind != "" {
			decided[fmt.Sprintf("%s %q", a.want.kind, a.key)]++
		}
		if a.upset {
			upset[a.key] = true
		}
	}
	seen, seenUpset := make(map[string]int), make(map[string]bool)
	for _, e := range m.events {
		switch e.Kind {
		case idemmail.EventRenewed:
		case idemmail.EventStoreFailed, idemmail.EventLeaseLost:
			seenUpset[e.Key] = true
			if e.Err == nil || errors.Is(e.Err, errTransport) {
				m.Fatalf("%s has the error %v", e.Kind, e.Err)
			}
		default:
			seen[fmt.Sprintf("%s %q", e.Kind, e.Key)]++
		}
	}
	if !reflect.DeepEqual(decided, seen) {
		m.Fatalf("observed %v, wanted %v", seen, decided)
	}
	if !reflect.DeepEqual(upset, seenUpset) {
		m.Fatalf("observed trouble of the store with %v, wanted %v", seenUpset, upset)
	}
}

// compare compares the store with the model, where that is in no doubt.
func (m *machine) compare() {
	now := time.Now()
	for _, key := range []string{"one", "two", "three"} {
		k := m.keys[key]
		if k != nil && slices.ContainsFunc(k.moments(m.options), func(s span) bool { return !now.Before(s.earliest) && now.Before(s.latest) }) {
			continue
		}
		k = m.find(key)
		e, err := m.store.MemStore.Lookup(context.Background(), namespace+":"+key)
		if err != nil {
			m.Fatal(err)
		}
		if (e == nil) != (k == nil) {
			m.Fatalf("%q is held by %+v, wanted %+v", key, e, k)
		}
		if k == nil {
			continue
		}
		if e.Record.State != k.state || e.Record.Fingerprint != m.fingerprint(k.variant) {
			m.Fatalf("%q is held by %+v, wanted %+v", key, e.Record, k)
		}
		if k.state == idemmail.StateDone && (e.Record.Receipt.Status != k.status || e.Record.Receipt.Code != k.code) {
			m.Fatalf("%q is done with %+v, wanted %+v", key, e.Record.Receipt, k)
		}
		if e.ExpiresAt.IsZero() != k.unending || !k.unending && (e.ExpiresAt.Before(k.ends.earliest) || e.ExpiresAt.After(k.ends.latest)) {
			m.Fatalf("%q ends at %v, wanted %v", key, e.ExpiresAt, k.ends)
		}
	}
}
