package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// A report is everything that was found out, when and where.
type report struct {
	date     time.Time
	machine  machine
	load     string // at the beginning
	scale    scale
	versions []string
	chapters []*findings
}

// measure measures all chapters, one after another.
func measure(ctx context.Context, s scale, now time.Time) *report {
	r := &report{date: now, machine: thisMachine(), load: load(), scale: s, versions: versions()}
	for _, c := range chapters() {
		if ctx.Err() != nil {
			break
		}
		fmt.Fprintln(os.Stderr, "measuring:", c.title)
		f := c.find(ctx, s)
		r.chapters = append(r.chapters, f)
		r.versions = append(r.versions, f.versions...)
	}
	return r
}

// err is what went wrong. What is only missing is no error.
func (r *report) err() error {
	var errs []error
	for _, f := range r.chapters {
		if f.failed {
			errs = append(errs, fmt.Errorf("%s: %s", f.chapter.title, f.gap))
		}
	}
	return errors.Join(errs...)
}

// write writes the page and the plot.
func (r *report) write(folder string) error {
	return errors.Join(
		os.WriteFile(filepath.Join(folder, "performance.md"), []byte(r.page()), 0o644),
		os.WriteFile(filepath.Join(folder, "performance.svg"), []byte(r.plot()), 0o644),
	)
}

const pageHead = `# Performance

Written by ` + "`make bench`" + `. Everything is measured side by side with what it is made of, or with what others made for the same job: all ways take
turns, round by round, and what counts is the median of the ratios of single rounds, in which the shortest of a few turns of each way counts;
behind it stand the quartiles. Ratios carry over to other machines, times do not, so there are none here, and no promise of any.
`

// page answers the report in Markdown.
func (r *report) page() string {
	var b strings.Builder
	b.WriteString(pageHead)
	fmt.Fprintf(&b, "\n- %s, on %s\n", r.date.UTC().Format(time.DateOnly), r.machine)
	fmt.Fprintf(&b, "- %s\n", strings.Join(r.versions, "; "))
	fmt.Fprintf(&b, "- %d rounds in memory, %d with a server, %d of what takes a second or more\n", r.scale.rounds, r.scale.slow, r.scale.slower)
	if r.busy() {
		fmt.Fprintf(&b, "- **The machine was busy with other work** (a load of %s when this began): quartiles are wide, and what needs a second core has to do without.\n", r.load)
	}
	for _, f := range r.chapters {
		f.write(&b)
	}
	return b.String()
}

// busy reports whether others had the cores.
func (r *report) busy() bool {
	load, err := strconv.ParseFloat(r.load, 64)
	return err == nil && load > float64(r.machine.cores)
}

// write writes the chapter.
func (f *findings) write(b *strings.Builder) {
	fmt.Fprintf(b, "\n## %s\n\n%s\n", f.chapter.title, f.chapter.text)
	if f.gap != "" {
		fmt.Fprintf(b, "\n**Not measured, or not all: %s**\n", f.gap)
	}
	if len(f.chapter.rows) > 0 {
		b.WriteString("\n| # | what | target | measured | |\n|---|---|---|---|---|\n")
	}
	for _, r := range f.chapter.rows {
		s := f.samples[r.what]
		fmt.Fprintf(b, "| %s | %s | %s | %s | %s |\n", r.id, r.what, r.target(), r.measured(s), r.verdict(s))
	}
}

func (r row) target() string {
	switch {
	case r.atMost != 0:
		return "≤ " + r.value(r.atMost)
	case r.atLeast != 0:
		return "≥ " + r.value(r.atLeast)
	}
	return ""
}

func (r row) measured(s sample) string {
	switch {
	case r.test != "":
		return "counted by `" + r.test + "`"
	case s == nil:
		return "not measured"
	case len(s) == 1:
		return r.value(s.median())
	}
	return fmt.Sprintf("%s (%s to %s)", r.value(s.median()), r.number(s.quantile(0.25)), r.number(s.quantile(0.75)))
}

// verdict says whether the target is met, and why not.
func (r row) verdict(s sample) string {
	switch {
	case r.test != "":
		return "a test"
	case s == nil || r.target() == "":
		return ""
	case r.meets(s.median()):
		return "met"
	}
	if r.why == "" {
		return "**missed**"
	}
	return "**missed**: " + r.why
}

func (r row) meets(measured float64) bool {
	return (r.atMost == 0 || measured <= r.atMost) && measured >= r.atLeast
}

// value is a number with its unit.
func (r row) value(n float64) string {
	if r.unit == "" {
		return r.number(n) + " x"
	}
	return r.number(n) + " " + r.unit
}

// number has as many digits as mean something.
func (r row) number(n float64) string {
	switch {
	case r.unit != "" || n >= 100:
		return strconv.FormatFloat(n, 'f', 0, 64)
	case n >= 10:
		return strconv.FormatFloat(n, 'f', 1, 64)
	}
	return strconv.FormatFloat(n, 'f', 2, 64)
}
