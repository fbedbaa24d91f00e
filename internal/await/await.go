// Package await lets a store return as its context ends, whatever its client
// does.
package await

import (
	"context"
	"fmt"

	"github.com/idemmail/idemmail"
)

// Call answers what do answers, or the context's error as soon as the context
// ends. do is then left to its goroutine, and late, unless it is nil, gets what
// it answers in the end. Where the caller does all that by itself (see
// [idemmail.Awaited]), there is no second goroutine.
//
// A panic in do, which runs the driver and hooks of its owner, is an error:
// there is nobody on its goroutine to recover from it.
func Call[T any](ctx context.Context, do func() T, late func(T)) (T, error) {
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
			err = fmt.Errorf("the client panicked: %v", p)
		}
	}()
	return do(), nil
}
