package idemmail

import (
	"context"
	"errors"
	"log/slog"
	"time"
)

// report logs and observes what was decided about a call.
func (g *Guard) report(ctx context.Context, c *call) {
	var err error
	if c.err != nil {
		err = c.err
	}
	g.emit(ctx, c, c.kind, c.receipt, err)
}

// reportUnsettled tells that the key of a call could not be kept or freed.
func (g *Guard) reportUnsettled(ctx context.Context, c *call) {
	if !errors.Is(c.failure, ErrLeaseLost) {
		g.reportStore(ctx, c, EventStoreFailed, c.failure)
		return
	}
	if !c.lost { // else a renewal has told it
		c.lost = true
		g.reportStore(ctx, c, EventLeaseLost, c.failure)
	}
}

// reportStore tells what happened between a call and the store, in addition to
// what is decided about the call.
func (g *Guard) reportStore(ctx context.Context, c *call, kind EventKind, err error) {
	g.emit(ctx, c, kind, nil, err)
}

// emit tells an event to the log and to the observer. A panic in either is
// caught: neither may cost a mail.
func (g *Guard) emit(ctx context.Context, c *call, kind EventKind, r *Receipt, err error) {
	g.log(ctx, c, kind, r, err)
	if g.options.Observe == nil {
		return
	}
	defer func() { _ = recover() }()
	g.options.Observe(ctx, Event{
		Kind:      kind,
		Namespace: g.options.Namespace,
		Key:       c.key,
		Receipt:   r,
		Err:       err,
		Elapsed:   time.Since(c.began),
		Store:     c.inStore,
	})
}

// log writes the log line of an event. It has the key, the codes and the
// store's errors; never a transport's error, a subject, a body or an address.
func (g *Guard) log(ctx context.Context, c *call, kind EventKind, r *Receipt, err error) {
	defer func() { _ = recover() }()
	logger := g.options.Logger
	if logger == nil {
		logger = slog.Default()
	}
	level, text := logLine(kind)
	if !logger.Enabled(ctx, level) {
		return
	}
	attrs := []slog.Attr{slog.String("namespace", g.options.Namespace), slog.String("key", c.key)}
	switch {
	case kind == EventStoreFailed:
		attrs = append(attrs, slog.String("code", CodeStoreFailed), slog.Any("error", err))
	case kind == EventLeaseLost:
		attrs = append(attrs, slog.String("code", "idempotency.lease_lost"), slog.Any("error", err))
	case r != nil:
		attrs = append(attrs, slog.String("status", string(r.Status)))
		if r.Code != "" {
			attrs = append(attrs, slog.String("code", r.Code))
		}
		if r.Category != "" {
			attrs = append(attrs, slog.String("category", string(r.Category)))
		}
	}
	logger.LogAttrs(ctx, level, text, attrs...)
}

// logLine is the level and text of the log line of an event.
func logLine(kind EventKind) (slog.Level, string) {
	switch kind {
	case EventSent:
		return slog.LevelDebug, "idemmail: sent"
	case EventReplayed:
		return slog.LevelDebug, "idemmail: answered with an earlier send's receipt"
	case EventRenewed:
		return slog.LevelDebug, "idemmail: lease renewed"
	case EventInFlight:
		return slog.LevelInfo, "idemmail: not sent, another send under the key is in flight"
	case EventResolved:
		return slog.LevelInfo, "idemmail: key settled as sent by an operator"
	case EventForgotten:
		return slog.LevelInfo, "idemmail: key freed by an operator"
	case EventKeyReused:
		return slog.LevelWarn, "idemmail: not sent, the key was used for another message"
	case EventStoreFailed:
		return slog.LevelWarn, "idemmail: store failed"
	case EventLeaseLost:
		return slog.LevelWarn, "idemmail: lease lost, the message may go twice"
	case EventUnknown:
		return slog.LevelWarn, "idemmail: outcome unknown, the message may have gone"
	}
	return slog.LevelDebug, "idemmail: not sent"
}
