package redisstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/internal/await"
)

const (
	// probeMark stands between a key and a token in the key of a probe. Keys
	// have no control characters, so it is nobody's.
	probeMark = "\x00idemmail-probe-"

	// probeLife ends the key of a probe that was cut short.
	probeLife = 10 * time.Second

	// prepareTimeout bounds a preparation, which outlives the call that began
	// it, since others wait for it too.
	prepareTimeout = 5 * time.Second
)

// A preparation is one probing of the server, shared by all who need it.
type preparation struct {
	done chan struct{} // closed when err is set
	err  error
}

// prepare makes sure that the server was found fit for reservations, before the
// first is made. One that was not is asked again by the next Reserve.
func (s *Store) prepare(ctx context.Context, key string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	p := s.preparation(ctx, key)
	select {
	case <-p.done:
		return p.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// preparation answers the one that counts, and begins it where there is none.
func (s *Store) preparation(ctx context.Context, key string) *preparation {
	if p := s.prepared.Load(); p != nil {
		return p
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.prepared.Load(); p != nil {
		return p
	}
	p := &preparation{done: make(chan struct{})}
	s.prepared.Store(p)
	go func() {
		defer close(p.done)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), prepareTimeout)
		defer cancel()
		if p.err = s.probe(ctx, s.prefix+key); p.err != nil {
			s.prepared.CompareAndSwap(p, nil)
		}
	}()
	return p
}

// unprepare has the next Reserve prepare anew: a server without the scripts is
// another one, or was started again.
func (s *Store) unprepare() {
	if p := s.prepared.Load(); p != nil {
		select {
		case <-p.done:
			s.prepared.CompareAndSwap(p, nil)
		default: // under way
		}
	}
}

// probe tries all that a send needs, on a key of its own beside the given one,
// and removes it: that SET NX GET takes a free key and shows a held one, that
// the scripts run and may do what they do. It loads the scripts and learns the
// server's time. It is one pipeline, so one round trip.
func (s *Store) probe(ctx context.Context, key string) error {
	token := rand.Text()
	key += probeMark + token
	args, err := probeArgs(token)
	if err != nil {
		return fmt.Errorf("prepare: %w", err)
	}
	o, err := await.Call(ctx, func() outcome {
		value, set := pendingValue(token, "", 0), redis.SetArgs{Mode: "NX", Get: true, TTL: probeLife}
		keys := []string{key}
		sent := time.Now()
		pipe := s.client.Pipeline()
		taken := pipe.SetArgs(ctx, key, value, set)
		held := pipe.SetArgs(ctx, key, value, set)
		lookup := lookupScript.Eval(ctx, pipe, keys)
		scripts := []*redis.Cmd{
			renewScript.Eval(ctx, pipe, keys, args.renew...),
			completeScript.Eval(ctx, pipe, keys, args.complete...),
			resolveScript.Eval(ctx, pipe, keys, args.resolve...),
			freeScript.Eval(ctx, pipe, keys, args.free...),
			freeScript.EvalSha(ctx, pipe, keys, args.free...),
		}
		cmds := []redis.Cmder{taken, held, lookup}
		for _, cmd := range scripts {
			cmds = append(cmds, cmd)
		}
		execute(ctx, pipe, cmds)

		o := outcome{taken: taken.Err(), scripts: lookup.Err()}
		o.held.value, o.held.err = held.Result()
		for _, cmd := range scripts {
			if o.scripts == nil {
				o.scripts = s.read(cmd, sent).err
			}
		}
		return o
	}, nil)
	if err == nil {
		err = o.judge(ctx, token)
	}
	if err != nil {
		return fmt.Errorf("prepare: %w", err)
	}
	return nil
}

// probeArgs are the arguments of the scripts of a probe.
func probeArgs(token string) (args struct{ renew, complete, resolve, free []any }, err error) {
	record := idemmail.Record{State: idemmail.StateDone, Receipt: &idemmail.Receipt{Status: idemmail.StatusSent}}
	entry := idemmail.Entry{Token: token, Record: record}
	var errs [3]error
	args.renew, errs[0] = renewArgs(token, probeLife)
	args.complete, errs[1] = completeArgs(token, record, probeLife)
	args.resolve, errs[2] = resolveArgs(entry, token, record.Receipt, probeLife)
	args.free = freeArgs(token, record.State)
	return args, errors.Join(errs[:]...)
}

// An outcome is what a probe was answered.
type outcome struct {
	taken   error // of the SET that takes the key
	held    reply // to the SET that finds it held
	scripts error // the first of one
}

// judge says what is wrong with the server. The client may have repeated the
// pipeline by itself, so the first SET may have found the probe's own record,
// and the scripts may have found it in any state.
func (o outcome) judge(ctx context.Context, token string) error {
	for _, err := range []error{o.taken, o.held.err} {
		switch {
		case err == nil, errors.Is(err, redis.Nil):
		case redis.HasErrorPrefix(err, "syntax error"):
			return fmt.Errorf("the server refuses SET with NX and GET, Redis 7.0 or later or Valkey is needed: %w: %w", errors.ErrUnsupported, err)
		default:
			return explain(ctx, err)
		}
	}
	if holder, _, _, err := parse(o.held.value); err != nil || holder != token {
		return fmt.Errorf("the server, or a proxy before it, does not answer SET with NX and GET with what holds the key: %w", errors.ErrUnsupported)
	}
	if o.scripts != nil {
		return explain(ctx, o.scripts)
	}
	return nil
}
