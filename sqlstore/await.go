package sqlstore

import (
	"cmp"
	"context"
	"fmt"
)

// await answers what do answers, or the context's error as soon as the context
// ends. It does not rely on a driver to notice that: SQLite waits for a lock
// as long as it was told to. do is then left to its goroutine, and late, unless
// it is nil, gets what it answers in the end.
func await[T any](ctx context.Context, do func() T, late func(T)) (T, error) {
	var none T
	if err := ctx.Err(); err != nil {
		return none, err
	}
	if ctx.Done() == nil {
		return do(), nil
	}
	answer := make(chan T)
	go func() {
		a := do()
		select {
		case answer <- a:
		case <-ctx.Done():
			if late != nil {
				late(a)
			}
		}
	}()
	select {
	case a := <-answer:
		return a, nil
	case <-ctx.Done():
		return none, ctx.Err()
	}
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
