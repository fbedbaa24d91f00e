package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/internal/testserver"
	"github.com/idemmail/idemmail/redisstore"
)

const (
	redisFirst    = "first send, 1 KB, against SET NX GET and EVALSHA of go-redis"
	redisStore    = "the store's part of it, under a context that never ends"
	redisCrowd    = "first sends, 1 KB, from 16 senders, against the two commands from 16"
	redisTypical  = "first send, 22 KB, against the two commands"
	redisReplay   = "replay, 1 KB, against SET NX GET"
	redisInFlight = "in-flight answer, 1 KB, against SET NX GET"
	redisBytes    = "bytes a kept key (MEMORY USAGE): 32 bytes, with a receipt of 200 bytes of text"
	redisScript   = "complete by its script, time on the server, against a script that decodes JSON to compare the token"

	overLink = " over a link of 2.5 ms"
)

func redisChapter() chapter {
	return chapter{
		title: "Redis",
		text: "`IdempotencyTransport` on a `redisstore.Store` over a transport that does nothing; a server of its own on loopback, without persistence. " +
			"The bare commands carry the same bytes, ready made, to the same server through the same client.",
		rows: []row{
			{id: "R1", what: redisFirst, atMost: 1.15, why: "each call of the store has a goroutine of its own, so that it can be left behind when its time is over, " +
				"whatever the client does; a sender that is alone waits for a thread to wake up, which on two virtual cores takes hardly anything or as long as the command (see the quartiles)"},
			{what: redisStore},
			{what: redisCrowd},
			{what: redisTypical},
			{id: "R2", what: redisReplay, atMost: 1.40, why: "as R1"},
			{what: redisInFlight},
			{id: "R3", what: "round trips: 2 a send, 1 a replay, 2 a wrapped `SendMany` per 500 keys", test: "TestRoundTrips"},
			{id: "R4", what: batchRow(100, ""), atLeast: 5},
			{what: turnRow(100, "")},
			{what: batchRow(1000, "")},
			{what: turnRow(1000, "")},
			{id: "R4", what: batchRow(100, overLink), atLeast: 40},
			{what: turnRow(100, overLink)},
			{what: batchRow(1000, overLink)},
			{what: turnRow(1000, overLink)},
			{id: "R5", what: redisScript, atMost: 0.70, why: "both scripts also ask for the time, write it into the value and store that, which is most of either; what decodes JSON has a record of four short fields to read"},
			{id: "S6", what: redisBytes, atMost: 600, unit: "bytes"},
		},
		measure: measureRedis,
	}
}

func measureRedis(t testing.TB, s scale, f *findings) {
	server := testserver.StartRedis(t)
	client := newRedisClient(t, server.Addr, 0)
	f.versions = append(f.versions, "Redis "+redisInfo(t, client, "server", "redis_version"))
	store := redisstore.New(client, redisstore.Options{})
	floor := newRedisFloor(t, client)

	endless := newKeys(func(key string) { must(t, sendNew(context.Background(), store, key, theReceipt)) })
	taken := s.compare(t, s.slow, floor.sends(t), sends(t, guarded(t, transport, store), kilobyte), endless, sends(t, guarded(t, transport, store), typical))
	f.add(t, redisFirst, taken[1].over(taken[0]))
	f.add(t, redisStore, taken[2].over(taken[0]))
	f.add(t, redisTypical, taken[3].over(taken[0]))

	const senders = 16
	crowd := newKeysBy(t, senders, func(_ int, key string) error { return floor.send(t.Context(), namespace+":"+key) })
	taken = s.lasting(20).compare(t, s.slow, crowd, sendsFrom(t, guarded(t, transport, store), kilobyte, senders))
	f.add(t, redisCrowd, taken[1].over(taken[0]))

	replays, inFlight := repeatedSends(t, store, 100)
	taken = s.compare(t, s.slow, floor.reserves(t, floor.done), replays)
	f.add(t, redisReplay, taken[1].over(taken[0]))
	taken = s.compare(t, s.slow, floor.reserves(t, floor.pending), inFlight)
	f.add(t, redisInFlight, taken[1].over(taken[0]))

	f.add(t, redisBytes, redisBytesPerKey(t, client, store))
	f.add(t, redisScript, measureScript(t, s, floor))

	measureBatches(t, s, s.slow/4+1, f, store, "")
	far := redisstore.New(newRedisClient(t, startLink(t, server.Addr, linkDelay), 0), redisstore.Options{})
	measureBatches(t, s.once(), s.slower, f, far, overLink)
}

// newRedisClient answers a client of one database of a server, which waits for
// answers longer than it must on a busy machine.
func newRedisClient(t testing.TB, addr string, database int) *redis.Client {
	client := redis.NewClient(&redis.Options{Addr: addr, DB: database, ContextTimeoutEnabled: true, ReadTimeout: time.Minute})
	t.Cleanup(func() { client.Close() })
	return client
}

// redisInfo answers one value of INFO.
func redisInfo(t testing.TB, client *redis.Client, section, name string) string {
	info, err := client.Info(t.Context(), section).Result()
	must(t, err)
	for line := range strings.Lines(info) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	t.Fatalf("INFO %s has no %s", section, name)
	return ""
}

// repeatedSends are replays, and in-flight answers, of n keys each.
func repeatedSends(t testing.TB, store idemmail.Store, n int) (replays, inFlight way) {
	transport := guarded(t, transport, store)
	m := newMessage(kilobyte)
	var done, pending fresh
	done.prepare(n)
	pending.prepare(n)
	for i := range n {
		m.IdempotencyKey = done.keys[i]
		must(t, firstSend(transport.Send(t.Context(), m)))
		_, _, err := store.Reserve(t.Context(), namespace+":"+pending.keys[i], idemmail.Fingerprint(m), lease)
		must(t, err)
	}
	return repeating(t, transport, m, done.keys, nil), repeating(t, transport, m, pending.keys, idemmail.ErrInFlight)
}

