package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/idemmail/idemmail/redisstore"
)

// nodesApart is how far the clocks of a cluster's nodes may be apart before
// that is worth a warning.
const nodesApart = time.Second

// examineRedis reports what redisstore's own Check finds, and what that takes
// for fine or does not look at: what a server does not tell, its durability,
// its clock, the rights to list.
func examineRedis(ctx context.Context, r *report, client redis.UniversalClient, store *redisstore.Store) error {
	if err := client.Ping(ctx).Err(); err != nil {
		return err
	}
	_, cluster := client.(*redis.ClusterClient)
	var clocks []time.Duration
	err := masters(ctx, client, func(m *redis.Client) {
		name := "server"
		if cluster {
			name = m.Options().Addr
		}
		describeRedis(ctx, r, name, m)
		before := time.Now()
		if now, err := m.Time(ctx).Result(); err != nil {
			r.warn(name+" clock", "it cannot be read: %v", err)
		} else {
			clocks = append(clocks, r.clock(name+" clock", now, before))
		}
		if err := listRights(ctx, m); err != nil {
			r.warn(name+" list", "this user cannot list keys, which senders do not need: %v", err)
		}
	})
	if err != nil {
		return err
	}
	if len(clocks) > 0 {
		if apart := slices.Max(clocks) - slices.Min(clocks); apart > nodesApart {
			r.warn("clocks", "those of the masters are %s apart; keep them in step", apart)
		}
	}
	switch err := store.Check(ctx).(type) {
	case nil:
		r.ok("redis", "fit for keys, and all rights that senders need")
	case interface{ Unwrap() []error }:
		for _, err := range err.Unwrap() {
			r.unsafe("redis", "%v", err)
		}
	default:
		r.unsafe("redis", "%v", err)
	}
	return nil
}

// describeRedis reports what a server tells of itself.
func describeRedis(ctx context.Context, r *report, name string, server *redis.Client) {
	info := make(map[string]string)
	for _, section := range []string{"server", "memory", "persistence"} { // one at a time: the newer form with many is refused by some
		text, _ := server.Info(ctx, section).Result()
		for line := range strings.Lines(text) {
			if field, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
				info[field] = value
			}
		}
	}
	var about []string
	if v := info["valkey_version"]; v != "" {
		about = append(about, "Valkey "+v)
	} else if v := info["redis_version"]; v != "" {
		about = append(about, "Redis "+v)
	}
	if v := info["maxmemory_policy"]; v != "" {
		about = append(about, "maxmemory-policy "+v)
	} else {
		r.warn(name, "it does not tell its maxmemory-policy: make sure that it is noeviction")
	}
	if v := info["maxmemory"]; v == "0" {
		about = append(about, "no maxmemory")
	} else if v != "" {
		about = append(about, fmt.Sprintf("maxmemory %s, used %s", info["maxmemory_human"], info["used_memory_human"]))
	}
	if len(about) > 0 {
		r.ok(name, "%s", strings.Join(about, ", "))
	}
	if info["aof_enabled"] == "0" {
		r.warn(name+" durability", "appendonly is off: a restart forgets what came since the last snapshot, and those messages may go twice")
	}
}

// listRights tries what a listing needs.
func listRights(ctx context.Context, server *redis.Client) error {
	if err := server.Scan(ctx, 0, "idemmail-check:*", 1).Err(); err != nil {
		return err
	}
	return server.GetRange(ctx, "idemmail-check", 0, 0).Err()
}
