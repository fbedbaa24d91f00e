// Package await lets a store return as its context ends, whatever its client
// does.
package await

import (
	"context"
	"errors"
	"fmt"

	"github.com/idemmail/idemmail"
)

// Call answers what do answers, or the context's error as soon as the context
// ends. do is then left to its goroutine, and late, unless it is nil, gets what
// it answers in the end. Where the caller does all that by itself (see
// [idemmail.Awaited]), there is no second goroutine.
//
// A panic in do, which runs the driver and hooks of its owner, is an error, and
// so is a runtime.Goexit where do has a goroutine of its own: there is nobody
// else on that.
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
		a := answer{err: errGone} // unless it returns
		defer func() {
			select {
			case answers <- a:
			case <-ctx.Done():
				if late != nil && a.err == nil {
					_, _ = recovered(func() T { late(a.value); return a.value })
				}
			}
		}()
		a.value, a.err = recovered(do)
	}()
	select {
	case a := <-answers:
		return a.value, a.err
	case <-ctx.Done():
		return none, ctx.Err()
	}
}

var errGone = errors.New("the client ended the goroutine of its call")

// recovered answers what do answers, or an error where it panics.
func recovered[T any](do func() T) (value T, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the client panicked: %v", p)
		}
	}()
	return do(), nil
}
