package sqlstore

import (
	"cmp"
	"context"
	"fmt"

	"github.com/idemmail/idemmail"
)

// await answers what do answers, or the context's error as soon as the context
// ends. It does not rely on a driver to notice that: SQLite waits for a lock
// as long as it was told to. do is then left to its goroutine, and late, unless
// it is nil, gets what it answers in the end. Where the caller does all that by
// itself, there is no second goroutine.
//
// A panic of the driver is an error: there is nobody on the goroutine to
// recover from it.
func await[T any](ctx context.Context, do func() T, late func(T)) (T, error) {
	var none T
	if err := ctx.Err(); err != nil {
		return none, err
	}
	if ctx.Done() == nil || idemmail.Awaited(ctx) {
		return recovered(do)
	}
	type answer struct {
		value T
		err   error
	}
	answers := make(chan answer)
	go func() {
		value, err := recovered(do)
		select {
		case answers <- answer{value, err}:
		case <-ctx.Done():
			if late != nil && err == nil {
				_, _ = recovered(func() T { late(value); return value })
			}
		}
	}()
	select {
	case a := <-answers:
		return a.value, a.err
	case <-ctx.Done():
		return none, ctx.Err()
	}
}

// recovered answers what do answers, or an error where it panics.
func recovered[T any](do func() T) (value T, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the driver panicked: %v", p)
		}
	}()
	return do(), nil
}

// awaitErrors is await for n errors: all of them are the context's where it
// ended.
func awaitErrors(ctx context.Context, n int, do func() []error) []error {
	errs, err := await(ctx, do, nil)
	if err != nil {
		errs = make([]error, n)
		for i := range errs {
			errs[i] = fmt.Errorf("sqlstore: %w", err)
		}
	}
	return errs
}

// awaitResult is await for a result and an error.
func awaitResult[T any](ctx context.Context, do func() (T, error)) (T, error) {
	type answer struct {
		value T
		err   error
	}
	a, err := await(ctx, func() answer {
		value, err := do()
		return answer{value, err}
	}, nil)
	return a.value, cmp.Or(err, a.err)
}
