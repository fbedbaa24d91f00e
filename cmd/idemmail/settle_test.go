package main

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
)

func TestResolveAnUnknownOutcome(t *testing.T) {
	onEveryBed(t, func(t *testing.T, b *bed) {
		const key = "orders:order/1042:a"
		b.done(key, unknown)
		was := b.lookup(key)
		r := b.run("resolve", key, "--provider-id", "0100018f", "--yes")
		require.Equal(t, result{stdout: "done: keep " + key + " as sent, for 24h0m0s\n"}, r)

		e := b.lookup(key)
		require.NotEqual(t, was.Token, e.Token)
		require.Equal(t, was.Record.Fingerprint, e.Record.Fingerprint)
		require.WithinDuration(t, time.Now().Add(24*time.Hour), e.ExpiresAt, time.Minute)
		got := *e.Record.Receipt
		require.WithinDuration(t, time.Now(), got.At, time.Minute)
		require.Equal(t, idemmail.Receipt{
			Status: idemmail.StatusSent, Transport: "ses", MessageID: "abc@example.com", ProviderID: "0100018f",
			Accepted: unknown.Accepted, Rejected: unknown.Rejected, At: got.At,
		}, got)
	})
}

// What senders are answered once the operator has settled their messages.
func TestSendersGoByWhatWasSettled(t *testing.T) {
	onEveryBed(t, func(t *testing.T, b *bed) {
		lost := idemmail.MayBeSent(errors.New("no answer"))
		sends := 0
		mailer, err := idemmail.New(idemmail.TransportFunc(func(context.Context, *idemmail.Message) (*idemmail.Receipt, error) {
			sends++
			return &idemmail.Receipt{}, lost
		}), idemmail.Options{Store: b.store, Namespace: "orders", AtMostOnce: true, Logger: discard})
		require.NoError(t, err)
		send := func(key string) (*idemmail.Receipt, error) {
			return mailer.Send(t.Context(), &idemmail.Message{Subject: key, IdempotencyKey: key})
		}
		for _, key := range []string{"has", "has not"} {
			_, err = send(key)
			require.ErrorIs(t, err, idemmail.ErrDeliveryUnknown)
		}
		lost = nil
		require.ElementsMatch(t, []string{"orders:has", "orders:has not"}, listed(t, b.run("list", "--json")))
		require.Equal(t, exitDone, b.run("resolve", "orders:has", "--provider-id", "0100018f", "--yes").code)
		require.Equal(t, exitDone, b.run("forget", "orders:has not", "--yes").code)

		r, err := send("has")
		require.NoError(t, err)
		require.True(t, r.Replayed)
		require.Equal(t, "0100018f", r.ProviderID)
		require.Equal(t, 2, sends, "nothing went again")
		r, err = send("has not")
		require.NoError(t, err)
		require.False(t, r.Replayed)
		require.Equal(t, 3, sends)
		require.Equal(t, result{}, b.run("list"))
	})
}

func TestResolveKeepsForTTL(t *testing.T) {
	onEveryBed(t, func(t *testing.T, b *bed) {
		b.done("orders:1", unknown)
		b.done("orders:2", unknown)
		require.Equal(t, exitDone, b.run("resolve", "orders:1", "--yes", "--ttl", "72h").code)
		require.WithinDuration(t, time.Now().Add(72*time.Hour), b.lookup("orders:1").ExpiresAt, time.Minute)
		require.Equal(t, "0100", b.lookup("orders:1").Record.Receipt.ProviderID, "the one it had")
		require.Equal(t, exitDone, b.run("resolve", "orders:2", "--yes", "--ttl", "never").code)
		require.Zero(t, b.lookup("orders:2").ExpiresAt)
	})
}

func TestForgetFreesTheKey(t *testing.T) {
	onEveryBed(t, func(t *testing.T, b *bed) {
		b.done("orders:1", unknown)
		b.done("orders:2", unknown)
		r := b.run("forget", "orders:1", "--yes")
		require.Equal(t, result{stdout: "done: free orders:1, so that the next send under it goes\n"}, r)
		require.Nil(t, b.lookup("orders:1"))
		require.NotNil(t, b.lookup("orders:2"))
	})
}

