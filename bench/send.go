package main

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/idemmail/idemmail"
)

const (
	sendUnkeyed   = "without a key, 22 KB, against the transport alone"
	sendSmall     = "first send, 1 KB"
	sendTypical   = "first send, 22 KB"
	sendLarge     = "first send, 100 KB"
	sendReplay    = "replay, 22 KB, against SHA-256, the map and a copy of the receipt"
	sendInFlight  = "in-flight answer, 22 KB, against SHA-256 and the map"
	sendParallel  = "first sends, 22 KB, from two goroutines, throughput against one"
	sendWatermill = "first send, 22 KB, against watermill's deduplicator by SHA-256"
)

const namespace = "bench"

func sendChapter() chapter {
	return chapter{
		title: "Whole sends, memory store",
		text: "`IdempotencyTransport` over a transport that does nothing, its `MemStore` full at 100,000 keys, " +
			"against one SHA-256 of the message's bytes and the map and mutex from above.",
		rows: []row{
			{what: sendUnkeyed},
			{id: "D1b", what: sendSmall, atMost: 6.5},
			{id: "D1", what: sendTypical, atMost: 1.6},
			{id: "D1", what: sendLarge, atMost: 1.2},
			{what: sendReplay},
			{what: sendInFlight},
			{id: "D2", what: "allocations: none without a key, 5 a replay, 14 a new key, at most", test: "TestAllocationBudgets"},
			{id: "D3", what: sendParallel, atLeast: 1.6, why: "it needs two cores that nobody else wants"},
			{id: "D4", what: sendWatermill, atMost: 1.0, why: "by less than the rounds differ: most of either is the hash"},
		},
		measure: measureSend,
	}
}

func measureSend(t testing.TB, s scale, f *findings) {
	for _, first := range []struct {
		what string
		size int
	}{{sendSmall, kilobyte}, {sendTypical, typical}, {sendLarge, 100 * kilobyte}} {
		taken := s.compare(t, s.rounds, firstSendsFloor(s.full, first.size), firstSends(t, s.full, first.size))
		f.add(t, first.what, taken[1].over(taken[0]))
	}

	taken := s.compare(t, s.rounds, unkeyed(t, transport), unkeyed(t, guarded(t, transport, nil)))
	f.add(t, sendUnkeyed, taken[1].over(taken[0]))

	replays, floor := replayedSends(t, s.full)
	taken = s.compare(t, s.rounds, floor, replays)
	f.add(t, sendReplay, taken[1].over(taken[0]))

	inFlight, floor := inFlightSends(t, s.full)
	taken = s.compare(t, s.rounds, floor, inFlight)
	f.add(t, sendInFlight, taken[1].over(taken[0]))

	one, two := firstSendsFrom(t, s.full, 1), firstSendsFrom(t, s.full, 2)
	taken = s.lasting(10).compare(t, s.rounds, one, two)
	f.add(t, sendParallel, taken[0].over(taken[1]))

	taken = s.compare(t, s.rounds, watermillSends(t, s.full), firstSends(t, s.full, typical))
	f.add(t, sendWatermill, taken[1].over(taken[0]))
}

// transport does nothing and allocates nothing.
var transport = idemmail.TransportFunc(func(context.Context, *idemmail.Message) (*idemmail.Receipt, error) {
	return theReceipt, nil
})

var theReceipt = newReceipt(1)

// guarded wraps a transport. Without a store it gets one of its own.
func guarded(t testing.TB, next idemmail.Transport, store idemmail.Store) *idemmail.IdempotencyTransport {
	transport, err := idemmail.New(next, idemmail.Options{
		Store:     store,
		Namespace: namespace,
		Lease:     lease,
		TTL:       ttl,
		Logger:    slog.New(slog.DiscardHandler),
	})
	must(t, err)
	return transport
}

// fullMemStore has as many keys as it takes.
func fullMemStore(t testing.TB, maxEntries int) *idemmail.MemStore {
	mem := idemmail.NewMemStore(idemmail.MemStoreOptions{MaxEntries: maxEntries})
	for _, key := range fillKeys(maxEntries) {
		must(t, sendNew(t.Context(), mem, key, theReceipt))
	}
	return mem
}

func unkeyed(t testing.TB, transport idemmail.Transport) way {
	m := newMessage(typical)
	return way{run: func(times int) {
		for range times {
			_, err := transport.Send(t.Context(), m)
			must(t, err)
		}
	}}
}

func firstSends(t testing.TB, maxEntries, size int) way {
	return sends(t, guarded(t, transport, fullMemStore(t, maxEntries)), size)
}

// sends are those of messages under new keys.
func sends(t testing.TB, transport idemmail.Transport, size int) way {
	m := newMessage(size)
	return newKeys(func(key string) {
		m.IdempotencyKey = key
		must(t, firstSend(transport.Send(t.Context(), m)))
	})
}

