package storetest_test

import (
	"context"
	"iter"
	"time"

	"github.com/idemmail/idemmail"
)

// overrides has other methods where they are set.
type overrides struct {
	*refStore
	reserve   func(s *refStore, ctx context.Context, key, fingerprint string, lease time.Duration) (string, *idemmail.Record, error)
	complete  func(s *refStore, ctx context.Context, key, token string, rec idemmail.Record, ttl time.Duration) error
	release   func(s *refStore, ctx context.Context, key, token string) error
	renew     func(s *refStore, ctx context.Context, key, token string, lease time.Duration) error
	lookup    func(s *refStore, ctx context.Context, key string) (*idemmail.Entry, error)
	unsettled func(s *refStore, ctx context.Context, prefix string, olderThan time.Duration) iter.Seq2[idemmail.Entry, error]
	resolve   func(s *refStore, ctx context.Context, e idemmail.Entry, r *idemmail.Receipt, ttl time.Duration) error
	forget    func(s *refStore, ctx context.Context, e idemmail.Entry) error

	reserveMany  func(s *refStore, ctx context.Context, reqs []idemmail.ReserveRequest) []idemmail.ReserveResult
	completeMany func(s *refStore, ctx context.Context, reqs []idemmail.CompleteRequest) []error
	releaseMany  func(s *refStore, ctx context.Context, reqs []idemmail.ReleaseRequest) []error
	renewMany    func(s *refStore, ctx context.Context, reqs []idemmail.RenewRequest) []error
}

func (o *overrides) Reserve(ctx context.Context, key, fingerprint string, lease time.Duration) (string, *idemmail.Record, error) {
	if o.reserve != nil {
		return o.reserve(o.refStore, ctx, key, fingerprint, lease)
	}
	return o.refStore.Reserve(ctx, key, fingerprint, lease)
}

func (o *overrides) Complete(ctx context.Context, key, token string, rec idemmail.Record, ttl time.Duration) error {
	if o.complete != nil {
		return o.complete(o.refStore, ctx, key, token, rec, ttl)
	}
	return o.refStore.Complete(ctx, key, token, rec, ttl)
}

func (o *overrides) Release(ctx context.Context, key, token string) error {
	if o.release != nil {
		return o.release(o.refStore, ctx, key, token)
	}
	return o.refStore.Release(ctx, key, token)
}

func (o *overrides) Renew(ctx context.Context, key, token string, lease time.Duration) error {
	if o.renew != nil {
		return o.renew(o.refStore, ctx, key, token, lease)
	}
	return o.refStore.Renew(ctx, key, token, lease)
}

func (o *overrides) Lookup(ctx context.Context, key string) (*idemmail.Entry, error) {
	if o.lookup != nil {
		return o.lookup(o.refStore, ctx, key)
	}
	return o.refStore.Lookup(ctx, key)
}

func (o *overrides) Unsettled(ctx context.Context, prefix string, olderThan time.Duration) iter.Seq2[idemmail.Entry, error] {
	if o.unsettled != nil {
		return o.unsettled(o.refStore, ctx, prefix, olderThan)
	}
	return o.refStore.Unsettled(ctx, prefix, olderThan)
}

func (o *overrides) Resolve(ctx context.Context, e idemmail.Entry, r *idemmail.Receipt, ttl time.Duration) error {
	if o.resolve != nil {
		return o.resolve(o.refStore, ctx, e, r, ttl)
	}
	return o.refStore.Resolve(ctx, e, r, ttl)
}

func (o *overrides) Forget(ctx context.Context, e idemmail.Entry) error {
	if o.forget != nil {
		return o.forget(o.refStore, ctx, e)
	}
	return o.refStore.Forget(ctx, e)
}

func (o *overrides) ReserveMany(ctx context.Context, reqs []idemmail.ReserveRequest) []idemmail.ReserveResult {
	if o.reserveMany != nil {
		return o.reserveMany(o.refStore, ctx, reqs)
	}
	return o.refStore.ReserveMany(ctx, reqs)
}

func (o *overrides) CompleteMany(ctx context.Context, reqs []idemmail.CompleteRequest) []error {
	if o.completeMany != nil {
		return o.completeMany(o.refStore, ctx, reqs)
	}
	return o.refStore.CompleteMany(ctx, reqs)
}

func (o *overrides) ReleaseMany(ctx context.Context, reqs []idemmail.ReleaseRequest) []error {
	if o.releaseMany != nil {
		return o.releaseMany(o.refStore, ctx, reqs)
	}
	return o.refStore.ReleaseMany(ctx, reqs)
}

func (o *overrides) RenewMany(ctx context.Context, reqs []idemmail.RenewRequest) []error {
	if o.renewMany != nil {
		return o.renewMany(o.refStore, ctx, reqs)
	}
	return o.refStore.RenewMany(ctx, reqs)
}
