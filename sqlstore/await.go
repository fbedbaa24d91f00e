package sqlstore

import (
	"cmp"
	"context"
	"fmt"

	"github.com/idemmail/idemmail/internal/await"
)

// awaitErrors is await.Call for n errors: all of them are the context's where
// it ended. It does not rely on a driver to notice that: SQLite waits for a
// lock as long as it was told to.
func awaitErrors(ctx context.Context, n int, do func() []error) []error {
	errs, err := await.Call(ctx, do, nil)
	if err != nil {
		errs = make([]error, n)
		for i := range errs {
			errs[i] = fmt.Errorf("sqlstore: %w", err)
		}
	}
	return errs
}

// awaitResult is await.Call for a result and an error.
func awaitResult[T any](ctx context.Context, do func() (T, error)) (T, error) {
	type answer struct {
		value T
		err   error
	}
	a, err := await.Call(ctx, func() answer {
		value, err := do()
		return answer{value, err}
	}, nil)
	return a.value, cmp.Or(err, a.err)
}
