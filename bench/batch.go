package main

import (
	"context"
	"fmt"
	"testing"

	"github.com/idemmail/idemmail"
)

// batchTransport does nothing, with many messages at once.
type batchTransport struct{ idemmail.TransportFunc }

func (b batchTransport) SendMany(ctx context.Context, msgs []*idemmail.Message) []idemmail.Result {
	results := make([]idemmail.Result, len(msgs))
	for i := range results {
		results[i].Receipt = theReceipt
	}
	return results
}

// batchRow is the row of a SendMany, and turnRow of one whose transport takes
// one message at a time.
func batchRow(n int, where string) string {
	return fmt.Sprintf("%d sends%s, against one `SendMany` of them through a wrapped `SendMany`", n, where)
}

func turnRow(n int, where string) string {
	return fmt.Sprintf("%d sends%s, against one `SendMany` of them, one after another", n, where)
}

// measureBatches compares messages that are sent one by one, by a SendMany
// through a wrapped SendMany, and by one without.
func measureBatches(t testing.TB, s scale, rounds int, f *findings, store idemmail.Store, where string) {
	wrapped := guarded(t, batchTransport{transport}, store)
	plain := guarded(t, transport, store)
	for i, n := range s.batch {
		n0 := fullScale.batch[i] // by which the row is named
		taken := s.compare(t, rounds, apart(t, n, plain), together(t, n, wrapped), together(t, n, plain))
		f.add(t, batchRow(n0, where), taken[0].over(taken[1]))
		f.add(t, turnRow(n0, where), taken[0].over(taken[2]))
	}
}

// together are many messages of 1 KB in one call, under new keys each time.
func together(t testing.TB, n int, transport idemmail.BatchTransport) way {
	messages := make([]*idemmail.Message, n)
	for i := range messages {
		messages[i] = newMessage(kilobyte)
	}
	var keys fresh
	return way{
		prepare: func(times int) { keys.prepare(times * n) },
		run: func(times int) {
			for turn := range times {
				for i, m := range messages {
					m.IdempotencyKey = keys.keys[turn*n+i]
				}
				for _, r := range transport.SendMany(t.Context(), messages) {
					must(t, firstSend(r.Receipt, r.Err))
				}
			}
		},
	}
}

// apart are so many messages in as many calls.
func apart(t testing.TB, n int, transport idemmail.Transport) way {
	one := sends(t, transport, kilobyte)
	return way{
		prepare: func(times int) { one.prepare(times * n) },
		run:     one.run,
	}
}
