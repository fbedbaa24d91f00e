package main

import (
	"fmt"
	"math"
	"testing"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/internal/testserver"
	"github.com/idemmail/idemmail/redisstore"
)

// A curve is how the cost of something grows.
type curve struct {
	kind   string // byKeys or bySenders
	name   string
	points []point
}

type point struct {
	x int     // keys in the store, or senders
	y float64 // cost of one, as a multiple of the first point's
}

// The two kinds of growth that are drawn.
const (
	byKeys    = "keys"
	bySenders = "senders"
)

const (
	growthNew       = "`MemStore`, new key, full at 1,000,000 against full at 1,000, over the same of the bare map"
	growthReplay    = "`MemStore`, replay at 1,000,000 keys against 1,000, over the same of the bare map"
	growthMap       = "the bare map, new key: 1,000,000 keys against 1,000"
	growthMapReplay = "the bare map, replay: 1,000,000 keys against 1,000"
	growthRedis     = "Redis, first send at 1,000,000 keys against 1,000"
	growthPostgres  = "PostgreSQL, first send at 1,000,000 keys against 1,000"
	growthSQLite    = "SQLite, first send at 1,000,000 keys against 1,000"
	sendersMemory   = "`MemStore`, first sends of 22 KB, 64 senders against 8: time per send"
	sendersRedis    = "Redis, first sends of 1 KB, 64 senders against 8: time per send"
	sendersPostgres = "PostgreSQL, first sends of 1 KB, 64 senders against 8: time per send"
)

func growthChapter() chapter {
	logarithmic := math.Log(1_000_000) / math.Log(1_000) // which is that of 64 over that of 8 too
	return chapter{
		title: "Growth",
		text: "Nothing grows faster than a logarithm: that of a million is twice that of a thousand, and that of 64 twice that of 8. " +
			"The map itself costs more as it outgrows the processor's caches; what `MemStore` adds to that is what counts. " +
			"MongoDB has no curves: its stand-in would tell of itself.\n\n" +
			"![Cost of an operation by the number of keys, and by the number of senders](performance.svg)",
		rows: []row{
			{what: growthNew, atMost: logarithmic},
			{what: growthReplay, atMost: logarithmic},
			{what: growthMap},
			{what: growthMapReplay},
			{what: growthRedis, atMost: logarithmic},
			{what: growthPostgres, atMost: logarithmic},
			{what: growthSQLite, atMost: logarithmic},
			{what: sendersMemory, atMost: logarithmic},
			{what: sendersRedis, atMost: logarithmic},
			{what: sendersPostgres, atMost: logarithmic},
		},
		measure: measureGrowth,
	}
}

func measureGrowth(t testing.TB, s scale, f *findings) {
	measureMemoryGrowth(t, s, f)

	s.crowds(t, f, sendersMemory, "MemStore, 22 KB", typical, func() idemmail.Store { return fullMemStore(t, s.full) })

	server := testserver.StartRedis(t)
	redis := func(database int) *redisstore.Store {
		return redisstore.New(newRedisClient(t, server.Addr, database), redisstore.Options{})
	}
	s.fuller(t, f, growthRedis, "Redis", func(i int) fillable { return redis(i) })
	s.crowds(t, f, sendersRedis, "Redis, 1 KB", kilobyte, func() idemmail.Store { return redis(0) })

	table := func(base *sqlBase) func(i int) fillable {
		return func(i int) fillable { return base.store(t, fmt.Sprintf("keys_%d", i)) }
	}
	base := openPostgres(t)
	s.fuller(t, f, growthPostgres, "PostgreSQL", table(base))
	s.crowds(t, f, sendersPostgres, "PostgreSQL, 1 KB", kilobyte, func() idemmail.Store { return table(base)(0) })
	s.fuller(t, f, growthSQLite, "SQLite", table(openSQLite(t)))
}

func measureMemoryGrowth(t testing.TB, s scale, f *findings) {
	var fresh, freshFloor, repeat, repeatFloor []way
	for _, n := range s.keys {
		store, floor := fullStores(t, n)
		fresh, freshFloor = append(fresh, store), append(freshFloor, floor)
		store, floor = replays(t, n)
		repeat, repeatFloor = append(repeat, store), append(repeatFloor, floor)
	}
	last := len(s.keys) - 1
	compare := func(stores, floors []way, over, alone, name string) {
		taken := s.compare(t, s.rounds, append(stores, floors...)...)
		ours, theirs := taken[:len(stores)], taken[len(stores):]
		f.draw(byKeys, "MemStore, "+name, s.keys, ours)
		f.draw(byKeys, "bare map, "+name, s.keys, theirs)
		f.add(t, alone, theirs[last].over(theirs[0]))
		f.add(t, over, ours[last].per(ours[0]).over(theirs[last].per(theirs[0])))
	}
	compare(fresh, freshFloor, growthNew, growthMap, "new key")
	compare(repeat, repeatFloor, growthReplay, growthMapReplay, "replay")
}

// A fillable store takes many keys at once.
type fillable interface {
	idemmail.Store
	idemmail.BatchStore
}

// fuller draws what a first send costs in stores that are fuller and fuller.
func (s scale) fuller(t testing.TB, f *findings, row, name string, open func(i int) fillable) {
	var ways []way
	for i, n := range s.keys {
		store := open(i)
		fill(t, store, n)
		ways = append(ways, sends(t, guarded(t, transport, store), kilobyte))
	}
	taken := s.compare(t, s.slow, ways...)
	f.draw(byKeys, name+", first send", s.keys, taken)
	f.add(t, row, taken[len(taken)-1].over(taken[0]))
}

// crowds draws what first sends of a size cost from more and more senders.
func (s scale) crowds(t testing.TB, f *findings, row, name string, size int, open func() idemmail.Store) {
	var ways []way
	for _, n := range s.senders {
		ways = append(ways, sendsFrom(t, guarded(t, transport, open()), size, n))
	}
	taken := s.lasting(20).compare(t, s.slow/2+1, ways...)
	f.draw(bySenders, name, s.senders, taken)
	f.add(t, row, taken[len(taken)-1].over(taken[len(taken)/2]))
}

// fill puts so many keys into a store, many at once.
func fill(t testing.TB, store idemmail.BatchStore, n int) {
	const most = 500
	rec := idemmail.Record{State: idemmail.StateDone, Fingerprint: someFingerprint, Receipt: theReceipt}
	for n > 0 {
		var keys fresh
		keys.prepare(min(n, most))
		requests := make([]idemmail.CompleteRequest, len(keys.keys))
		for i, key := range keys.keys {
			requests[i] = idemmail.CompleteRequest{Key: key, Token: someToken, Record: rec, TTL: ttl}
		}
		for _, err := range store.CompleteMany(t.Context(), requests) {
			must(t, err)
		}
		n -= len(keys.keys)
	}
}

// draw notes how the cost of one operation grows with x: the ways took those
// times.
func (f *findings) draw(kind, name string, xs []int, taken []series) {
	c := curve{kind: kind, name: name}
	for i, x := range xs {
		c.points = append(c.points, point{x, taken[i].over(taken[0]).median()})
	}
	f.curves = append(f.curves, c)
}