// firstSend is an error unless the message was sent now.
func firstSend(r *idemmail.Receipt, err error) error {
	if err == nil && r.Replayed {
		err = errors.New("the key is not new")
	}
	return err
}

func firstSendsFloor(maxEntries, size int) way {
	text, bare := canonical(newMessage(size)), newBareStore(maxEntries)
	w := newKeys(func(key string) {
		sha256.Sum256(text)
		sendBare(bare, key, theReceipt)
	})
	for _, key := range fillKeys(maxEntries) {
		sendBare(bare, key, theReceipt)
	}
	return w
}

// replayedSends are those of messages that went before, and their floor.
func replayedSends(t testing.TB, n int) (replays, floor way) {
	transport := guarded(t, transport, idemmail.NewMemStore(idemmail.MemStoreOptions{MaxEntries: n}))
	m, keys, bare := newMessage(typical), fillKeys(n), newBareStore(n)
	text := canonical(m)
	for _, key := range keys {
		m.IdempotencyKey = key
		_, err := transport.Send(t.Context(), m)
		must(t, err)
		sendBare(bare, key, theReceipt)
	}
	replays = repeating(t, transport, m, keys, nil)
	floor = eachOf(keys, func(key string) {
		sha256.Sum256(text)
		bare.replay(key, someFingerprint)
	})
	return replays, floor
}

// inFlightSends are those of messages whose keys are held, and their floor.
func inFlightSends(t testing.TB, n int) (inFlight, floor way) {
	mem := idemmail.NewMemStore(idemmail.MemStoreOptions{MaxEntries: n})
	transport := guarded(t, transport, mem)
	m, keys, bare := newMessage(typical), fillKeys(n), newBareStore(n)
	text := canonical(m)
	for _, key := range keys {
		_, _, err := mem.Reserve(t.Context(), namespace+":"+key, idemmail.Fingerprint(m), lease)
		must(t, err)
		bare.reserve(key, someFingerprint)
	}
	inFlight = repeating(t, transport, m, keys, idemmail.ErrInFlight)
	floor = eachOf(keys, func(key string) {
		sha256.Sum256(text)
		bare.reserve(key, someFingerprint)
	})
	return inFlight, floor
}

// repeating is sends of a message under keys that are held: want is what they
// are answered with.
func repeating(t testing.TB, transport idemmail.Transport, m *idemmail.Message, keys []string, want error) way {
	return eachOf(keys, func(key string) {
		m.IdempotencyKey = key
		r, err := transport.Send(t.Context(), m)
		if !errors.Is(err, want) || err == nil && !r.Replayed {
			t.Fatal("a message that was sent again is answered with ", err)
		}
	})
}

// fillKeys are keys that stand in stores before they are measured.
func fillKeys(n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("filled:%d", i)
	}
	return keys
}

// stride is a prime: keys are asked for in no order of a store's.
const stride = 7919

// eachOf is a way that does something with one key after another, in no order
// of a store's.
func eachOf(keys []string, do func(key string)) way {
	at := 0
	return way{run: func(times int) {
		for range times {
			do(keys[at])
			at = (at + stride) % len(keys)
		}
	}}
}

// firstSendsFrom is first sends from several goroutines.
func firstSendsFrom(t testing.TB, maxEntries, goroutines int) way {
	return sendsFrom(t, guarded(t, transport, fullMemStore(t, maxEntries)), typical, goroutines)
}

// sendsFrom is sends of messages under new keys from several goroutines.
func sendsFrom(t testing.TB, transport idemmail.Transport, size, goroutines int) way {
	messages := make([]*idemmail.Message, goroutines)
	for g := range messages {
		messages[g] = newMessage(size)
	}
	return newKeysBy(t, goroutines, func(g int, key string) error {
		messages[g].IdempotencyKey = key
		return firstSend(transport.Send(t.Context(), messages[g]))
	})
}

// watermillSends are new messages to a handler that does nothing. The message
// is used again: what it costs to make one is not counted.
func watermillSends(t testing.TB, filled int) way {
	handled := 0
	handler := newWatermill(t, func(*message.Message) ([]*message.Message, error) {
		handled++
		return nil, nil
	})
	next := uint64(0)
	send := func(m *message.Message) {
		next++
		binary.BigEndian.PutUint64(m.Payload, next)
		_, err := handler(m)
		must(t, err)
	}
	small := message.NewMessage("", make([]byte, 8))
	for range filled {
		send(small)
	}
	m := message.NewMessage("", canonical(newMessage(typical)))
	return way{run: func(times int) {
		handled = 0
		for range times {
			send(m)
		}
		if handled != times {
			t.Fatal("watermill took a new message for an old one")
		}
	}}
}
