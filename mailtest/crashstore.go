package mailtest

import (
	"context"
	"time"

	"github.com/idemmail/idemmail"
)

// wrap stands between a process and its store: it counts steps, and lets
// nothing through once the process has crashed. It has the abilities of the
// store that idemmail asks for when it sends.
func (p *process) wrap(store idemmail.Store) idemmail.Store {
	s := crashStore{p, store}
	renewer, ok := store.(idemmail.Renewer)
	if !ok {
		return s
	}
	r := crashRenewer{s, renewer}
	if batch, ok := store.(idemmail.BatchStore); ok {
		return crashBatch{r, batch}
	}
	return r
}

type crashStore struct {
	p     *process
	store idemmail.Store
}

// bare is a key without the namespace.
func (p *process) bare(key string) string { return key[len(p.run.namespace)+1:] }

func (s crashStore) Reserve(ctx context.Context, key, fingerprint string, lease time.Duration) (token string, held *idemmail.Record, err error) {
	bare := s.p.bare(key)
	s.p.gather(ctx, bare)
	if err := s.p.step("reserves " + bare); err != nil {
		return "", nil, err
	}
	began := s.p.run.moment()
	token, held, err = s.store.Reserve(ctx, key, fingerprint, lease)
	s.p.run.reserved(s.p, bare, began, idemmail.ReserveResult{Token: token, Held: held, Err: err})
	found := "has reserved "
	if held != nil {
		found = "finds " + string(held.State) + " "
	}
	if err := s.p.step(found + bare); err != nil {
		return "", nil, err
	}
	return token, held, err
}

func (s crashStore) Complete(ctx context.Context, key, token string, rec idemmail.Record, ttl time.Duration) error {
	return s.settle("completes ", "has completed ", key, func() error { return s.store.Complete(ctx, key, token, rec, ttl) })
}

func (s crashStore) Release(ctx context.Context, key, token string) error {
	return s.settle("releases ", "has released ", key, func() error { return s.store.Release(ctx, key, token) })
}

func (s crashStore) settle(before, after, key string, do func() error) error {
	bare := s.p.bare(key)
	if err := s.p.step(before + bare); err != nil {
		return err
	}
	err := do()
	s.p.run.settled(s.p, bare, err)
	if err := s.p.step(after + bare); err != nil {
		return err
	}
	return err
}

// gather waits where a crowd reserves at the same time.
func (p *process) gather(ctx context.Context, key string) {
	if g := p.gates[key]; g != nil {
		g.pass(ctx, p)
	}
}

type crashRenewer struct {
	crashStore
	renewer idemmail.Renewer
}

// Renew is no step: it comes by the clock, not in the order of things.
func (s crashRenewer) Renew(ctx context.Context, key, token string, lease time.Duration) error {
	if s.p.crashed() {
		return errCrashed
	}
	began := s.p.run.moment()
	err := s.renewer.Renew(ctx, key, token, lease)
	s.p.run.renewed(s.p, s.p.bare(key), began, err)
	return err
}

// crashBatch lets a process crash in the middle of a call: of the requests
// then, those before it are carried out.
type crashBatch struct {
	crashRenewer
	batch idemmail.BatchStore
}

func (s crashBatch) ReserveMany(ctx context.Context, reqs []idemmail.ReserveRequest) []idemmail.ReserveResult {
	for _, r := range reqs {
		s.p.gather(ctx, s.p.bare(r.Key))
	}
	n, err := steps(s.p, "reserves ", reqs, func(r idemmail.ReserveRequest) string { return r.Key })
	if err != nil {
		ctx = context.WithoutCancel(ctx) // what came before the crash was on its way
	}
	var results []idemmail.ReserveResult
	if n > 0 {
		began := s.p.run.moment()
		results = s.batch.ReserveMany(ctx, reqs[:n])
		for i := range min(n, len(results)) {
			s.p.run.reserved(s.p, s.p.bare(reqs[i].Key), began, results[i])
		}
	}
	if err == nil {
		err = s.p.step("has reserved all")
	}
	if err != nil {
		results = make([]idemmail.ReserveResult, len(reqs))
		for i := range results {
			results[i].Err = err
		}
	}
	return results
}

func (s crashBatch) CompleteMany(ctx context.Context, reqs []idemmail.CompleteRequest) []error {
	return settleMany(s.p, "completes ", "has completed all", reqs,
		func(r idemmail.CompleteRequest) string { return r.Key },
		func(reqs []idemmail.CompleteRequest) []error { return s.batch.CompleteMany(ctx, reqs) })
}

func (s crashBatch) ReleaseMany(ctx context.Context, reqs []idemmail.ReleaseRequest) []error {
	return settleMany(s.p, "releases ", "has released all", reqs,
		func(r idemmail.ReleaseRequest) string { return r.Key },
		func(reqs []idemmail.ReleaseRequest) []error { return s.batch.ReleaseMany(ctx, reqs) })
}

func (s crashBatch) RenewMany(ctx context.Context, reqs []idemmail.RenewRequest) []error {
	errs := make([]error, len(reqs))
	if s.p.crashed() {
		return fill(errs, errCrashed)
	}
	began := s.p.run.moment()
	errs = s.batch.RenewMany(ctx, reqs)
	for i := range min(len(reqs), len(errs)) {
		s.p.run.renewed(s.p, s.p.bare(reqs[i].Key), began, errs[i])
	}
	return errs
}

// steps takes a step before each request, and answers how many requests come
// before a crash.
func steps[T any](p *process, what string, reqs []T, key func(T) string) (n int, err error) {
	for i, r := range reqs {
		if err := p.step(what + p.bare(key(r))); err != nil {
			return i, err
		}
	}
	return len(reqs), nil
}

func settleMany[T any](p *process, before, after string, reqs []T, key func(T) string, do func([]T) []error) []error {
	n, err := steps(p, before, reqs, key)
	var errs []error
	if n > 0 {
		errs = do(reqs[:n])
	}
	for i := range min(n, len(errs)) {
		p.run.settled(p, p.bare(key(reqs[i])), errs[i])
	}
	if err == nil {
		err = p.step(after)
	}
	if err != nil {
		return fill(make([]error, len(reqs)), err)
	}
	return errs
}

func fill(errs []error, err error) []error {
	for i := range errs {
		errs[i] = err
	}
	return errs
}
