package main

import (
	"context"
	"fmt"
	"testing"
)

// A chapter is a part of the page: what is measured together, since it needs
// the same things.
type chapter struct {
	title   string
	text    string // what all its rows have in common
	rows    []row
	measure func(t testing.TB, s scale, f *findings)
}

// chapters are those of the page.
func chapters() []chapter {
	return []chapter{
		fingerprintChapter(),
		storeChapter(),
		sendChapter(),
		redisChapter(),
		mongoChapter(),
		postgresChapter(),
		sqliteChapter(),
		growthChapter(),
	}
}

// A row is a thing that is measured. Most are ratios.
type row struct {
	id      string // of the target; empty: this row has none
	what    string // unique within the chapter
	atMost  float64
	atLeast float64 // either this or atMost is the target; both 0: there is none
	unit    string  // empty: times
	test    string  // counts this instead of measuring it
	why     string  // it is missed, where it is
}

// findings are what was found out about the rows of one chapter.
type findings struct {
	chapter  chapter
	samples  map[string]sample // by what
	versions []string          // of the servers
	curves   []curve
	gap      string // why some were not measured; empty: all were
	failed   bool   // which was a failure
}

// add notes what was measured for a row.
func (f *findings) add(t testing.TB, what string, s sample) {
	t.Helper()
	for _, r := range f.chapter.rows {
		if r.what == what {
			f.samples[what] = s
			return
		}
	}
	t.Fatal("no row: ", what)
}

// find measures a chapter.
func (c chapter) find(ctx context.Context, s scale) *findings {
	f := &findings{chapter: c, samples: make(map[string]sample)}
	f.gap, f.failed = stage(ctx, c.title, func(t testing.TB) { c.measure(t, s, f) })
	if f.gap == "" && ctx.Err() == nil {
		for _, r := range c.rows {
			if f.samples[r.what] == nil && r.test == "" {
				f.gap, f.failed = fmt.Sprintf("%q was forgotten", r.what), true
			}
		}
	}
	return f
}
