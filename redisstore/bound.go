package redisstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/idemmail/idemmail"
)

// await answers what do answers, or the context's error as soon as the context
// ends. It does not rely on do to notice that: by default go-redis ignores a
// deadline while it reads, and always a cancellation. do is then left to its
// goroutine, and late, unless it is nil, gets what it answers in the end. Where
// the caller does all that by itself, there is no second goroutine.
//
// A panic in do, which runs hooks of the client's owner, is an error: there is
// nobody on its goroutine to recover from it.
func await[T any](ctx context.Context, do func() T, late func(T)) (T, error) {
	var none T
	if err := ctx.Err(); err != nil {
		return none, err
	}
	type answer struct {
		value T
		err   error
	}
	run := func() (a answer) {
		defer func() {
			if p := recover(); p != nil {
				a.err = fmt.Errorf("the client panicked: %v", p)
			}
		}()
		return answer{value: do()}
	}
	if ctx.Done() == nil || idemmail.Awaited(ctx) {
		a := run()
		return a.value, a.err
	}
	answers := make(chan answer)
	go func() {
		a := run()
		select {
		case answers <- a:
		case <-ctx.Done():
			if late != nil && a.err == nil {
				late(a.value)
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

// explain gives an error of the client its meaning: a key of another type is a
// bad record, and what comes of the context's end wraps the context's error,
// which the timeout of a connection does not by itself.
func explain(ctx context.Context, err error) error {
	if redis.HasErrorPrefix(err, "WRONGTYPE") {
		return fmt.Errorf("%w: %w", idemmail.ErrBadRecord, err)
	}
	var answer redis.Error
	if errors.As(err, &answer) {
		return err
	}
	ended := ctx.Err()
	if deadline, ok := ctx.Deadline(); ended == nil && ok && !time.Now().Before(deadline) {
		ended = context.DeadlineExceeded // the connection's timer was faster than the context's
	}
	if ended != nil && !errors.Is(err, ended) {
		return fmt.Errorf("%w: %w", ended, err)
	}
	return err
}
