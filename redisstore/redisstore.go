// Package redisstore keeps idempotency keys in Redis, for senders that run in
// many processes on many machines.
//
// # Servers
//
// Redis 7.0 or later, or Valkey: a single node, behind Sentinel, or a Cluster.
// Older servers refuse SET with NX and GET together, which is what a
// reservation is; a [Store] finds out about such a server, and about one that
// answers nil for a key that is held, before it reserves anything, and refuses
// it with an error that wraps [errors.ErrUnsupported]. A [redis.Ring] is
// refused too: it moves keys to other servers while one is down.
//
// Set maxmemory-policy to noeviction. Every other policy lets Redis drop
// reservations and receipts that are within their time, and then a message
// goes twice. A full server refuses new reservations with
// [idemmail.ErrStoreFull] instead.
//
// Redis replicates asynchronously: a failover can lose the newest
// reservations and receipts, whose messages may then go twice. A Complete
// whose reservation was lost keeps the receipt all the same.
//
// # Rights
//
// A user needs the commands SET, GET, DEL, PTTL, TIME, EVAL and EVALSHA on the
// keys that begin with KeyPrefix; for Unsettled also SCAN and GETRANGE, for
// [Store.Check] INFO. The first Reserve tries those that a send needs, on a key
// of its own that it removes at once, so that a missing right shows before a
// message is sent and not when its receipt is to be kept.
//
// # Clients
//
// A call returns soon after its context ends, however the client was
// configured. By default go-redis ignores deadlines while it reads, and it
// never notices a cancellation; the command is then left to a goroutine that
// ends when the client gives it up (ReadTimeout, MaxRetries). Set
// ContextTimeoutEnabled, so that connections are not held longer than
// contexts last, and never set ReadTimeout to none.
//
// A ClusterClient may need as long to find the replica that took over from a
// lost master as it waits before it looks again: 10 seconds, or 60 since
// go-redis v9.22. ClusterStateReloadInterval (since v9.21) sets that: one
// second is a better value.
package redisstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/internal/await"
)

// Options say how keys are kept. The zero value is fine.
type Options struct {
	// KeyPrefix stands in front of every key in Redis, so that different
	// things can share a database. Empty: keys are stored as they are given.
	// Within a Cluster, a prefix with a hash tag ("{mail}:") puts all keys on
	// one node, which is hardly ever wanted.
	KeyPrefix string
}

// Store is an [idemmail.Store] with all the optional interfaces. It is safe for
// concurrent use. It never closes its client.
//
// A Reserve, Complete, Release or Renew is one round trip, but for the first
// Reserve, which has one more (see the package comment); many keys in one call
// are one round trip per 500 of them, and per node of a Cluster. A script that
// a server does not have, after a restart or a failover, costs one more.
//
// Times are milliseconds or finer, in the server's time: the store keeps the
// offset of the server's clock from this process's monotonic one, and every
// answer of a script corrects it. Durations are rounded up to milliseconds;
// one beyond 9,223,372,036,854 ms (292 years, the largest that is a
// time.Duration in whole milliseconds) is rounded to that.
type Store struct {
	client  redis.UniversalClient
	prefix  string
	refused error // what is wrong with the client; nil: nothing
	clock   clock

	mu       sync.Mutex                  // makes preparations one at a time
	prepared atomic.Pointer[preparation] // the newest; nil: none, or one that failed
}

var (
	_ idemmail.Store      = (*Store)(nil)
	_ idemmail.BatchStore = (*Store)(nil)
	_ idemmail.Renewer    = (*Store)(nil)
	_ idemmail.Reconciler = (*Store)(nil)
)

// New returns a Store on a client: a [redis.Client] (also one that was made by
// [redis.NewFailoverClient]) or a [redis.ClusterClient], or a type that embeds
// one. It does not dial. With a client that no key can be entrusted to, every
// call answers an error that wraps [errors.ErrUnsupported].
func New(client redis.UniversalClient, opts Options) *Store {
	return &Store{client: client, prefix: opts.KeyPrefix, refused: refuse(client)}
}

// refuse says why a client cannot be used, or nil.
func refuse(client redis.UniversalClient) error {
	if client == nil {
		return fmt.Errorf("the client is nil: %w", errors.ErrUnsupported)
	}
	_, cluster := client.(clusterClient)
	if _, shards := client.(shardedClient); shards && !cluster {
		return fmt.Errorf("a redis.Ring moves keys to other servers while one is down: %w", errors.ErrUnsupported)
	}
	return nil
}

// clusterClient and shardedClient tell kinds of clients apart, also when they
// are embedded: a ClusterClient has both methods, a Ring the second.
type (
	clusterClient interface {
		ForEachMaster(context.Context, func(context.Context, *redis.Client) error) error
	}
	shardedClient interface {
		ForEachShard(context.Context, func(context.Context, *redis.Client) error) error
	}
)

