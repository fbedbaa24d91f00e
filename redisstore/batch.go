package redisstore

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/internal/await"
)

// pipelineSize is how many commands go to the server at once. go-redis splits
// them by node.
const pipelineSize = 500

// ReserveMany does what [idemmail.BatchStore] says, in one round trip per 500
// keys. What [Store.Reserve] says of errors holds for each key.
func (s *Store) ReserveMany(ctx context.Context, reqs []idemmail.ReserveRequest) []idemmail.ReserveResult {
	results := make([]idemmail.ReserveResult, len(reqs))
	var indexes []int // of the requests that are in order
	var ttls []int64
	for i, r := range reqs {
		ttl, err := milliseconds(r.Lease)
		if s.refused != nil {
			err = s.refused
		}
		if err != nil {
			results[i].Err = failure("reserve", r.Key, err)
			continue
		}
		indexes = append(indexes, i)
		ttls = append(ttls, ttl)
	}
	if len(indexes) == 0 {
		return results
	}
	if err := s.prepare(ctx, reqs[indexes[0]].Key); err != nil {
		for _, i := range indexes {
			results[i].Err = failure("reserve", reqs[i].Key, err)
		}
		return results
	}
	for len(indexes) > 0 {
		n := min(len(indexes), pipelineSize)
		claims := make([]claim, n)
		for j, i := range indexes[:n] {
			claims[j] = s.claim(reqs[i].Key, reqs[i].Fingerprint, ttls[j])
		}
		for j, r := range s.reserve(ctx, claims) {
			i := indexes[j]
			if r.Err != nil {
				r.Err = failure("reserve", reqs[i].Key, r.Err)
			}
			results[i] = r
		}
		indexes, ttls = indexes[n:], ttls[n:]
	}
	return results
}

// reserve makes claims in one pipeline.
func (s *Store) reserve(ctx context.Context, claims []claim) []idemmail.ReserveResult {
	results := make([]idemmail.ReserveResult, len(claims))
	replies, err := await.Call(ctx, func() []reply {
		pipe := s.client.Pipeline()
		cmds := make([]*redis.StatusCmd, len(claims))
		for i, c := range claims {
			cmds[i] = pipe.SetArgs(ctx, c.key, c.value, c.args)
		}
		execute(ctx, pipe, cmds)
		replies := make([]reply, len(claims))
		for i, cmd := range cmds {
			replies[i].value, replies[i].err = cmd.Result()
		}
		return replies
	}, func(late []reply) {
		s.free(ctx, doubtful(claims, late))
	})
	if err != nil {
		for i := range results {
			results[i].Err = err
		}
		return results
	}
	var failed []claim
	for i, r := range replies {
		results[i] = s.judge(ctx, claims[i], r)
		if results[i].Err != nil && claims[i].mayHold(r) {
			failed = append(failed, claims[i])
		}
	}
	s.freeSoon(ctx, failed)
	return results
}

// doubtful answers the claims that may have been taken.
func doubtful(claims []claim, replies []reply) []claim {
	var d []claim
	for i, c := range claims {
		if c.mayHold(replies[i]) {
			d = append(d, c)
		}
	}
	return d
}

// CompleteMany does what [idemmail.BatchStore] says, in one round trip per 500
// keys.
func (s *Store) CompleteMany(ctx context.Context, reqs []idemmail.CompleteRequest) []error {
	return settleMany(ctx, s, complete, reqs, func(r idemmail.CompleteRequest) (string, []any, error) {
		args, err := completeArgs(r.Token, r.Record, r.TTL)
		return r.Key, args, err
	})
}

// ReleaseMany does what [idemmail.BatchStore] says, in one round trip per 500
// keys.
func (s *Store) ReleaseMany(ctx context.Context, reqs []idemmail.ReleaseRequest) []error {
	return settleMany(ctx, s, release, reqs, func(r idemmail.ReleaseRequest) (string, []any, error) {
		return r.Key, freeArgs(r.Token, idemmail.StatePending), nil
	})
}

// RenewMany does what [idemmail.BatchStore] says, in one round trip per 500
// keys.
func (s *Store) RenewMany(ctx context.Context, reqs []idemmail.RenewRequest) []error {
	return settleMany(ctx, s, renew, reqs, func(r idemmail.RenewRequest) (string, []any, error) {
		args, err := renewArgs(r.Token, r.Lease)
		return r.Key, args, err
	})
}

// A call is one run of a script.
type call struct {
	key  string // as Redis knows it
	args []any
}

