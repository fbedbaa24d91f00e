package mailtest

import (
	"errors"
	"fmt"
	"strings"
)

// A FaultKind says how the promise was broken.
type FaultKind string

const (
	FaultDoubled     FaultKind = "doubled"      // the provider took a message again that it must not be sent
	FaultLost        FaultKind = "lost"         // answered as sent, and never taken
	FaultMisreported FaultKind = "misreported"  // answered as failed, and taken: whoever tries again doubles it
	FaultStuck       FaultKind = "stuck"        // answered as in flight, and nobody holds the key
	FaultRefused     FaultKind = "refused"      // the same message was taken for another under its key
	FaultUnlisted    FaultKind = "unlisted"     // unknown, and not listed for an operator
	FaultStoreFailed FaultKind = "store failed" // the store answered an error that a working one does not
)

// A Fault is one breach of the promise. It is an error.
type Fault struct {
	Kind  FaultKind
	Key   string   // of the message
	Run   string   // what was tried
	What  string   // happened
	Trace []string // the steps that led to it, in order
}

// Error has all of it, on several lines.
func (f *Fault) Error() string {
	return fmt.Sprintf("mailtest: %s: key %q: %s\nwhere %s:\n\t%s", f.Kind, f.Key, f.What, f.Run, strings.Join(f.Trace, "\n\t"))
}

// A Report sums up a simulation.
type Report struct {
	Runs     int      // tried, each with several processes that do the same job
	Crashes  int      // of them, those in which one crashed
	Taken    int      // messages that the provider took
	Repeated int      // of them, those taken again after a crash, as the promise allows
	Waiting  int      // keys whose outcome was unknown in the end and is an operator's to find out
	Faults   []*Fault // in the order of the runs
}

// String is the report in one line.
func (r *Report) String() string {
	return fmt.Sprintf("%d runs, %d crashes: %d messages taken, of them %d again after a crash; %d unknown in the end; %d faults",
		r.Runs, r.Crashes, r.Taken, r.Repeated, r.Waiting, len(r.Faults))
}

func (r *Report) add(run *run) {
	r.Runs++
	if run.crash > 0 {
		r.Crashes++
	}
	r.Taken += run.taken
	r.Repeated += run.repeated
	r.Waiting += run.waiting
	for _, f := range run.faults {
		f.Run = run.String()
		r.Faults = append(r.Faults, f)
	}
}

// err joins the first fault of each kind: more of a kind say little more.
func (r *Report) err() error {
	var errs []error
	seen := make(map[FaultKind]bool)
	for _, f := range r.Faults {
		if !seen[f.Kind] {
			seen[f.Kind] = true
			errs = append(errs, f)
		}
	}
	if len(r.Faults) > len(errs) {
		errs = append(errs, fmt.Errorf("mailtest: %d faults in all", len(r.Faults)))
	}
	return errors.Join(errs...)
}
