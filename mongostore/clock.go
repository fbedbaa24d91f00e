package mongostore

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

const (
	// refreshAfter is how long a reading of the server's clock is used.
	refreshAfter = 30 * time.Second

	// slowAnswer is the time from which an answer is too vague a reading: it
	// may have opened a connection first, so it is asked for once more.
	slowAnswer = 250 * time.Millisecond

	// stepped is the difference between the wall clock's and the monotonic
	// clock's advance that tells that the machine slept or its clock was set.
	stepped = time.Second
)

// A clock tells the server's time, by the client's clock and the difference
// between the two, which it asks the server for at the first use and whenever
// the last reading is too old. A reading is behind the server's clock by no
// more than the time that the answer took to travel.
type clock struct {
	client  func() time.Time
	ask     func(ctx context.Context) (time.Time, error) // the server's time
	reading atomic.Pointer[reading]
	asking  chan struct{} // holds one element while a caller asks
}

// A reading is what the clocks showed at one moment.
type reading struct {
	client time.Time
	wall   time.Time // client, without its monotonic part
	server time.Time
}

func newClock(client func() time.Time, ask func(context.Context) (time.Time, error)) *clock {
	return &clock{client: client, ask: ask, asking: make(chan struct{}, 1)}
}

// now answers the server's time.
func (c *clock) now(ctx context.Context) (time.Time, error) {
	if err := ctx.Err(); err != nil {
		return time.Time{}, fmt.Errorf("mongostore: %w", err)
	}
	if now, ok := c.known(); ok {
		return now, nil
	}
	select {
	case c.asking <- struct{}{}:
		defer func() { <-c.asking }()
	case <-ctx.Done():
		return time.Time{}, fmt.Errorf("mongostore: ask for the server's time: %w", ctx.Err())
	}
	if now, ok := c.known(); ok { // another caller asked meanwhile
		return now, nil
	}
	if err := c.read(ctx); err != nil {
		return time.Time{}, wrap(ctx, "ask for the server's time", err)
	}
	last := c.reading.Load()
	return last.server.Add(c.client().Sub(last.client)), nil
}

// known answers the server's time where the last reading still tells it.
func (c *clock) known() (now time.Time, ok bool) {
	last := c.reading.Load()
	if last == nil {
		return time.Time{}, false
	}
	client := c.client()
	passed := client.Sub(last.client)
	wall := client.Round(0).Sub(last.wall)
	ok = passed >= 0 && passed < refreshAfter && (wall-passed).Abs() < stepped
	return last.server.Add(passed), ok
}

// read takes a reading, the better of two where the first answer was slow.
func (c *clock) read(ctx context.Context) error {
	best := time.Duration(-1)
	for range 2 {
		before := c.client()
		server, err := c.ask(ctx)
		if err != nil {
			return err
		}
		after := c.client()
		// By the end of the answer: that is nearer to the moment at which the
		// server looked at its clock than its beginning, which may have had to
		// wait for a connection.
		if took := after.Sub(before); best < 0 || took < best {
			best = took
			c.reading.Store(&reading{client: after, wall: after.Round(0), server: server})
		}
		if best < slowAnswer {
			break
		}
	}
	return nil
}

const commandNotFound = 59 // MongoDB's error code CommandNotFound

// askServer answers the time of the server, by the hello command, or by the
// isMaster command where a server is older than hello.
func askServer(db *mongo.Database) func(context.Context) (time.Time, error) {
	return func(ctx context.Context) (time.Time, error) {
		ctx = outsideSession(ctx)
		answer, err := db.RunCommand(ctx, bson.D{{Key: "hello", Value: 1}}).Raw()
		if missing := (mongo.CommandError{}); errors.As(err, &missing) && missing.Code == commandNotFound {
			answer, err = db.RunCommand(ctx, bson.D{{Key: "isMaster", Value: 1}}).Raw()
		}
		if err != nil {
			return time.Time{}, err
		}
		millis, ok := answer.Lookup("localTime").DateTimeOK()
		if !ok {
			return time.Time{}, errors.New("the server does not tell it")
		}
		return bson.DateTime(millis).Time().UTC(), nil
	}
}
