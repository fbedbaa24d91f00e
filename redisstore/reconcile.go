package redisstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/internal/await"
)

// Lookup does what [idemmail.Reconciler] says. It reads from the master, in one
// round trip, by a script, whatever the client does with other reads.
func (s *Store) Lookup(ctx context.Context, key string) (*idemmail.Entry, error) {
	if s.refused != nil {
		return nil, failure("look up", key, s.refused)
	}
	a, err := await.Call(ctx, func() found {
		keys := []string{s.prefix + key}
		sent := time.Now()
		cmd := lookupScript.EvalSha(ctx, s.client, keys)
		if redis.HasErrorPrefix(cmd.Err(), "NOSCRIPT") {
			sent = time.Now()
			cmd = lookupScript.Eval(ctx, s.client, keys)
		}
		f := readFound(cmd)
		if f.err == nil {
			s.clock.learn(f.now, sent)
		}
		return f
	}, nil)
	if err == nil {
		err = a.err
	}
	if err != nil {
		return nil, failure("look up", key, explain(ctx, err))
	}
	e, err := a.entry(key)
	if err != nil {
		return nil, failure("look up", key, err)
	}
	return e, nil
}

// found is what lookup.lua answers.
type found struct {
	now   int64 // the server's time, in microseconds
	held  bool
	value string
	life  int64 // in milliseconds; negative: for ever
	err   error
}

func readFound(cmd *redis.Cmd) found {
	parts, err := cmd.Slice()
	if err != nil {
		return found{err: err}
	}
	var f found
	if len(parts) > 0 {
		text, _ := parts[0].(string)
		f.now, err = strconv.ParseInt(text, 10, 64)
	}
	if len(parts) > 1 {
		f.value, f.held = parts[1].(string)
	}
	if len(parts) > 2 {
		f.life, _ = parts[2].(int64)
	}
	if err != nil || len(parts) != 1 && (len(parts) != 3 || !f.held) {
		return found{err: errors.New("a script's answer has another form")}
	}
	return f
}

// entry decodes what was found; nil where nothing holds the key.
func (f found) entry(key string) (*idemmail.Entry, error) {
	if !f.held {
		return nil, nil
	}
	token, at, rec, err := parse(f.value)
	if err != nil {
		return nil, err
	}
	rec.Age = age(at, f.now)
	e := &idemmail.Entry{Key: key, Token: token, Record: rec}
	if f.life >= 0 {
		e.ExpiresAt = time.UnixMicro(f.now).Add(time.Duration(f.life) * time.Millisecond).UTC()
	}
	return e, nil
}

// Resolve does what [idemmail.Reconciler] says. A nil receipt stands for one
// of status sent and nothing else.
func (s *Store) Resolve(ctx context.Context, e idemmail.Entry, r *idemmail.Receipt, ttl time.Duration) error {
	if r == nil {
		r = &idemmail.Receipt{Status: idemmail.StatusSent}
	}
	if r.Status != idemmail.StatusSent {
		return failure("resolve", e.Key, fmt.Errorf("only a receipt of status sent resolves a key, not %q", r.Status))
	}
	args, err := resolveArgs(e, rand.Text(), r, ttl)
	if err != nil {
		return failure("resolve", e.Key, err)
	}
	return s.settle(ctx, resolve, e.Key, args)
}

// Forget does what [idemmail.Reconciler] says. One whose answer is lost, and
// which the client repeats by itself, answers ErrChanged though it freed the
// key.
func (s *Store) Forget(ctx context.Context, e idemmail.Entry) error {
	return s.settle(ctx, forget, e.Key, freeArgs(e.Token, e.Record.State))
}

// scanSize is how many keys a server is asked to look at in one step, and how
// many values are read in one: it serves others in between.
const scanSize = 100

// Unsettled does what [idemmail.Reconciler] says. It walks through the keys of
// every master with SCAN, in small steps, reads the first bytes of each value
// and the whole of those that are unsettled. Where a server resizes its table
// or a cluster moves slots meanwhile, a key may be listed twice.
func (s *Store) Unsettled(ctx context.Context, prefix string, olderThan time.Duration) iter.Seq2[idemmail.Entry, error] {
	return func(yield func(idemmail.Entry, error) bool) {
		fail := func(err error) { yield(idemmail.Entry{}, fmt.Errorf("redisstore: unsettled: %w", err)) }
		if s.refused != nil {
			fail(s.refused)
			return
		}
		masters, err := s.masters(ctx)
		if err != nil {
			fail(err)
			return
		}
		for _, m := range masters {
			l := listing{store: s, master: m, prefix: s.prefix + prefix, olderThan: olderThan}
			more, err := l.list(ctx, yield)
			if err != nil {
				fail(err)
			}
			if err != nil || !more {
				return
			}
		}
	}
}