// Both settle a key whose sender died, once that is sure.
func TestSettleAPendingKey(t *testing.T) {
	onEveryBed(t, func(t *testing.T, b *bed) {
		b.pending("orders:1")
		b.pending("orders:2")
		b.age(11 * time.Minute)
		require.Equal(t, exitDone, b.run("resolve", "orders:1", "-y").code)
		got := b.lookup("orders:1").Record.Receipt
		require.Equal(t, &idemmail.Receipt{Status: idemmail.StatusSent, Transport: "orders", At: got.At}, got)
		require.Equal(t, exitDone, b.run("forget", "orders:2", "-y").code)
		require.Nil(t, b.lookup("orders:2"))
	})
}

func TestALiveOwnersKeyIsRefused(t *testing.T) {
	onEveryBed(t, func(t *testing.T, b *bed) {
		b.pending("orders:1")
		b.age(9 * time.Minute)
		was := b.lookup("orders:1")
		for _, args := range [][]string{
			{"resolve", "orders:1"}, {"forget", "orders:1"}, {"forget", "orders:1", "--settled"},
			{"resolve", "orders:1", "--dry-run"}, {"forget", "orders:1", "--dry-run"},
			{"forget", "orders:1", "--lease", "30m"},
		} {
			r := b.run(append(args, "--yes")...)
			require.Equal(t, exitRefused, r.code, args)
			require.Empty(t, r.stdout)
			require.Contains(t, r.stderr, "may be alive", args)
		}
		now := b.lookup("orders:1")
		require.Equal(t, was.Token, now.Token)
		require.Equal(t, idemmail.StatePending, now.Record.State)

		require.Equal(t, exitDone, b.run("forget", "orders:1", "--lease", "5m", "--yes").code)
		require.Nil(t, b.lookup("orders:1"))
		b.pending("orders:1")
		require.Equal(t, exitDone, b.run("forget", "orders:1", "--lease", "never", "--yes").code)
		require.Nil(t, b.lookup("orders:1"))
	})
}

func TestASettledKeyIsRefused(t *testing.T) {
	onEveryBed(t, func(t *testing.T, b *bed) {
		b.done("orders:1", idemmail.Receipt{Status: idemmail.StatusSent, ProviderID: "kept"})
		for _, command := range []string{"resolve", "forget"} {
			r := b.run(command, "orders:1", "--provider-id=x", "--yes")
			if command == "forget" {
				r = b.run(command, "orders:1", "--yes")
			}
			require.Equal(t, exitRefused, r.code)
			require.Contains(t, r.stderr, "settled already: sent")
		}
		require.Equal(t, "kept", b.lookup("orders:1").Record.Receipt.ProviderID)
		require.Equal(t, exitDone, b.run("forget", "orders:1", "--settled", "--yes").code)
		require.Nil(t, b.lookup("orders:1"))
	})
}

func TestDryRunChangesNothing(t *testing.T) {
	onEveryBed(t, func(t *testing.T, b *bed) {
		b.done("orders:1", unknown)
		was := b.lookup("orders:1")
		require.Equal(t, result{stdout: "would keep orders:1 as sent, for ever\n"}, b.run("resolve", "orders:1", "--dry-run", "--ttl", "never"))
		require.Equal(t, result{stdout: "would free orders:1, so that the next send under it goes\n"}, b.run("forget", "orders:1", "--dry-run"))
		require.Equal(t, exitDone, b.run("forget", "orders:1", "--dry-run", "--yes").code)
		require.Equal(t, was.Token, b.lookup("orders:1").Token)
	})
}

func TestItAsksBeforeItChanges(t *testing.T) {
	onEveryBed(t, func(t *testing.T, b *bed) {
		b.done("orders:1", unknown)
		for _, answer := range []string{"", "\n", "n\n", "no\n", "yess\n", "please\n"} {
			for _, command := range []string{"resolve", "forget"} {
				r := b.answers(answer).run(command, "orders:1")
				require.Equal(t, exitNotConfirmed, r.code, answer)
				require.Empty(t, r.stdout)
				require.Contains(t, r.stderr, "orders:1")
				require.Contains(t, r.stderr, "abc@example.com", "it shows what it is about")
				require.Contains(t, r.stderr, "[y/N] ")
				require.Contains(t, r.stderr, "nothing was changed")
				require.Equal(t, idemmail.StatusUnknown, b.lookup("orders:1").Record.Receipt.Status)
			}
		}
		r := b.answers("Y\n").run("resolve", "orders:1")
		require.Equal(t, exitDone, r.code, r.stderr)
		require.Contains(t, r.stderr, "Keep orders:1 as sent, for 24h0m0s? [y/N] ")
		require.Equal(t, idemmail.StatusSent, b.lookup("orders:1").Record.Receipt.Status)
		b.done("orders:2", unknown)
		require.Equal(t, exitDone, b.answers("yes").run("forget", "orders:2").code)
		require.Nil(t, b.lookup("orders:2"))
	})
}

