package idemmail

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"
)

// No store can settle an outcome that was lost in a crash or a timeout: only
// the provider knows. The four methods here let an operator, or code that
// hears the provider's events, look and settle. They need a store that is a
// Reconciler; with any other they answer errors.ErrUnsupported.

// Lookup returns what holds the key, without the namespace in Entry.Key; nil
// and a nil error where nothing does. A key that breaks the rules of keys is
// ErrInvalidKey.
func (g *Guard) Lookup(ctx context.Context, key string) (*Entry, error) {
	r, err := g.reconciler("Lookup")
	if err != nil {
		return nil, err
	}
	if err := checkKey(key); err != nil || key == "" {
		return nil, fmt.Errorf("idemmail: Lookup: %w: %w", ErrInvalidKey, cmp.Or(err, errEmptyKey))
	}
	return g.lookup(ctx, r, key)
}

var errEmptyKey = errors.New("key is empty")

func (g *Guard) lookup(ctx context.Context, r Reconciler, key string) (*Entry, error) {
	type found struct {
		entry *Entry
		err   error
	}
	f, err := bounded(ctx, g.options.StoreTimeout, func(ctx context.Context) found {
		e, err := r.Lookup(ctx, g.storeKey(key))
		return found{e, err}
	}, nil)
	if err := cmp.Or(err, f.err); err != nil || f.entry == nil {
		return nil, err
	}
	e := *f.entry
	e.Key = key
	return &e, nil
}

// Unsettled lists, in no order, the namespace's keys that wait for an
// operator: done with a receipt of status unknown, or pending for olderThan or
// longer by the store's clock. Entry.Key is without the namespace. It streams,
// may be ended early, and is not bounded by StoreTimeout. Data that is not a
// record yields an error that wraps ErrBadRecord beside its Key, and the
// listing goes on; any other error ends it.
//
// Only AtMostOnce lists abandoned sends: otherwise a reservation vanishes with
// its lease.
func (g *Guard) Unsettled(ctx context.Context, olderThan time.Duration) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		r, err := g.reconciler("Unsettled")
		if err != nil {
			yield(Entry{}, err)
			return
		}
		prefix := g.storeKey("")
		for e, err := range r.Unsettled(ctx, prefix, olderThan) {
			e.Key = strings.TrimPrefix(e.Key, prefix)
			if !yield(e, err) {
				return
			}
		}
	}
}

// Resolve settles an entry as sent: the provider has the message. r is the
// receipt to keep, for TTL; nil means a bare one, and one that is not sent is
// refused. r is not changed. ErrChanged means that the record has moved on,
// ErrInFlight that it is pending and younger than Lease: its owner lives.
func (g *Guard) Resolve(ctx context.Context, e Entry, r *Receipt) error {
	if _, err := g.reconciler("Resolve"); err != nil {
		return err
	}
	if r == nil {
		r = &Receipt{Status: StatusSent}
	}
	if r.Status != StatusSent {
		return fmt.Errorf("idemmail: Resolve: receipt has status %q: only a sent message is resolved; Forget frees the key of one that was not", r.Status)
	}
	c := g.newCall(e.Key)
	r = r.clone()
	g.fill(c, r)
	return g.reconcile(ctx, c, e, "Resolve", EventResolved, r, func(ctx context.Context, store Reconciler, e Entry) error {
		return store.Resolve(ctx, e, r, g.options.TTL)
	})
}

// Forget frees the key of an entry: the provider does not have the message,
// and the next send under the key goes. Errors are those of Resolve.
func (g *Guard) Forget(ctx context.Context, e Entry) error {
	return g.reconcile(ctx, g.newCall(e.Key), e, "Forget", EventForgotten, nil, func(ctx context.Context, store Reconciler, e Entry) error {
		return store.Forget(ctx, e)
	})
}

// reconcile settles an entry, unless its owner lives.
func (g *Guard) reconcile(ctx context.Context, c *call, e Entry, method string, kind EventKind, r *Receipt, settle func(context.Context, Reconciler, Entry) error) error {
	store, err := g.reconciler(method)
	if err != nil {
		return err
	}
	if e.Record.State == StatePending {
		err = g.checkAbandoned(ctx, store, e)
	}
	if err == nil {
		inStore := e
		inStore.Key = g.storeKey(e.Key)
		var failed error
		failed, err = bounded(ctx, g.options.StoreTimeout, func(ctx context.Context) error { return settle(ctx, store, inStore) }, nil)
		err = cmp.Or(err, failed)
	}
	if err != nil {
		return fmt.Errorf("idemmail: %s %q: %w", method, e.Key, err)
	}
	g.emit(ctx, c, kind, r, nil)
	return nil
}

// checkAbandoned reads a pending entry again: its owner may have renewed it
// since it was listed.
func (g *Guard) checkAbandoned(ctx context.Context, store Reconciler, e Entry) error {
	now, err := g.lookup(ctx, store, e.Key)
	switch {
	case err != nil:
		return err
	case now == nil || now.Token != e.Token || now.Record.State != StatePending:
		return ErrChanged
	case g.options.Lease != NoExpiry && now.Record.Age <= g.options.Lease:
		return fmt.Errorf("%w: its reservation is %v old and may be alive until %v", ErrInFlight, now.Record.Age, g.options.Lease)
	}
	return nil
}

func (g *Guard) reconciler(method string) (Reconciler, error) {
	r, ok := g.options.Store.(Reconciler)
	if !ok {
		return nil, fmt.Errorf("idemmail: %s: the store is no Reconciler: %w", method, errors.ErrUnsupported)
	}
	return r, nil
}
