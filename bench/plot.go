package main

import (
	"fmt"
	"html"
	"math"
	"strconv"
	"strings"
)

// A panel is one of the two halves of the plot: curves over a logarithmic
// axis.
type panel struct {
	left   float64 // of its frame
	title  string
	label  string // of the axis
	xs     []int
	curves []curve
}

// The plot's size, and where the frames of its panels stand.
const (
	plotWidth, plotHeight   = 960, 420
	frameTop, frameHeight   = 50, 280
	frameWidth              = 390
	firstFrame, secondFrame = 60, 540
)

// colours tell curves apart for the colour-blind too (Okabe and Ito).
var colours = []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000"}

// plot answers the curves as SVG.
func (r *report) plot() string {
	panels := []panel{
		{left: firstFrame, title: "Cost of an operation, against that with the fewest keys", label: "keys in the store", xs: r.scale.keys},
		{left: secondFrame, title: "Time per send, against that of one sender", label: "senders at once", xs: r.scale.senders},
	}
	for _, f := range r.chapters {
		for _, c := range f.curves {
			i := 0
			if c.kind == bySenders {
				i = 1
			}
			panels[i].curves = append(panels[i].curves, c)
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n", plotWidth, plotHeight)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="white"/>`+"\n", plotWidth, plotHeight)
	for _, p := range panels {
		p.draw(&b)
	}
	b.WriteString("</svg>\n")
	return b.String()
}

func (p panel) draw(b *strings.Builder) {
	text := func(x, y float64, anchor, more, s string) {
		fmt.Fprintf(b, `<text x="%.1f" y="%.1f" text-anchor="%s"%s>%s</text>`+"\n", x, y, anchor, more, html.EscapeString(s))
	}
	line := func(x1, y1, x2, y2 float64, colour string) {
		fmt.Fprintf(b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s"/>`+"\n", x1, y1, x2, y2, colour)
	}
	text(p.left, frameTop-20, "start", ` font-weight="bold"`, p.title)
	top := p.top()
	step := 0.5
	if top > 3 {
		step = math.Ceil(top / 8)
	}
	for tick := 0.0; tick <= top; tick += step {
		line(p.left, p.y(tick, top), p.left+frameWidth, p.y(tick, top), "#dddddd")
		text(p.left-8, p.y(tick, top)+4, "end", "", strconv.FormatFloat(tick, 'f', -1, 64))
	}
	for _, x := range p.xs {
		line(p.x(x), frameTop+frameHeight, p.x(x), frameTop+frameHeight+5, "#888888")
		text(p.x(x), frameTop+frameHeight+20, "middle", "", thousands(x))
	}
	text(p.left+frameWidth/2, frameTop+frameHeight+40, "middle", "", p.label)
	for i, c := range p.curves {
		colour := colours[i%len(colours)]
		var path []string
		for _, at := range c.points {
			path = append(path, fmt.Sprintf("%.1f,%.1f", p.x(at.x), p.y(at.y, top)))
			fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>`+"\n", p.x(at.x), p.y(at.y, top), colour)
		}
		fmt.Fprintf(b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n", strings.Join(path, " "), colour)
		y := frameTop + 15 + 18*float64(i)
		fmt.Fprintf(b, `<rect x="%.1f" y="%.1f" width="14" height="4" fill="%s"/>`+"\n", p.left+14, y-6, colour)
		text(p.left+34, y, "start", ` stroke="white" stroke-width="3" paint-order="stroke"`, c.name)
	}
}

// top is the upper end of the axis of costs, with room for the names of the
// curves above them.
func (p panel) top() float64 {
	highest := 1.0
	for _, c := range p.curves {
		for _, at := range c.points {
			highest = max(highest, at.y)
		}
	}
	return math.Ceil(highest * 1.4)
}

// x is where a number of keys or senders stands.
func (p panel) x(n int) float64 {
	first, last := math.Log(float64(p.xs[0])), math.Log(float64(p.xs[len(p.xs)-1]))
	return p.left + frameWidth*(math.Log(float64(n))-first)/(last-first)
}

// y is where a cost stands.
func (p panel) y(cost, top float64) float64 { return frameTop + frameHeight*(1-cost/top) }

// thousands writes 1000000 as 1,000,000.
func thousands(n int) string {
	if n < 1000 {
		return strconv.Itoa(n)
	}
	return fmt.Sprintf("%s,%03d", thousands(n/1000), n%1000)
}
