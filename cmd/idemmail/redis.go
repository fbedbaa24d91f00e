package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/idemmail/idemmail/redisstore"
)

func (u *storeURL) openRedis() (*openStore, error) {
	prefix, err := u.take("key_prefix")
	if err != nil {
		return nil, err
	}
	scan := &scan{}
	client, err := u.redisClient(scan)
	if err != nil {
		// Without the URL, which net/url shows.
		if parse := (*url.Error)(nil); errors.As(err, &parse) {
			err = parse.Err
		}
		return nil, err
	}
	store := redisstore.New(client, redisstore.Options{KeyPrefix: prefix})
	return &openStore{
		store: store,
		examine: func(ctx context.Context, r *report) error {
			return examineRedis(ctx, r, client, store)
		},
		watch: func(ctx context.Context) func() string { return scan.watch(ctx, client) },
		close: func() { client.Close() },
	}, nil
}

// redisClient answers a client whose nodes tell scan what they do. Deadlines
// hold while it reads, which is not go-redis's default.
func (u *storeURL) redisClient(scan *scan) (redis.UniversalClient, error) {
	scheme, kind, _ := strings.Cut(u.scheme, "+")
	switch kind {
	case "cluster":
		o, err := redis.ParseClusterURL(u.as(scheme))
		if err != nil {
			return nil, err
		}
		o.ContextTimeoutEnabled = true
		client := redis.NewClusterClient(o)
		client.OnNewNode(func(node *redis.Client) { node.AddHook(scan) })
		return client, nil
	case "sentinel":
		o, err := redis.ParseFailoverURL(u.as(scheme))
		if err != nil {
			return nil, err
		}
		if o.MasterName == "" {
			return nil, errors.New("a master_name is missing: redis+sentinel://HOST:26379/0?master_name=NAME")
		}
		if o.ReplicaOnly || o.RouteByLatency || o.RouteRandomly {
			return nil, errors.New("replica_only, route_by_latency and route_randomly read from replicas, which may be behind")
		}
		o.ContextTimeoutEnabled = true
		client := redis.NewFailoverClient(o)
		client.AddHook(scan)
		return client, nil
	}
	o, err := redis.ParseURL(u.as(u.scheme))
	if err != nil {
		return nil, err
	}
	o.ContextTimeoutEnabled = true
	client := redis.NewClient(o)
	client.AddHook(scan)
	return client, nil
}

// masters does something with each server that has keys, one at a time.
func masters(ctx context.Context, client redis.UniversalClient, f func(*redis.Client)) error {
	switch c := client.(type) {
	case *redis.ClusterClient:
		var mu sync.Mutex // ForEachMaster calls for all at once
		return c.ForEachMaster(ctx, func(_ context.Context, m *redis.Client) error {
			mu.Lock()
			defer mu.Unlock()
			f(m)
			return nil
		})
	case *redis.Client:
		f(c)
	}
	return nil
}

// A scan counts the keys that a listing has looked at: it is a hook on the
// SCANs that the store makes.
type scan struct{ seen atomic.Int64 }

// watch answers what tells how far a listing that begins now has come.
func (s *scan) watch(ctx context.Context, client redis.UniversalClient) func() string {
	var size int64
	masters(ctx, client, func(m *redis.Client) {
		n, _ := m.DBSize(ctx).Result() // without the right: 0
		size += n
	})
	return func() string {
		seen := s.seen.Load()
		if size == 0 {
			return fmt.Sprintf("looked at %d keys", seen)
		}
		return fmt.Sprintf("looked at %d of about %d keys", min(seen, size), size)
	}
}

func (*scan) DialHook(next redis.DialHook) redis.DialHook { return next }

func (*scan) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (s *scan) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if args := cmd.Args(); cmd.Name() == "scan" && err == nil {
			if count, ok := args[len(args)-1].(int64); ok { // SCAN cursor MATCH pattern COUNT count
				s.seen.Add(count)
			}
		}
		return err
	}
}