// settleMany runs the script of an operation on the key of each request.
func settleMany[R any](ctx context.Context, s *Store, op operation, reqs []R, prepare func(R) (key string, args []any, err error)) []error {
	errs := make([]error, len(reqs))
	var indexes []int // of the requests that are in order
	var calls []call
	keys := make([]string, len(reqs))
	for i, r := range reqs {
		key, args, err := prepare(r)
		if s.refused != nil {
			err = s.refused
		}
		keys[i] = key
		if err != nil {
			errs[i] = failure(op.name, key, err)
			continue
		}
		indexes = append(indexes, i)
		calls = append(calls, call{s.prefix + key, args})
	}
	for j, r := range s.runMany(ctx, op.script, calls) {
		i := indexes[j]
		if err := op.judge(ctx, r); err != nil {
			errs[i] = failure(op.name, keys[i], err)
		}
	}
	return errs
}

// runMany runs a script on many keys, in one round trip per pipeline, in two
// where a server does not have it.
func (s *Store) runMany(ctx context.Context, script *redis.Script, calls []call) []reply {
	replies := make([]reply, 0, len(calls))
	for chunk := range slices.Chunk(calls, pipelineSize) {
		answers, err := await.Call(ctx, func() []reply {
			cmds, sent := s.pipeline(ctx, s.client, script, chunk)
			answers := make([]reply, len(cmds))
			for i, cmd := range cmds {
				answers[i] = s.read(cmd, sent)
			}
			return answers
		}, nil)
		if err != nil {
			answers = slices.Repeat([]reply{{err: err}}, len(chunk))
		}
		replies = append(replies, answers...)
	}
	return replies
}

// pipeline runs a script on keys in one pipeline, and again, by its source, for
// those whose server did not have it. It answers the commands, each with its
// own answer or error, and when the last pipeline was sent.
func (s *Store) pipeline(ctx context.Context, client redis.Cmdable, script *redis.Script, calls []call) ([]*redis.Cmd, time.Time) {
	cmds := make([]*redis.Cmd, len(calls))
	pipe, sent := client.Pipeline(), time.Now()
	for i, c := range calls {
		cmds[i] = script.EvalSha(ctx, pipe, []string{c.key}, c.args...)
	}
	execute(ctx, pipe, cmds)

	var again []*redis.Cmd
	pipe = client.Pipeline()
	for i, c := range calls {
		if redis.HasErrorPrefix(cmds[i].Err(), "NOSCRIPT") {
			cmds[i] = script.Eval(ctx, pipe, []string{c.key}, c.args...)
			again = append(again, cmds[i])
		}
	}
	if len(again) > 0 {
		s.unprepare()
		sent = time.Now()
		execute(ctx, pipe, again)
	}
	return cmds, sent
}

// execute sends a pipeline. Exec's error is that of the first command that has
// one; but where nothing could be sent, go-redis v9.7 says so there alone: then
// it is the error of each.
func execute[C redis.Cmder](ctx context.Context, pipe redis.Pipeliner, cmds []C) {
	_, err := pipe.Exec(ctx)
	if err == nil || slices.ContainsFunc(cmds, func(c C) bool { return c.Err() != nil }) {
		return
	}
	for _, c := range cmds {
		c.SetErr(err)
	}
}

const (
	freeTimeout    = 5 * time.Second       // how long the freeing of a failed claim goes on
	freeWait       = time.Second           // how much of that its caller waits for
	firstFreePause = 50 * time.Millisecond // between two tries; doubled each time
	maxFreePause   = 500 * time.Millisecond
)

// freeSoon frees claims that failed and may have been taken all the same. It
// waits for that a little, so that mostly the keys are free when it returns.
func (s *Store) freeSoon(ctx context.Context, claims []claim) {
	if len(claims) == 0 {
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.free(ctx, claims)
	}()
	select {
	case <-done:
	case <-ctx.Done():
	case <-time.After(freeWait):
	}
}

// free frees claims, best effort and bounded, whether or not ctx has ended. The
// tokens, which nobody else has, fence it: another's reservation stays.
func (s *Store) free(ctx context.Context, claims []claim) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), freeTimeout)
	defer cancel()
	for pause := firstFreePause; ; pause = min(2*pause, maxFreePause) {
		calls := make([]call, len(claims))
		for i, c := range claims {
			calls[i] = call{c.key, freeArgs(c.token, idemmail.StatePending)}
		}
		var left []claim
		for i, r := range s.runMany(ctx, freeScript, calls) {
			if r.err != nil && !hopeless(r.err) {
				left = append(left, claims[i])
			}
		}
		if claims = left; len(claims) == 0 {
			return
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}

// hopeless reports whether to try again cannot help.
func hopeless(err error) bool {
	return errors.Is(err, redis.ErrClosed) || redis.HasErrorPrefix(err, "WRONGTYPE") || redis.HasErrorPrefix(err, "NOPERM")
}
