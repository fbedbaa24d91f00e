package property

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/mail"
	"net/textproto"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/idemmail/idemmail"
)

// One call after another, with all that may go wrong within it: each is
// answered as the model says, hands on what the model says, and leaves the
// store as the model says.
func TestSequence(t *testing.T) {
	check(t, 3000, 300_000, func(t *rapid.T) {
		m := newMachine(t)
		for range rapid.IntRange(1, 12).Draw(t, "calls") {
			m.act()
			m.compare()
		}
		if log := m.log.String(); strings.Contains(strings.ToLower(log), "secret") {
			t.Fatalf("a secret was logged:\n%s", log)
		}
	})
}

const (
	namespace = "shop"
	badKey    = "line\nbreak"

	storeTimeout = 5 * time.Second   // the default
	maxSend      = 100 * time.Minute // ten leases, the default
)

// A machine is a guarded transport, or a Guard, beside the model of it.
type machine struct {
	*rapid.T
	model
	door     string // Send, SendRaw, Do
	together bool   // the wrapped transport takes a batch in one call
	faulty   bool   // the store has troubles

	store     *faultyStore
	transport *idemmail.IdempotencyTransport
	guard     *idemmail.Guard
	operator  *idemmail.Guard // on the store without its troubles
	log       bytes.Buffer
	events    []idemmail.Event

	// Of the call under way.
	cancel   func()
	attempts []*attempt
	given    map[*attempt]bool // to the transport
	handed   []*attempt        // the same, in order
	dropped  int               // results that the transport leaves out
	lasts    time.Duration     // what the transport may take
	sends    int               // in all
}

