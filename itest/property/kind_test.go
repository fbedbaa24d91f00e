package property

import (
	"context"

	"github.com/idemmail/idemmail"
)

// A renewingStore is what every store here is made of.
type renewingStore interface {
	idemmail.Store
	idemmail.Renewer
}

// kinds are the abilities by which the engine treats a store in its own way.
var kinds = []string{"Store", "Renewer", "BatchStore"}

// as shows no more of a store than a store of the kind has.
func as(kind string, s renewingStore) idemmail.Store {
	switch kind {
	case "Renewer":
		return struct{ renewingStore }{s}
	case "BatchStore":
		return struct {
			renewingStore
			idemmail.BatchStore
		}{s, byOne{s}}
	}
	return struct{ idemmail.Store }{s}
}

// byOne takes many keys in one call, one after another. What keeps the call
// about one from returning is an error for that one, and no more.
type byOne struct{ store renewingStore }

func (b byOne) ReserveMany(ctx context.Context, reqs []idemmail.ReserveRequest) []idemmail.ReserveResult {
	results := make([]idemmail.ReserveResult, len(reqs))
	for i, r := range reqs {
		err := survive(func() (err error) {
			results[i].Token, results[i].Held, err = b.store.Reserve(ctx, r.Key, r.Fingerprint, r.Lease)
			return err
		})
		if err != nil {
			results[i] = idemmail.ReserveResult{Err: err}
		}
	}
	return results
}

func (b byOne) CompleteMany(ctx context.Context, reqs []idemmail.CompleteRequest) []error {
	errs := make([]error, len(reqs))
	for i, r := range reqs {
		errs[i] = survive(func() error { return b.store.Complete(ctx, r.Key, r.Token, r.Record, r.TTL) })
	}
	return errs
}

func (b byOne) ReleaseMany(ctx context.Context, reqs []idemmail.ReleaseRequest) []error {
	errs := make([]error, len(reqs))
	for i, r := range reqs {
		errs[i] = survive(func() error { return b.store.Release(ctx, r.Key, r.Token) })
	}
	return errs
}

func (b byOne) RenewMany(ctx context.Context, reqs []idemmail.RenewRequest) []error {
	errs := make([]error, len(reqs))
	for i, r := range reqs {
		errs[i] = survive(func() error { return b.store.Renew(ctx, r.Key, r.Token, r.Lease) })
	}
	return errs
}

// survive turns a call that does not return into one that errs.
func survive(do func() error) (err error) {
	done := make(chan error)
	go func() {
		err := errStore
		defer func() {
			_ = recover()
			done <- err
		}()
		err = do()
	}()
	return <-done
}