// A redisFloor is the commands that a send cannot do without, as go-redis has
// them, with the values that redisstore keeps.
type redisFloor struct {
	client   *redis.Client
	complete string // the script's SHA-1
	cjson    string // of the other script

	pending, done string // values
	args          []any  // of complete
	jsonPending   string // the value, and the arguments, of the other script
	jsonArgs      []any
}

//go:embed complete-cjson.lua
var cjsonSource string

func newRedisFloor(t testing.TB, client *redis.Client) *redisFloor {
	source, err := os.ReadFile(filepath.Join("..", "redisstore", "complete.lua"))
	must(t, err)
	f := &redisFloor{client: client}
	f.complete, err = client.ScriptLoad(t.Context(), string(source)).Result()
	must(t, err)
	f.cjson, err = client.ScriptLoad(t.Context(), cjsonSource).Result()
	must(t, err)

	// docs/formats.md has the format.
	receipt, err := json.Marshal(theReceipt)
	must(t, err)
	token := fmt.Sprintf("%d:%s", len(someToken), someToken)
	rest := fmt.Sprintf(" %d:%s %s", len(someFingerprint), someFingerprint, receipt)
	milliseconds := strconv.FormatInt(ttl.Milliseconds(), 10)
	f.pending = fmt.Sprintf("idm1 p- %016d %s %d:%s", time.Now().UnixMicro(), token, len(someFingerprint), someFingerprint)
	f.done = fmt.Sprintf("idm1 ds %016d %s%s", time.Now().UnixMicro(), token, rest)
	f.args = []any{token, "s", rest, milliseconds}

	head := fmt.Sprintf(`{"token":%q,"fingerprint":%q`, someToken, someFingerprint)
	f.jsonPending = fmt.Sprintf(`%s,"state":"pending","at":%d}`, head, time.Now().UnixMicro())
	f.jsonArgs = []any{someToken, fmt.Sprintf(`%s,"state":"done","receipt":%s`, head, receipt), milliseconds}
	return f
}

func (f *redisFloor) reserve(ctx context.Context, key, value string) *redis.StatusCmd {
	return f.client.SetArgs(ctx, key, value, redis.SetArgs{Mode: "NX", Get: true, TTL: lease})
}

// send reserves a key and completes it.
func (f *redisFloor) send(ctx context.Context, key string) error {
	if err := f.reserve(ctx, key, f.pending).Err(); err != redis.Nil {
		return fmt.Errorf("SET NX GET answered %w", err)
	}
	answer, err := f.client.EvalSha(ctx, f.complete, []string{key}, f.args...).Text()
	if err == nil && answer[0] != 'k' {
		err = fmt.Errorf("the script answered %q", answer)
	}
	return err
}

func (f *redisFloor) sends(t testing.TB) way {
	return newKeys(func(key string) { must(t, f.send(t.Context(), namespace+":"+key)) })
}

// reserves are reservations of keys under which a value stands.
func (f *redisFloor) reserves(t testing.TB, value string) way {
	var keys fresh
	keys.prepare(100)
	for _, key := range keys.keys {
		must(t, f.client.Set(t.Context(), namespace+":"+key, value, ttl).Err())
	}
	return eachOf(keys.keys, func(key string) {
		if held, err := f.reserve(t.Context(), namespace+":"+key, f.pending).Result(); err != nil || held != value {
			t.Fatal("SET NX GET answered ", held, err)
		}
	})
}

// redisBytesPerKey answers what keys take in the server.
func redisBytesPerKey(t testing.TB, client *redis.Client, store *redisstore.Store) sample {
	var keys fresh
	keys.prepare(100)
	var bytes []float64
	for i, key := range keys.keys {
		must(t, sendNew(t.Context(), store, key, newReceipt(i)))
		n, err := client.MemoryUsage(t.Context(), key).Result()
		must(t, err)
		bytes = append(bytes, float64(n))
	}
	return newSample(bytes...)
}

// measureScript compares what the scripts take on the server, by its own count.
func measureScript(t testing.TB, s scale, f *redisFloor) sample {
	const runs = 500
	once := func(script, pending string, args []any) float64 {
		var keys fresh
		keys.prepare(runs)
		pipe := f.client.Pipeline()
		for _, key := range keys.keys {
			pipe.Set(t.Context(), key, pending, lease)
		}
		pipe.ConfigResetStat(t.Context())
		for _, key := range keys.keys {
			pipe.EvalSha(t.Context(), script, []string{key}, args...)
		}
		_, err := pipe.Exec(t.Context())
		must(t, err)
		return serverTime(t, f.client, "evalsha")
	}
	var ratios []float64
	for range s.slow {
		must(t, t.Context().Err())
		ours, theirs := once(f.complete, f.pending, f.args), once(f.cjson, f.jsonPending, f.jsonArgs)
		ratios = append(ratios, ours/theirs)
	}
	return newSample(ratios...)
}

// serverTime answers the microseconds that all calls of a command took on the
// server since its counts were reset.
func serverTime(t testing.TB, client *redis.Client, command string) float64 {
	for field := range strings.SplitSeq(redisInfo(t, client, "commandstats", "cmdstat_"+command), ",") {
		if value, ok := strings.CutPrefix(field, "usec="); ok {
			usec, err := strconv.ParseFloat(value, 64)
			must(t, err)
			return usec
		}
	}
	t.Fatal("the server does not count what commands take")
	return 0
}
