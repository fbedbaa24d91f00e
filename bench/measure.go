package main

import (
	"math"
	"runtime"
	"slices"
	"testing"
	"time"
)

// A way is one of several ways that are compared.
type way struct {
	prepare func(times int) // what must be there first, and is not timed; may be nil
	run     func(times int) // does it so many times
}

// A series is what one run of a way took in each round, in nanoseconds.
type series []float64

// compare lets the ways take turns, so that what slows this machine down for a
// while slows them all, and no way is always the first. In each round, the
// shortest of a few turns of each way counts: the others were interrupted more.
func (s scale) compare(t testing.TB, rounds int, ways ...way) []series {
	t.Helper()
	counts := make([]int, len(ways))
	for i, w := range ways {
		counts[i] = s.count(w)
	}
	runtime.GC()
	taken := make([]series, len(ways))
	for round := range rounds {
		must(t, t.Context().Err())
		for turn := range s.turns * len(ways) {
			i := (round + turn) % len(ways)
			one := float64(s.time(ways[i], counts[i])) / float64(counts[i])
			if turn < len(ways) {
				taken[i] = append(taken[i], one)
			}
			taken[i][round] = min(taken[i][round], one)
		}
	}
	return taken
}

// count answers how many runs of a way make a turn, and warms it up. The
// shortest of three turns counts, since others may have been interrupted; one
// that is long enough for many turns needs no second look.
func (s scale) count(w way) int {
	for n := 1; ; n *= 2 {
		taken := s.time(w, n)
		if taken < 100*s.turn {
			taken = min(taken, s.time(w, n), s.time(w, n))
		}
		if taken >= s.turn {
			return n
		}
	}
}

func (s scale) time(w way, times int) time.Duration {
	if s.clean != nil {
		s.clean()
	}
	return w.time(times)
}

func (w way) time(times int) time.Duration {
	if w.prepare != nil {
		w.prepare(times)
	}
	began := time.Now()
	w.run(times)
	return time.Since(began)
}

// per answers how many times as long as the other one way took, in each round.
func (a series) per(b series) series {
	ratios := make(series, len(a))
	for i := range a {
		ratios[i] = a[i] / b[i]
	}
	return ratios
}

// over answers the same as a sample.
func (a series) over(b series) sample { return newSample(a.per(b)...) }

// A sample is the values of all rounds, sorted.
type sample []float64

func newSample(values ...float64) sample {
	values = slices.Clone(values)
	slices.Sort(values)
	return values
}

func (s sample) median() float64 { return s.quantile(0.5) }

// quantile answers the value below which that part of the sample lies.
func (s sample) quantile(part float64) float64 {
	at := part * float64(len(s)-1)
	low := int(at)
	high := min(low+1, len(s)-1)
	return s[low] + (s[high]-s[low])*(at-math.Floor(at))
}
