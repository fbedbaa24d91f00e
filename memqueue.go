package idemmail

import (
	"math"
	"time"
)

// The lists of entries, by the links that they use.
const (
	byEnd = iota
	byCompletion
)

// memLinks are the neighbours of an entry in one list.
type memLinks struct{ prev, next *memEntry }

// A memList is a list of entries through their own links.
type memList struct {
	kind        int // byEnd or byCompletion
	first, last *memEntry
}

// push appends an entry.
func (l *memList) push(e *memEntry) {
	e.links[l.kind] = memLinks{prev: l.last}
	if l.last == nil {
		l.first = e
	} else {
		l.last.links[l.kind].next = e
	}
	l.last = e
}

// remove takes out an entry that is in the list.
func (l *memList) remove(e *memEntry) {
	at := e.links[l.kind]
	if at.prev == nil {
		l.first = at.next
	} else {
		at.prev.links[l.kind].next = at.next
	}
	if at.next == nil {
		l.last = at.prev
	} else {
		at.next.links[l.kind].prev = at.prev
	}
	e.links[l.kind] = memLinks{}
}

// memEnds finds the entry whose time ends first.
//
// Entries of one lifetime end in the order in which they begin, so a queue of
// them is sorted by itself, and a heap has only to order the queues: two, as
// a rule, one of leases and one of TTLs. Where the clock has gone back, the
// next entry begins another queue, and the one before it drains.
type memEnds struct {
	current map[time.Duration]*memQueue // the queue of each lifetime that takes entries
	heap    memHeap                     // the queues that are not empty
	idle    *memQueue                   // the empty queue in current, if any: leases come and go one at a time
}

// A memQueue is a run of entries of one lifetime, the first to end in front.
type memQueue struct {
	memList
	lifetime time.Duration
	index    int // in the heap
}

// next returns the entry that ends first, or nil.
func (m *memEnds) next() *memEntry {
	if len(m.heap) == 0 {
		return nil
	}
	return m.heap[0].first
}

// add takes an entry whose lifetime ends and has just begun.
func (m *memEnds) add(e *memEntry) {
	q := m.current[e.lifetime]
	if q == nil || q.last != nil && e.since < q.last.since {
		q = &memQueue{memList: memList{kind: byEnd}, lifetime: e.lifetime}
		m.current[e.lifetime] = q
	}
	if q == m.idle {
		m.idle = nil
	}
	e.queue = q
	q.push(e)
	if q.first == e {
		m.heap.push(q)
	}
}

// remove takes out an entry that was added.
func (m *memEnds) remove(e *memEntry) {
	q := e.queue
	first := q.first == e
	q.memList.remove(e)
	e.queue = nil
	switch {
	case q.first == nil:
		m.heap.remove(q)
		m.retire(q)
	case first:
		m.heap.fix(q.index)
	}
}

// retire keeps an empty queue for the next entry of its lifetime, and lets go
// of the one that was kept before, so that there are never more queues than
// one and the entries.
func (m *memEnds) retire(q *memQueue) {
	if m.current[q.lifetime] != q {
		return
	}
	if m.idle != nil {
		delete(m.current, m.idle.lifetime)
	}
	m.idle = q
}

// ends is when the time of the first entry ends.
func (q *memQueue) ends() time.Duration {
	if q.first.since > math.MaxInt64-q.lifetime {
		return math.MaxInt64
	}
	return q.first.since + q.lifetime
}

// A memHeap is a binary heap of queues: each ends no later than the two below
// it, and knows its place.
type memHeap []*memQueue

func (h *memHeap) push(q *memQueue) {
	*h = append(*h, q)
	q.index = len(*h) - 1
	h.fix(q.index)
}

func (h *memHeap) remove(q *memQueue) {
	last := len(*h) - 1
	moved := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	if moved != q {
		h.place(moved, q.index)
		h.fix(moved.index)
	}
}

// fix moves the queue at i to where it belongs.
func (h memHeap) fix(i int) {
	q := h[i]
	ends := q.ends()
	for i > 0 {
		parent := (i - 1) / 2
		if h[parent].ends() <= ends {
			break
		}
		h.place(h[parent], i)
		i = parent
	}
	for {
		child := 2*i + 1
		if right := child + 1; right < len(h) && h[right].ends() < h[child].ends() {
			child = right
		}
		if child >= len(h) || ends <= h[child].ends() {
			break
		}
		h.place(h[child], i)
		i = child
	}
	h.place(q, i)
}

func (h memHeap) place(q *memQueue, i int) { h[i], q.index = q, i }