// askedReader answers yes once something has happened.
type askedReader struct{ before func() }

func (r askedReader) Read(p []byte) (int, error) {
	r.before()
	return copy(p, "y\n"), nil
}

func TestARecordThatMovedOnIsLeftAlone(t *testing.T) {
	onEveryBed(t, func(t *testing.T, b *bed) {
		for _, command := range []string{"resolve", "forget"} {
			t.Run("settled while it asked, "+command, func(t *testing.T) {
				key := "orders:" + command
				b.done(key, unknown)
				b.stdin = askedReader{func() {
					require.NoError(t, b.store.Resolve(t.Context(), *b.lookup(key), &idemmail.Receipt{Status: idemmail.StatusSent, ProviderID: "other"}, time.Hour))
				}}
				r := b.run(command, key)
				require.Equal(t, exitRefused, r.code)
				require.Contains(t, r.stderr, "the record has changed since it was read")
				require.Equal(t, "other", b.lookup(key).Record.Receipt.ProviderID)
			})
			t.Run("renewed while it asked, "+command, func(t *testing.T) {
				key := "orders:renewed/" + command
				token := b.pending(key)
				b.age(20 * time.Minute)
				b.stdin = askedReader{func() { require.NoError(t, b.store.Renew(t.Context(), key, token, idemmail.NoExpiry)) }}
				r := b.run(command, key)
				require.Equal(t, exitRefused, r.code)
				e := b.lookup(key)
				require.Equal(t, token, e.Token)
				require.Equal(t, idemmail.StatePending, e.Record.State)
			})
		}
	})
}

func TestAnInterruptIsANo(t *testing.T) {
	b := redisBed(t)
	b.done("orders:1", unknown)
	ctx, cancel := context.WithCancel(t.Context())
	stdin, typing := io.Pipe()
	defer typing.Close() // ends the read that was left behind
	b.stdin = readerFunc(func(p []byte) (int, error) {
		cancel()
		return stdin.Read(p)
	})
	r := b.runContext(ctx, "forget", "orders:1")
	require.Equal(t, exitNotConfirmed, r.code)
	require.NotNil(t, b.lookup("orders:1"))
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func TestNothingHoldsTheKey(t *testing.T) {
	onEveryBed(t, func(t *testing.T, b *bed) {
		for _, command := range []string{"show", "resolve", "forget"} {
			r := b.run(command, "orders:1")
			require.Equal(t, result{code: exitNotFound, stderr: "idemmail: nothing holds orders:1\n"}, r)
		}
	})
}

func TestABadRecordIsLeftAlone(t *testing.T) {
	onEveryBed(t, func(t *testing.T, b *bed) {
		b.foreign("orders:1")
		for _, args := range [][]string{{"show"}, {"resolve", "--yes"}, {"forget", "--yes"}, {"forget", "--yes", "--settled"}} {
			r := b.run(append(args, "orders:1")...)
			require.Equal(t, exitBadRecord, r.code, args)
			require.Empty(t, r.stdout)
			require.Contains(t, r.stderr, "not a record")
		}
		_, err := b.store.Lookup(t.Context(), "orders:1")
		require.ErrorIs(t, err, idemmail.ErrBadRecord)
	})
}

func TestAKeyMustHaveANamespace(t *testing.T) {
	b := redisBed(t)
	for _, key := range []string{"", "order", ":order", "orders:", "orders:a\nb", "orders:\xff", "\x01:a"} {
		for _, command := range []string{"show", "resolve", "forget"} {
			r := b.run(command, key)
			require.Equal(t, exitUsage, r.code, "%s %q", command, key)
			require.Contains(t, r.stderr, "idemmail: ")
		}
	}
}