// Reserve does what [idemmail.Store] says, with one SET NX GET. Where the
// server is out of memory the error wraps [idemmail.ErrStoreFull].
//
// After an error, Reserve frees what it may have taken all the same: it tries
// for up to five seconds, of which it waits for one at most before it returns.
// A key that could not be freed in that time stays reserved for its lease; one
// with NoExpiry, as under AtMostOnce, until an operator forgets it.
func (s *Store) Reserve(ctx context.Context, key, fingerprint string, lease time.Duration) (string, *idemmail.Record, error) {
	if s.refused != nil {
		return "", nil, failure("reserve", key, s.refused)
	}
	ttl, err := milliseconds(lease)
	if err != nil {
		return "", nil, failure("reserve", key, err)
	}
	if err := s.prepare(ctx, key); err != nil {
		return "", nil, failure("reserve", key, err)
	}

	c := s.claim(key, fingerprint, ttl)
	r, err := await.Call(ctx, func() reply {
		value, err := s.client.SetArgs(ctx, c.key, c.value, c.args).Result()
		return reply{value, err}
	}, func(late reply) {
		if c.mayHold(late) {
			s.free(ctx, []claim{c})
		}
	})
	if err != nil {
		return "", nil, failure("reserve", key, err)
	}
	result := s.judge(ctx, c, r)
	if result.Err != nil {
		if c.mayHold(r) {
			s.freeSoon(ctx, []claim{c})
		}
		return "", nil, failure("reserve", key, result.Err)
	}
	return result.Token, result.Held, nil
}

// A claim is a reservation that is about to be made.
type claim struct {
	key, token, value string
	args              redis.SetArgs
}

// A reply is what the server answered to one command.
type reply struct {
	value string
	err   error
}

func (s *Store) claim(key, fingerprint string, ttl int64) claim {
	token := rand.Text()
	return claim{
		key:   s.prefix + key,
		token: token,
		value: pendingValue(token, fingerprint, s.clock.now()),
		args:  redis.SetArgs{Mode: "NX", Get: true, TTL: time.Duration(ttl) * time.Millisecond},
	}
}

// mayHold reports whether the claim may have been taken: not where the server
// answered what else holds the key.
func (c claim) mayHold(r reply) bool {
	if r.err != nil {
		return !redis.HasErrorPrefix(r.err, "WRONGTYPE")
	}
	token, _, _, err := parse(r.value)
	return err == nil && token == c.token
}

// judge says what the answer to a claim means.
func (s *Store) judge(ctx context.Context, c claim, r reply) idemmail.ReserveResult {
	switch {
	case errors.Is(r.err, redis.Nil):
		return idemmail.ReserveResult{Token: c.token}
	case redis.HasErrorPrefix(r.err, "OOM"):
		return idemmail.ReserveResult{Err: fmt.Errorf("%w: %w", idemmail.ErrStoreFull, r.err)}
	case r.err != nil:
		return idemmail.ReserveResult{Err: explain(ctx, r.err)}
	}
	token, at, rec, err := parse(r.value)
	if err != nil {
		return idemmail.ReserveResult{Err: err}
	}
	if token == c.token {
		// The client repeated the command by itself: the answer to the one
		// that took the key was lost.
		return idemmail.ReserveResult{Token: token}
	}
	rec.Age = age(at, s.clock.now())
	return idemmail.ReserveResult{Held: &rec}
}

// Complete does what [idemmail.Store] says. It refuses a record that is not done
// or has no receipt. Where the server is out of memory the error does not wrap
// [idemmail.ErrStoreFull]: there may be room soon, and the receipt of a message
// that went is worth more tries.
func (s *Store) Complete(ctx context.Context, key, token string, rec idemmail.Record, ttl time.Duration) error {
	args, err := completeArgs(token, rec, ttl)
	if err != nil {
		return failure("complete", key, err)
	}
	return s.settle(ctx, complete, key, args)
}

// Release does what [idemmail.Store] says.
func (s *Store) Release(ctx context.Context, key, token string) error {
	return s.settle(ctx, release, key, freeArgs(token, idemmail.StatePending))
}

// Renew does what [idemmail.Renewer] says.
func (s *Store) Renew(ctx context.Context, key, token string, lease time.Duration) error {
	args, err := renewArgs(token, lease)
	if err != nil {
		return failure("renew", key, err)
	}
	return s.settle(ctx, renew, key, args)
}

// settle runs the script of an operation on one key.
func (s *Store) settle(ctx context.Context, op operation, key string, args []any) error {
	if s.refused != nil {
		return failure(op.name, key, s.refused)
	}
	r, err := await.Call(ctx, func() reply { return s.run(ctx, op.script, s.prefix+key, args) }, nil)
	if err == nil {
		err = op.judge(ctx, r)
	}
	if err != nil {
		return failure(op.name, key, err)
	}
	return nil
}

// failure names what was done to which key.
func failure(op, key string, err error) error {
	return fmt.Errorf("redisstore: %s %q: %w", op, key, err)
}