func newMachine(t *rapid.T) *machine {
	m := &machine{T: t}
	m.keys = make(map[string]*kept)
	kind := rapid.SampledFrom(append([]string{"MemStore"}, kinds...)).Draw(t, "store")
	m.faulty = kind != "MemStore"
	m.door = rapid.SampledFrom([]string{"Send", "Send", "SendRaw", "Do"}).Draw(t, "door")
	m.together = rapid.Bool().Draw(t, "together")
	m.options = idemmail.Options{
		Namespace:        namespace,
		Lease:            rapid.SampledFrom([]time.Duration{10 * time.Minute, 10 * time.Minute, idemmail.NoExpiry}).Draw(t, "lease"),
		TTL:              rapid.SampledFrom([]time.Duration{24 * time.Hour, 24 * time.Hour, idemmail.NoExpiry}).Draw(t, "TTL"),
		AtMostOnce:       rapid.Bool().Draw(t, "at most once"),
		RejectDuplicates: rapid.Bool().Draw(t, "reject duplicates"),
		RequireKey:       rapid.Bool().Draw(t, "require key"),
		Logger:           slog.New(slog.NewTextHandler(&m.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Observe:          func(_ context.Context, e idemmail.Event) { m.events = append(m.events, e) },
	}
	m.options.FailOpen = !m.options.AtMostOnce && rapid.Bool().Draw(t, "fail open")
	m.sendAt = func(variant string) time.Time {
		if m.door != "Send" {
			return time.Time{}
		}
		return newMessage("", variant).SendAt
	}

	m.store = &faultyStore{MemStore: idemmail.NewMemStore(idemmail.MemStoreOptions{})}
	guarded := m.options
	guarded.Store = m.store.MemStore // which the engine knows
	if m.faulty {
		guarded.Store = as(kind, m.store)
	}
	var next idemmail.Transport = single{m}
	if m.together {
		next = many{single{m}}
	}
	var err error
	if m.transport, err = idemmail.New(next, guarded); err != nil {
		t.Fatal(err)
	}
	if m.guard, err = idemmail.NewGuard(guarded); err != nil {
		t.Fatal(err)
	}
	guarded.Store, guarded.Observe = m.store.MemStore, nil
	if m.operator, err = idemmail.NewGuard(guarded); err != nil {
		t.Fatal(err)
	}
	return m
}

var variants = []string{"a", "a", "b", "later"}

// newMessage has something secret in every place that no log may show.
func newMessage(key, variant string) *idemmail.Message {
	m := &idemmail.Message{
		From:           mail.Address{Name: "secret", Address: secretAddress},
		To:             []mail.Address{{Address: secretAddress}},
		Subject:        "secret " + variant,
		Text:           "secret",
		Header:         textproto.MIMEHeader{"X-Secret": {"secret"}},
		Metadata:       map[string]string{"secret": "secret"},
		IdempotencyKey: key,
	}
	if variant == "later" {
		m.SendAt = time.Date(2000, 1, 4, 0, 0, 0, 0, time.UTC) // three days into the bubble's time
	}
	return m
}

func newRawMessage(key, variant string) *idemmail.RawMessage {
	return &idemmail.RawMessage{From: secretAddress, To: []string{variant + secretAddress}, Data: []byte("secret"), IdempotencyKey: key}
}

// fingerprint is that of what the door sends.
func (m *machine) fingerprint(variant string) string {
	switch m.door {
	case "SendRaw":
		return idemmail.FingerprintRaw(newRawMessage("", variant))
	case "Do":
		return "c:" + variant
	}
	return idemmail.Fingerprint(newMessage("", variant))
}

// single is the wrapped transport; many is one that takes batches.
type single struct{ *machine }

func (s single) Send(ctx context.Context, msg *idemmail.Message) (*idemmail.Receipt, error) {
	return s.hand(ctx, msg.IdempotencyKey, strings.TrimPrefix(msg.Subject, "secret "))
}

func (s single) SendRaw(ctx context.Context, msg *idemmail.RawMessage) (*idemmail.Receipt, error) {
	return s.hand(ctx, msg.IdempotencyKey, strings.TrimSuffix(msg.To[0], secretAddress))
}

type many struct{ single }

func (s many) SendMany(ctx context.Context, msgs []*idemmail.Message) []idemmail.Result {
	results := make([]idemmail.Result, len(msgs))
	for i, msg := range msgs {
		results[i].Receipt, results[i].Err = s.Send(ctx, msg)
	}
	return results[:max(0, len(results)-s.dropped)]
}

// hand takes a message and does with it what its attempt says.
func (m *machine) hand(ctx context.Context, key, variant string) (*idemmail.Receipt, error) {
	for _, a := range m.attempts {
		if a.key == key && a.variant == variant && !m.given[a] {
			m.given[a] = true
			m.handed = append(m.handed, a)
			m.sends++
			return a.outcome.do(ctx, m.cancel, fmt.Sprint(m.sends))
		}
	}
	m.Errorf("the transport was handed %q, %s, too often", key, variant)
	return nil, nil
}

// act does something at random.
func (m *machine) act() {
	switch rapid.SampledFrom([]string{"send", "send", "send", "send", "batch", "batch", "jump", "jump", "foreign", "operator"}).Draw(m.T, "act") {
	case "send":
		m.send()
	case "batch":
		if m.door == "Send" {
			m.sendMany()
		} else {
			m.send()
		}
	case "jump":
		m.jump()
	case "foreign":
		m.foreign()
	case "operator":
		m.operate()
	}
}

func (m *machine) drawAttempt(alone bool) *attempt {
	a := &attempt{
		key:     rapid.SampledFrom([]string{"one", "one", "one", "two", "two", "three", "", badKey}).Draw(m.T, "key"),
		variant: rapid.SampledFrom(variants).Draw(m.T, "variant"),
		trouble: calm,
		outcome: drawOutcome(m.T, alone),
	}
	if m.faulty {
		a.trouble = drawTrouble(m.T, alone)
	}
	return a
}

// jump lets time pass: a little, or until just before or just after a key
// changes its meaning.
func (m *machine) jump() {
	times := []time.Time{time.Now().Add(time.Second)}
	for _, key := range slices.Sorted(maps.Keys(m.keys)) {
		for _, moment := range m.keys[key].moments(m.options) {
			times = append(times, moment.earliest.Add(-1), moment.latest)
		}
	}
	time.Sleep(time.Until(rapid.SampledFrom(times).Draw(m.T, "jump")))
}

// foreign has another process hold or have settled a key, if it is free.
func (m *machine) foreign() {
	key := rapid.SampledFrom([]string{"one", "two"}).Draw(m.T, "key")
	a := &attempt{key: key, variant: rapid.SampledFrom(variants).Draw(m.T, "variant")}
	status := rapid.SampledFrom([]string{"pending", "sent", "failed", "unknown", "odd", ""}).Draw(m.T, "status")
	m.clear(0, key)
	if m.find(key) != nil {
		return
	}
	now := time.Now()
	held := m.options.Lease
	if m.options.AtMostOnce {
		held = idemmail.NoExpiry
	}
	ctx, storeKey := context.Background(), namespace+":"+key
	token, _, err := m.store.MemStore.Reserve(ctx, storeKey, m.fingerprint(a.variant), held)
	if err != nil || token == "" {
		m.Fatalf("the store holds %q, and the model does not: %v", key, err)
	}
	if status == "pending" {
		m.pend(a, span{now, now})
		return
	}
	k := &kept{state: idemmail.StateDone, variant: a.variant, status: idemmail.Status(status),
		receipt: &idemmail.Receipt{Status: idemmail.Status(status), ProviderID: "foreign"}}
	k.ends = span{now, now}.plus(time.Hour)
	m.keys[key] = k
	err = m.store.MemStore.Complete(ctx, storeKey, token,
		idemmail.Record{State: idemmail.StateDone, Fingerprint: m.fingerprint(a.variant), Receipt: k.receipt}, time.Hour)
	if err != nil {
		m.Fatal(err)
	}
}