// masters answers a client for each server that has keys.
func (s *Store) masters(ctx context.Context) ([]redis.Cmdable, error) {
	cluster, ok := s.client.(clusterClient)
	if !ok {
		return []redis.Cmdable{s.client}, nil
	}
	type result struct {
		masters []redis.Cmdable
		err     error
	}
	r, err := await.Call(ctx, func() (r result) {
		var mu sync.Mutex // ForEachMaster calls for all at once
		r.err = cluster.ForEachMaster(ctx, func(_ context.Context, master *redis.Client) error {
			mu.Lock()
			defer mu.Unlock()
			r.masters = append(r.masters, master)
			return nil
		})
		return r
	}, nil)
	if err != nil {
		return nil, err
	}
	if r.err != nil {
		return nil, explain(ctx, r.err)
	}
	return r.masters, nil
}

// A listing walks through the keys of one server.
type listing struct {
	store     *Store
	master    redis.Cmdable
	prefix    string // as Redis knows it
	olderThan time.Duration
}

// list yields what is unsettled, until yield wants no more or there is none.
func (l listing) list(ctx context.Context, yield func(idemmail.Entry, error) bool) (more bool, err error) {
	type page struct {
		keys   []string
		cursor uint64
		err    error
	}
	pattern := literal.Replace(l.prefix) + "*"
	for cursor := uint64(0); ; {
		p, err := await.Call(ctx, func() page {
			keys, next, err := l.master.Scan(ctx, cursor, pattern, scanSize).Result()
			return page{keys, next, err}
		}, nil)
		if err == nil {
			err = p.err
		}
		if err != nil {
			return false, explain(ctx, err)
		}
		for keys := range slices.Chunk(p.keys, scanSize) { // a server may answer more than it was asked for
			more, err := l.page(ctx, keys, yield)
			if err != nil || !more {
				return false, err
			}
		}
		if p.cursor == 0 {
			return true, nil
		}
		cursor = p.cursor
	}
}

// literal takes the meaning from what has one in a pattern of Redis.
var literal = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`)

// page yields what is unsettled among keys.
func (l listing) page(ctx context.Context, keys []string, yield func(idemmail.Entry, error) bool) (more bool, err error) {
	keys, err = l.candidates(ctx, keys)
	if err != nil || len(keys) == 0 {
		return err == nil, err
	}
	finds, err := await.Call(ctx, func() []found {
		calls := make([]call, len(keys))
		for i, key := range keys {
			calls[i].key = key
		}
		cmds, _ := l.store.pipeline(ctx, l.master, lookupScript, calls)
		finds := make([]found, len(cmds))
		for i, cmd := range cmds {
			finds[i] = readFound(cmd)
		}
		return finds
	}, nil)
	if err != nil {
		return false, err
	}
	for i, f := range finds {
		key := strings.TrimPrefix(keys[i], l.store.prefix)
		var e *idemmail.Entry
		err := f.err
		if err == nil {
			e, err = f.entry(key)
		} else {
			err = explain(ctx, err)
		}
		switch {
		case errors.Is(err, idemmail.ErrBadRecord):
			if !yield(idemmail.Entry{Key: key}, failure("unsettled", key, err)) {
				return false, nil
			}
		case err != nil:
			return false, err
		case e != nil && l.unsettled(e.Record.State, e.Record.Age, statusLetter(e.Record.Receipt)):
			if !yield(*e, nil) {
				return false, nil
			}
		}
	}
	return true, nil
}

// unsettled says what is listed.
func (l listing) unsettled(state idemmail.State, age time.Duration, status byte) bool {
	if state == idemmail.StatePending {
		return age >= l.olderThan
	}
	return status == 'u'
}

// candidates answers the keys whose whole values have to be read: the unsettled
// ones, and those that are no records, by the first bytes of each.
func (l listing) candidates(ctx context.Context, keys []string) ([]string, error) {
	type answer struct {
		replies []reply
		now     time.Time
		err     error
	}
	var ours []string
	for _, key := range keys {
		if strings.HasPrefix(key, l.prefix) && !strings.Contains(key, probeMark) {
			ours = append(ours, key)
		}
	}
	if len(ours) == 0 {
		return nil, nil
	}
	a, err := await.Call(ctx, func() answer {
		pipe := l.master.Pipeline()
		heads := make([]*redis.StringCmd, len(ours))
		cmds := make([]redis.Cmder, 0, len(ours)+1)
		for i, key := range ours {
			heads[i] = pipe.GetRange(ctx, key, 0, int64(atToken-1))
			cmds = append(cmds, heads[i])
		}
		now := pipe.Time(ctx)
		execute(ctx, pipe, append(cmds, now))
		a := answer{replies: make([]reply, len(ours))}
		a.now, a.err = now.Result()
		for i, cmd := range heads {
			a.replies[i].value, a.replies[i].err = cmd.Result()
		}
		return a
	}, nil)
	if err == nil {
		err = a.err
	}
	if err != nil {
		return nil, explain(ctx, err)
	}
	var read []string
	for i, r := range a.replies {
		if r.err != nil && !redis.HasErrorPrefix(r.err, "WRONGTYPE") {
			return nil, explain(ctx, r.err)
		}
		state, status, at, err := parseHead(r.value)
		if err != nil || l.unsettled(state, age(at, a.now.UnixMicro()), status) {
			read = append(read, ours[i])
		}
	}
	return read, nil
}
