package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
)

// A queue is a file of lines, of which each tells what happened to a job: it
// was added, acknowledged or parked. Lines are only ever added, at the end, and
// are on the disk when the method that adds them returns. A queue is for one
// worker at a time.
type queue struct {
	file *os.File
	jobs []*job // by id, from 1

	// tear, for the example's sake, is called when half of a line is written.
	tear func()
}

// A job is a mail that is to be sent.
type job struct {
	id    int
	order order
	state string // what the last line says
	why   string // why it was parked, or is still pending
}

// The states of a job.
const (
	pending = "pending"
	done    = "done"   // acknowledged
	parked  = "parked" // for somebody to look at
)

// An entry is a line of the file.
type entry struct {
	Job   int    `json:"job"`
	State string `json:"state"`
	Order *order `json:"order,omitempty"` // pending
	Why   string `json:"why,omitempty"`   // parked
}

// openQueue opens a queue, or makes one.
func openQueue(name string) (*queue, error) {
	file, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	q := &queue{file: file}
	if err := errors.Join(q.load(), syncDirectory(filepath.Dir(name))); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return q, nil
}

// load reads the file. A last line without its end was cut by a crash: what it
// was to tell has not happened, and it is removed so that the next line does
// not join it.
func (q *queue) load() error {
	content, err := io.ReadAll(q.file)
	if err != nil {
		return err
	}
	whole := bytes.LastIndexByte(content, '\n') + 1
	for line := range bytes.Lines(content[:whole]) {
		var e entry
		if err := json.Unmarshal(line, &e); err != nil {
			return fmt.Errorf("%s: %q: %w", q.file.Name(), line, err)
		}
		if err := q.apply(e); err != nil {
			return err
		}
	}
	if whole == len(content) {
		return nil
	}
	return errors.Join(q.file.Truncate(int64(whole)), q.file.Sync())
}

// apply does to the jobs what an entry tells.
func (q *queue) apply(e entry) error {
	switch {
	case e.State == pending && e.Job == len(q.jobs)+1 && e.Order != nil:
		q.jobs = append(q.jobs, &job{id: e.Job, order: *e.Order, state: pending})
		return nil
	case (e.State == done || e.State == parked) && 1 <= e.Job && e.Job <= len(q.jobs):
		q.jobs[e.Job-1].state, q.jobs[e.Job-1].why = e.State, e.Why
		return nil
	}
	return fmt.Errorf("%s: makes no sense: %+v", q.file.Name(), e)
}

// write writes an entry and, once it is on the disk, applies it. After an error
// the queue must be opened anew: what the file ends with is not known.
func (q *queue) write(e entry) error {
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}
	line = append(line, '\n')
	if q.tear != nil {
		half := len(line) / 2
		if _, err := q.file.Write(line[:half]); err != nil {
			return err
		}
		q.tear()
		line = line[half:]
	}
	if _, err := q.file.Write(line); err != nil {
		return err
	}
	if err := q.file.Sync(); err != nil {
		return err
	}
	return q.apply(e)
}

// add enqueues orders, one job each.
func (q *queue) add(orders ...order) error {
	for _, o := range orders {
		if err := q.write(entry{Job: len(q.jobs) + 1, State: pending, Order: &o}); err != nil {
			return err
		}
	}
	return nil
}

// ack is for a job whose mail was sent.
func (q *queue) ack(j *job) error { return q.write(entry{Job: j.id, State: done}) }

// park is for a job that must not be tried again before somebody has looked.
func (q *queue) park(j *job, why string) error {
	return q.write(entry{Job: j.id, State: parked, Why: why})
}

// pending lists the jobs that are to be done, the oldest first.
func (q *queue) pending() []*job {
	return slices.DeleteFunc(slices.Clone(q.jobs), func(j *job) bool { return j.state != pending })
}

func (q *queue) close() error { return q.file.Close() }

// syncDirectory makes a new file last: its name is in the directory.
func syncDirectory(name string) error {
	if runtime.GOOS == "windows" {
		return nil // directories cannot be synced there
	}
	directory, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(directory.Sync(), directory.Close())
}
