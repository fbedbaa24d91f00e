package mongostore_test

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idemmail/idemmail"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

func TestLostAnswerToTheReserve(t *testing.T) {
	srv := server(t)
	p := newProxy(t, srv.URI)

	t.Run("its owner finds itself", func(t *testing.T) {
		s := newStore(collection(t, p.URI))
		reserve(t, s, "lost:warm", time.Minute)
		p.next("update", lose)
		token := reserve(t, s, "lost:key", time.Minute)
		require.Equal(t, 1, p.tampered())

		other, held, err := s.Reserve(t.Context(), "lost:key", "1:lost:key", time.Minute)
		require.NoError(t, err)
		require.Empty(t, other)
		require.Equal(t, idemmail.StatePending, held.State)
		require.NoError(t, s.Complete(t.Context(), "lost:key", token, sent("lost:key"), time.Hour))
	})

	t.Run("in a batch too, beside a held key", func(t *testing.T) {
		s := newStore(collection(t, p.URI))
		reserve(t, s, "lost:held", time.Minute)
		before := p.tampered()
		p.next("update", lose)
		results := s.ReserveMany(t.Context(), []idemmail.ReserveRequest{
			{Key: "lost:a", Fingerprint: "1:a", Lease: time.Minute},
			{Key: "lost:held", Fingerprint: "1:b", Lease: time.Minute},
			{Key: "lost:c", Fingerprint: "1:c", Lease: time.Minute},
		})
		require.Equal(t, before+1, p.tampered())
		for _, r := range results {
			require.NoError(t, r.Err)
		}
		require.NotEmpty(t, results[0].Token)
		require.NotEmpty(t, results[2].Token)
		require.Equal(t, "1:lost:held", results[1].Held.Fingerprint)
	})

	t.Run("and the reading of a held key: nothing is kept", func(t *testing.T) {
		coll := collection(t, p.URI, options.Client().SetRetryReads(false))
		s := newStore(coll)
		token := reserve(t, s, "lost:held", time.Minute)
		before := p.tampered()
		p.next("find", lose)
		_, _, err := s.Reserve(t.Context(), "lost:held", "1:x", time.Minute)
		require.Error(t, err)
		require.Equal(t, before+1, p.tampered())
		require.NoError(t, s.Renew(t.Context(), "lost:held", token, time.Minute), "the owner still has it")
	})

	t.Run("the driver repeats the write by itself", func(t *testing.T) {
		p := newProxy(t, srv.URI)
		p.replicaSet = true
		var r recorder
		s := newStore(collection(t, p.URI+"/?replicaSet=rs", options.Client().SetMonitor(r.monitor())))
		reserve(t, s, "lost:warm", time.Minute)
		r.take()
		p.next("update", lose)
		token := reserve(t, s, "lost:own", time.Minute)
		require.Equal(t, []string{"update", "update", "find"}, names(r.take()), "the second finds the first")
		p.next("update", lose)
		require.NoError(t, s.Complete(t.Context(), "lost:own", token, sent("x"), time.Minute))
		require.Equal(t, []string{"update", "update"}, names(r.take()))
		require.Equal(t, 2, p.tampered())
	})

	for _, end := range []string{"cancel", "deadline"} {
		t.Run("the context ends meanwhile: the key is freed, "+end, func(t *testing.T) {
			coll := collection(t, p.URI)
			s := newStore(coll)
			reserve(t, s, "lost:warm", time.Minute)
			before := p.tampered()
			p.next("update", hang)
			ctx, cancel := context.WithCancel(t.Context())
			if end == "deadline" {
				ctx, cancel = context.WithTimeout(t.Context(), 200*time.Millisecond)
			}
			defer cancel()
			go func() {
				for p.tampered() == before {
					time.Sleep(time.Millisecond)
				}
				if end == "cancel" {
					cancel()
				}
			}()
			token, held, err := s.Reserve(ctx, "lost:key", "1:x", time.Minute)
			require.ErrorIs(t, err, ctx.Err())
			require.Error(t, ctx.Err())
			require.Empty(t, token)
			require.Nil(t, held)
			require.Nil(t, stored(t, coll, "lost:key"), "freed under its own token")
		})
	}
}

func TestLostAnswerToTheComplete(t *testing.T) {
	p := newProxy(t, server(t).URI)
	s := newStore(collection(t, p.URI))
	token := reserve(t, s, "lost:key", time.Minute)
	p.next("update", lose)
	require.Error(t, s.Complete(t.Context(), "lost:key", token, sent("lost:key"), time.Hour))
	require.Equal(t, 1, p.tampered())
	require.NoError(t, s.Complete(t.Context(), "lost:key", token, sent("lost:key"), time.Hour), "again under the same token")

	_, held, err := s.Reserve(t.Context(), "lost:key", "1:x", time.Minute)
	require.NoError(t, err)
	require.Equal(t, "lost:key", held.Receipt.ProviderID)
}

