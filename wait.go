package idemmail

import (
	"context"
	"sync"
	"time"
)

// Pauses between two questions of a line to the store.
const (
	firstAskPause = 10 * time.Millisecond
	maxAskPause   = time.Second
)

// await lets a call that was answered in flight wait for the send that holds
// its key, for WaitInFlight at most. It leaves the call undecided where it has
// taken the freed key and is to be sent.
func (g *Guard) await(ctx context.Context, c *call) {
	patience := time.NewTimer(g.options.WaitInFlight)
	defer patience.Stop()
	for again := true; again; {
		l := g.lines.join(c.key)
		again = g.stand(ctx, c, l, patience.C)
		g.lines.leave(c.key, l)
	}
}

// stand waits in a line until the call's wait is over. It reports whether the
// call has to join the next line instead, because what ended the wait of this
// one is no answer to it.
func (g *Guard) stand(ctx context.Context, c *call, l *line, patience <-chan time.Time) (again bool) {
	select {
	case <-ctx.Done():
		g.refuse(c, CodeInFlight, ctx.Err())
		return false
	case <-patience:
		return false
	case <-l.answered:
		g.answerFrom(ctx, c, l.answer.clone())
		return c.kind == EventInFlight
	case <-l.turn:
	}
	if over := g.ask(ctx, c, l, patience); !over {
		l.turn <- struct{}{}
	}
	return false
}

// ask asks the store, with growing pauses, until the call's wait is over. It
// reports whether the wait of the whole line is over with it.
func (g *Guard) ask(ctx context.Context, c *call, l *line, patience <-chan time.Time) (over bool) {
	for pause := firstAskPause; ; pause = min(2*pause, maxAskPause) {
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-l.woken:
			pause = firstAskPause
		case <-ctx.Done():
		case <-patience:
			timer.Stop()
			return false
		}
		timer.Stop()

		gone := ended(ctx)
		if gone == nil {
			g.keeper.reserve(ctx, c.one(), g.lease())
			gone = ended(ctx)
		}
		switch {
		case gone != nil:
			g.refuse(c, CodeInFlight, gone)
			g.giveUp(ctx, c)
			return false
		case c.token != "":
			c.undecide()
			return false
		case c.held != nil:
			held := c.held.clone() // the caller may change his
			if g.answerFrom(ctx, c, c.held); c.kind != EventInFlight {
				g.lines.answer(c.key, l, held)
				return true
			}
		default:
			// The first send was alive a moment ago: not even FailOpen may
			// send beside it.
			g.reportStore(ctx, c, EventStoreFailed, c.failure)
		}
	}
}

// giveUp frees the key that a waiting call took as its context ended.
func (g *Guard) giveUp(ctx context.Context, c *call) {
	if c.token == "" {
		return
	}
	g.keeper.persist(ctx, c.one(), (*keeper).releaseNow)
	if c.failure != nil {
		g.reportUnsettled(ctx, c)
	}
	g.lines.wake(c.key)
}

// lines are the waiting calls of a Guard, by key. The zero value is empty.
type lines struct {
	mu    sync.Mutex
	byKey map[string]*line
}

// A line is the calls that wait for one key. One of them at a time asks the
// store, for all: however many wait, the store is asked no more often.
type line struct {
	waiting  int
	turn     chan struct{} // has an element while nobody asks
	woken    chan struct{} // gets an element when a send of this Guard under the key has ended
	answered chan struct{} // closed once answer holds the record that ends the wait
	answer   *Record
}

func (ls *lines) join(key string) *line {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l := ls.byKey[key]
	if l == nil {
		l = &line{turn: make(chan struct{}, 1), woken: make(chan struct{}, 1), answered: make(chan struct{})}
		l.turn <- struct{}{}
		if ls.byKey == nil {
			ls.byKey = make(map[string]*line)
		}
		ls.byKey[key] = l
	}
	l.waiting++
	return l
}

func (ls *lines) leave(key string, l *line) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if l.waiting--; l.waiting == 0 && ls.byKey[key] == l {
		delete(ls.byKey, key)
	}
}

// answer ends the wait of everyone in l. Who comes later forms a new line.
func (ls *lines) answer(key string, l *line, held *Record) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l.answer = held
	close(l.answered)
	if ls.byKey[key] == l {
		delete(ls.byKey, key)
	}
}

// wake lets the line of a key, if there is one, ask the store at once.
func (ls *lines) wake(key string) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if l := ls.byKey[key]; l != nil {
		select {
		case l.woken <- struct{}{}:
		default:
		}
	}
}
