package idemmail

import (
	"container/heap"
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
	if q == nil || q.last != nil && e.since.Before(q.last.since) {
		q = &memQueue{memList: memList{kind: byEnd}, lifetime: e.lifetime}
		m.current[e.lifetime] = q
	}
	if q == m.idle {
		m.idle = nil
	}
	e.queue = q
	q.push(e)
	if q.first == e {
		heap.Push(&m.heap, q)
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
		heap.Remove(&m.heap, q.index)
		m.retire(q)
	case first:
		heap.Fix(&m.heap, q.index)
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
func (q *memQueue) ends() time.Time { return q.first.since.Add(q.lifetime) }

// A memHeap has the queue whose first entry ends first in front. It is a
// [heap.Interface].
type memHeap []*memQueue

func (h memHeap) Len() int           { return len(h) }
func (h memHeap) Less(i, j int) bool { return h[i].ends().Before(h[j].ends()) }

func (h memHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *memHeap) Push(x any) {
	q := x.(*memQueue)
	q.index = len(*h)
	*h = append(*h, q)
}

func (h *memHeap) Pop() any {
	last := len(*h) - 1
	q := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return q
}
