package main

import "time"

// A scale is how much is measured. Ratios of a smaller one say less.
type scale struct {
	rounds int           // of what is measured in memory
	slow   int           // of what goes to a server
	slower int           // of what takes a second or more
	turns  int           // of each way in a round, of which the shortest counts
	turn   time.Duration // how long one takes, at least
	clean  func()        // empties what is filled, before each turn; may be nil

	full    int   // entries of a store that is full
	large   int   // entries of a large one
	batch   []int // messages in one SendMany
	keys    []int // in the stores whose growth is drawn
	senders []int // at once, where their number is drawn
}

var fullScale = scale{
	rounds: 101, slow: 61, slower: 5, turns: 3, turn: time.Millisecond / 2,
	full: 100_000, large: 1_000_000, batch: []int{100, 1000},
	keys:    []int{1_000, 10_000, 100_000, 1_000_000},
	senders: []int{1, 2, 4, 8, 16, 32, 64},
}

// quickScale tries everything and measures nothing: it is for the test.
var quickScale = scale{
	rounds: 3, slow: 2, slower: 1, turns: 2, turn: 50 * time.Microsecond,
	full: 100, large: 1000, batch: []int{5, 10},
	keys:    []int{10, 100},
	senders: []int{1, 4},
}

// once answers the scale for what takes so long that one turn will do.
func (s scale) once() scale {
	s.turns = 1
	return s
}

// lasting answers the scale with longer turns.
func (s scale) lasting(times int) scale {
	s.turn *= time.Duration(times)
	return s
}
