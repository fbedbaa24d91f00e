package redisstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/idemmail/idemmail"
)

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