func TestLostAnswerToTheRelease(t *testing.T) {
	p := newProxy(t, server(t).URI)
	s := newStore(collection(t, p.URI))
	token := reserve(t, s, "lost:key", time.Minute)
	p.next("delete", lose)
	require.Error(t, s.Release(t.Context(), "lost:key", token))
	require.NoError(t, s.Release(t.Context(), "lost:key", token), "again: nothing holds it")
	reserve(t, s, "lost:key", time.Minute)
}

// A write that the majority has not confirmed may be rolled back: it is none.
func TestWriteThatTheMajorityDoesNotConfirm(t *testing.T) {
	p := newProxy(t, server(t).URI)
	coll := collection(t, p.URI)
	s := newStore(coll)
	ctx := t.Context()
	doubt := withFields(bson.E{Key: "writeConcernError", Value: bson.D{
		{Key: "code", Value: int32(64)}, {Key: "codeName", Value: "WriteConcernTimeout"}, {Key: "errmsg", Value: "waiting for replication timed out"}}})
	held := reserve(t, s, "doubt:held", time.Minute)

	p.next("update", doubt)
	token, record, err := s.Reserve(ctx, "doubt:key", "1:x", time.Minute)
	require.Error(t, err)
	require.Empty(t, token)
	require.Nil(t, record)
	require.Nil(t, stored(t, coll, "doubt:key"), "freed")

	p.next("update", doubt)
	results := s.ReserveMany(ctx, []idemmail.ReserveRequest{
		{Key: "doubt:held", Fingerprint: "1:x", Lease: time.Minute},
		{Key: "doubt:key", Fingerprint: "1:x", Lease: time.Minute},
	})
	require.NotNil(t, results[0].Held)
	require.Error(t, results[1].Err)
	require.Nil(t, stored(t, coll, "doubt:key"), "freed")
	require.NotNil(t, stored(t, coll, "doubt:held"))

	p.next("update", doubt)
	require.Error(t, s.Complete(ctx, "doubt:held", held, sent("x"), time.Minute))
	require.NoError(t, s.Complete(ctx, "doubt:held", held, sent("x"), time.Minute))
	require.Equal(t, 3, p.tampered())
}

// Some services report a collision as the failure of the whole command.
func TestCollisionAsTheCommandsOwnError(t *testing.T) {
	p := newProxy(t, server(t).URI)
	coll := collection(t, p.URI)
	s := newStore(coll)
	token := reserve(t, s, "whole:key", time.Minute)
	whole := func(bson.Raw, net.Conn) (bson.Raw, bool) {
		raw, err := bson.Marshal(bson.D{{Key: "ok", Value: 0}, {Key: "code", Value: int32(11000)},
			{Key: "codeName", Value: "DuplicateKey"}, {Key: "errmsg", Value: "E11000 duplicate key error"}})
		return raw, err == nil
	}
	p.next("update", whole)
	_, held, err := s.Reserve(t.Context(), "whole:key", "1:x", time.Minute)
	require.NoError(t, err)
	require.NotNil(t, held)
	p.next("update", whole)
	require.ErrorIs(t, s.Complete(t.Context(), "whole:key", "another", sent("x"), time.Minute), idemmail.ErrLeaseLost)
	require.NoError(t, s.Complete(t.Context(), "whole:key", token, sent("x"), time.Minute))
	require.Equal(t, 2, p.tampered())
}

// A whole send through a proxy that loses an answer: one send each, no key stuck.
func TestSendWithALostAnswer(t *testing.T) {
	p := newProxy(t, server(t).URI)
	for _, which := range []string{"reserve", "complete"} {
		t.Run(which, func(t *testing.T) {
			s := newStore(collection(t, p.URI))
			var sends atomic.Int32
			guard, err := idemmail.NewGuard(idemmail.Options{Store: s, Namespace: "lost"})
			require.NoError(t, err)
			send := func(context.Context) (*idemmail.Receipt, error) {
				sends.Add(1)
				if which == "complete" {
					p.next("update", lose)
				}
				return &idemmail.Receipt{Status: idemmail.StatusSent, ProviderID: which}, nil
			}
			reserve(t, s, "lost:warm", time.Minute)
			before := p.tampered()
			if which == "reserve" {
				p.next("update", lose)
			}
			for i := range 3 {
				receipt, err := guard.Do(t.Context(), "key", "f", send)
				require.NoError(t, err)
				require.Equal(t, which, receipt.ProviderID)
				require.Equal(t, i > 0, receipt.Replayed)
			}
			require.EqualValues(t, 1, sends.Load())
			require.Equal(t, before+1, p.tampered())
		})
	}
}
