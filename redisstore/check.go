package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/idemmail/idemmail/internal/await"
)

// checkKey is the key, behind KeyPrefix, whose probe Check makes.
const checkKey = "idemmail-check"

// Check says what makes the store unsafe, or nil: a server before Redis 7.0, or
// one that does not answer SET with NX and GET as Redis does; a missing right;
// a maxmemory-policy other than noeviction, which drops keys within their
// time; a client that ignores deadlines (ContextTimeoutEnabled is not set),
// so that connections are held longer than contexts last. Several are joined.
// An error also tells that a server could not be asked.
//
// It is for the start of a program, or a health check. What a server does not
// tell, its version or policy where INFO is refused, is taken to be fine. The
// rights are tried on a key that begins with KeyPrefix and "idemmail-check":
// where an ACL names patterns of keys, it has to allow that one too.
func (s *Store) Check(ctx context.Context) error {
	if s.refused != nil {
		return fmt.Errorf("redisstore: %w", s.refused)
	}
	var errs []error
	unsafe := func(err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("redisstore: %w", err))
		}
	}
	if ignoresDeadlines(s.client) {
		unsafe(errors.New("the client ignores deadlines while it reads: set ContextTimeoutEnabled"))
	}
	masters, err := s.masters(ctx)
	unsafe(err)
	for _, m := range masters {
		unsafe(checkServer(ctx, m))
	}
	unsafe(s.probe(ctx, s.prefix+checkKey))
	return errors.Join(errs...)
}

// ignoresDeadlines reports whether a client is known to.
func ignoresDeadlines(client redis.UniversalClient) bool {
	switch c := client.(type) {
	case interface{ Options() *redis.Options }:
		return !c.Options().ContextTimeoutEnabled
	case interface{ Options() *redis.ClusterOptions }:
		return !c.Options().ContextTimeoutEnabled
	}
	return false
}

// checkServer asks a server for its version and policy.
func checkServer(ctx context.Context, server redis.Cmdable) error {
	var errs []error
	for _, section := range []string{"server", "memory"} {
		info, err := await.Call(ctx, func() reply {
			text, err := server.Info(ctx, section).Result()
			return reply{text, err}
		}, nil)
		if err == nil {
			err = info.err
		}
		var answer redis.Error
		switch {
		case errors.As(err, &answer):
			continue // no right to ask, or no such section: it cannot be told
		case err != nil:
			return explain(ctx, err)
		}
		for line := range strings.Lines(info.value) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
			switch name {
			case "redis_version":
				major, _, _ := strings.Cut(value, ".")
				if n, err := strconv.Atoi(major); err == nil && n < 7 {
					errs = append(errs, fmt.Errorf("the server is Redis %s, 7.0 or later is needed: %w", value, errors.ErrUnsupported))
				}
			case "maxmemory_policy":
				if value != "noeviction" {
					errs = append(errs, fmt.Errorf("maxmemory-policy is %s: the server may drop keys within their time, set noeviction", value))
				}
			}
		}
	}
	return errors.Join(errs...)
}
