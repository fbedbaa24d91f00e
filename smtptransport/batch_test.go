package smtptransport_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/smtptransport"
)

func letters(n int) []*idemmail.Message {
	msgs := make([]*idemmail.Message, n)
	for i := range msgs {
		msgs[i] = letter()
		msgs[i].Subject = fmt.Sprintf("Order %d", i)
	}
	return msgs
}

func statuses(results []idemmail.Result) (list []idemmail.Status) {
	for _, r := range results {
		list = append(list, r.Receipt.Status)
	}
	return list
}

const (
	sent    = idemmail.StatusSent
	failed  = idemmail.StatusFailed
	unknown = idemmail.StatusUnknown
)

func TestBatchOverOneConnection(t *testing.T) {
	t.Parallel()
	s := newScriptedServer(t, nil)
	results := transport(t, s.addr).SendMany(background, letters(20))
	require.Len(t, results, 20)
	for _, r := range results {
		wantOutcome(t, sent, r.Receipt, r.Err)
	}
	connections, commands, messages, _ := s.seen()
	require.Equal(t, 1, connections)
	require.NotContains(t, commands, "RSET")
	require.Len(t, messages, 20)
	for i, message := range messages {
		require.Contains(t, message, fmt.Sprintf("\r\nSubject: Order %d\r\n", i))
	}
	require.Empty(t, transport(t, s.addr).SendMany(background, nil))
}

// on says what the server does with the message of that number.
func on(number int, command string, otherwise step, special step) map[string]step {
	var mu sync.Mutex
	seen := 0
	return map[string]step{command: func(c *peer) bool {
		mu.Lock()
		seen++
		n := seen
		mu.Unlock()
		if n == number {
			return special(c)
		}
		return otherwise(c)
	}}
}

// One message's failure does not fail another.
func TestBatchOutcomes(t *testing.T) {
	ok := says("250 2.0.0 ok")
	for _, row := range []struct {
		name        string
		script      map[string]step
		want        []idemmail.Status
		connections int
		resets      int
	}{
		{"MAIL refused", on(2, "MAIL", ok, says("550 5.1.8 no")), []idemmail.Status{sent, failed, sent}, 1, 1},
		{"RCPT refused", on(2, "RCPT", ok, says("550 5.1.1 no")), []idemmail.Status{sent, failed, sent}, 1, 1},
		{"RCPT lost", on(2, "RCPT", ok, cuts), []idemmail.Status{sent, failed, sent}, 2, 0},
		{"RCPT 421", on(2, "RCPT", ok, saysAndCuts("421 4.3.2 closing\r\n")), []idemmail.Status{sent, failed, sent}, 2, 0},
		{"DATA lost", on(2, "DATA", says("354 go ahead"), cuts), []idemmail.Status{sent, failed, sent}, 2, 0},
		// The kernel took all of a small message, though the server read none.
		{"body lost", on(2, "body", func(*peer) bool { return true }, cuts), []idemmail.Status{sent, unknown, sent}, 2, 0},
		{"dot refused", on(2, "dot", ok, says("554 5.7.1 spam")), []idemmail.Status{sent, failed, sent}, 1, 1},
		{"dot lost", on(2, "dot", ok, cuts), []idemmail.Status{sent, unknown, sent}, 2, 0},
		{"dot garbled", on(2, "dot", ok, says("what?")), []idemmail.Status{sent, unknown, sent}, 2, 0},
		{"last lost", on(3, "dot", ok, cuts), []idemmail.Status{sent, sent, unknown}, 1, 0},

		// The server closes between messages, as those do that take so many on
		// one connection: nothing of the next has been said, so it gets its own.
		{"closed after the first", on(1, "dot", ok, saysAndCuts("250 2.0.0 ok\r\n")), []idemmail.Status{sent, sent, sent}, 2, 0},
		{"closed at the second's MAIL", on(2, "MAIL", ok, cuts), []idemmail.Status{sent, sent, sent}, 2, 0},
		{"421 at the second's MAIL", on(2, "MAIL", ok, saysAndCuts("421 4.7.0 enough\r\n")), []idemmail.Status{sent, sent, sent}, 2, 0},
		{"421 after the first", on(1, "dot", ok, saysAndCuts("250 2.0.0 ok\r\n421 4.4.2 enough\r\n")), []idemmail.Status{sent, sent, sent}, 2, 0},
		{"each connection refuses", map[string]step{"MAIL": says("421 4.7.0 enough")}, []idemmail.Status{failed, failed, failed}, 3, 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			s := newScriptedServer(t, row.script)
			results := transport(t, s.addr).SendMany(background, letters(3))
			for i, r := range results {
				wantOutcome(t, row.want[i], r.Receipt, r.Err)
			}
			connections, commands, _, _ := s.seen()
			require.Equal(t, row.connections, connections)
			require.Equal(t, row.resets, strings.Count(strings.Join(commands, "\n"), "RSET"))
		})
	}
}

