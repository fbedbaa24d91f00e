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
// goroutine, and late, unless it is nil, gets what it answers in the end.
func await[T any](ctx context.Context, do func() T, late func(T)) (T, error) {
	var none T
	if err := ctx.Err(); err != nil {
		return none, err
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
