package property

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/idemmail/idemmail"
)

// A crowdStore is the store as a process of a crowd has it: slow, with
// troubles, and out of reach after a crash. It notes what is truly done.
type crowdStore struct{ p *crowdProcess }

var errDead = fmt.Errorf("the process has crashed: %w", idemmail.ErrLeaseLost)

// call makes a call of the store, with the trouble that the dice say.
func (s crowdStore) call(ctx context.Context, method, key string, do func() error) error {
	p := s.p
	if p.isDead() {
		return errDead
	}
	dice := p.dice.throw(method + " " + p.name + key)
	if dice.IntN(4) == 0 {
		p.sleep(time.Duration(dice.IntN(500)) * time.Millisecond)
	}
	trouble := works
	if dice.IntN(100) < p.chance {
		trouble = []tap{errsBefore, errsAfter, hangsFirst, hangsLast, late, panics, exits}[dice.IntN(7)]
	}
	if p.isDead() {
		return errDead
	}
	if trouble != works {
		p.crowd.mu.Lock()
		p.failed[method], p.failed[method+" "+key] = true, true
		p.crowd.mu.Unlock()
	}
	if trouble == late { // whoever waits, and then it is done
		p.sleep(time.Duration(dice.IntN(int(lateness))))
		if p.isDead() {
			return errDead
		}
		return do()
	}
	err := suffer(ctx, trouble, do)
	if p.isDead() {
		return errDead
	}
	return err
}

func (s crowdStore) Reserve(ctx context.Context, key, fingerprint string, lease time.Duration) (token string, held *idemmail.Record, err error) {
	bare := strings.TrimPrefix(key, namespace+":")
	var h *hold
	err = s.call(ctx, "reserve", key, func() (err error) {
		token, held, err = s.p.mem.Reserve(context.WithoutCancel(ctx), key, fingerprint, lease)
		if token != "" {
			h = &hold{key: bare, process: s.p, began: time.Now(), since: time.Now()}
			s.p.crowd.mu.Lock()
			s.p.holds[token] = h
			s.p.crowd.mu.Unlock()
		}
		return err
	})
	if err != nil {
		return "", nil, err
	}
	if h != nil {
		s.p.crowd.mu.Lock()
		h.job, _ = ctx.Value(jobKey{}).(*job)
		s.p.crowd.mu.Unlock()
	}
	return token, held, nil
}

func (s crowdStore) Complete(ctx context.Context, key, token string, rec idemmail.Record, ttl time.Duration) error {
	return s.call(ctx, "complete", key, func() error {
		err := s.p.mem.Complete(context.WithoutCancel(ctx), key, token, rec, ttl)
		if err == nil {
			s.p.crowd.mu.Lock()
			defer s.p.crowd.mu.Unlock()
			if h := s.p.holds[token]; h.completed.IsZero() {
				h.completed, h.settled = time.Now(), time.Now()
				h.status = rec.Receipt.Status
			}
		}
		return err
	})
}

func (s crowdStore) Release(ctx context.Context, key, token string) error {
	return s.call(ctx, "release", key, func() error {
		err := s.p.mem.Release(context.WithoutCancel(ctx), key, token)
		if err == nil {
			s.p.crowd.mu.Lock()
			defer s.p.crowd.mu.Unlock()
			s.p.holds[token].released, s.p.holds[token].settled = true, time.Now()
		}
		return err
	})
}

func (s crowdStore) Renew(ctx context.Context, key, token string, lease time.Duration) error {
	return s.call(ctx, "renew", key, func() error {
		err := s.p.mem.Renew(context.WithoutCancel(ctx), key, token, lease)
		if err == nil {
			s.p.crowd.mu.Lock()
			defer s.p.crowd.mu.Unlock()
			s.p.holds[token].since = time.Now()
		}
		return err
	})
}