// RSET that fails is about the connection, not the message that comes next.
func TestBatchResetFails(t *testing.T) {
	t.Parallel()
	script := on(1, "RCPT", says("250 ok"), says("550 5.1.1 no"))
	script["RSET"] = cuts
	s := newScriptedServer(t, script)
	results := transport(t, s.addr).SendMany(background, letters(3))
	require.Equal(t, []idemmail.Status{failed, sent, sent}, statuses(results))
}

// After RSET the client greets anew. Where that fails, no extension is known,
// which must not be taken for one that is missing.
func TestBatchGreetingAfterResetFails(t *testing.T) {
	t.Parallel()
	script := on(1, "RCPT", says("250 ok"), says("550 5.1.1 no"))
	for command, s := range on(2, "EHLO", says("250-scripted\r\n250-8BITMIME\r\n250 SMTPUTF8"), cuts) {
		script[command] = s
	}
	s := newScriptedServer(t, script)
	msgs := letters(2)
	msgs[1].To[0].Address = "zoë@example.org"
	results := transport(t, s.addr).SendMany(background, msgs)
	require.Equal(t, []idemmail.Status{failed, sent}, statuses(results))
}

func TestBatchWithInvalid(t *testing.T) {
	t.Parallel()
	s := newScriptedServer(t, nil)
	msgs := letters(4)
	msgs[0].Subject = "a\nb"
	msgs[2] = nil
	results := transport(t, s.addr).SendMany(background, msgs)
	require.Equal(t, []idemmail.Status{failed, sent, failed, sent}, statuses(results))
	wantInvalid(t, "Subject", results[0].Receipt, results[0].Err)
	wantInvalid(t, "", results[2].Receipt, results[2].Err)
	connections, _, _, _ := s.seen()
	require.Equal(t, 1, connections)
}

// A context that ends midway: what was sent is sent, what was not begun is not
// begun.
func TestBatchCancelled(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(background)
	s := newScriptedServer(t, on(2, "dot", says("250 2.0.0 ok"), func(c *peer) bool {
		cancel()
		return hangs(c)
	}))
	results := transport(t, s.addr).SendMany(ctx, letters(4))
	require.Equal(t, []idemmail.Status{sent, unknown, failed, failed}, statuses(results))
	for _, r := range results[1:] {
		require.ErrorIs(t, r.Err, context.Canceled)
	}
	connections, _, _, _ := s.seen()
	require.Equal(t, 1, connections)
}

func TestConcurrentUse(t *testing.T) {
	t.Parallel()
	s := newScriptedServer(t, nil)
	tr := transport(t, s.addr)
	m := letter()
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			r, err := tr.Send(background, m)
			wantOutcome(t, sent, r, err)
			for _, r := range tr.SendMany(background, []*idemmail.Message{m, m}) {
				wantOutcome(t, sent, r.Receipt, r.Err)
			}
		})
	}
	wg.Wait()
	_, _, messages, _ := s.seen()
	require.Len(t, messages, 48)
}

func TestUnchanged(t *testing.T) {
	t.Parallel()
	s := newScriptedServer(t, nil)
	m, same := letter(), letter()
	m.Header = map[string][]string{"x-b": {" v "}}
	same.Header = map[string][]string{"x-b": {" v "}}
	_, err := transport(t, s.addr, func(o *smtptransport.Options) { o.KeyHeader = "X-Key" }).Send(background, m)
	require.NoError(t, err)
	require.Equal(t, same, m)
}
