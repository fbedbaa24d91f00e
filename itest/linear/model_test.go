package linear

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/idemmail/idemmail"
)

// A question is what a store was asked about one key, and when.
type question struct {
	method      string
	key, token  string
	state       idemmail.State // of the entry that forget and resolve are about
	fingerprint string         // reserve, complete
	receipt     string         // complete, resolve: told by its ProviderID
	life        time.Duration  // lease or TTL
	many        bool           // one of several of one call
	asked       time.Duration  // since the history began
}

// An answer is what it answered, and when.
type answer struct {
	token    string           // reserve, lookup
	held     *idemmail.Record // reserve, lookup; nil: none
	refused  bool             // ErrLeaseLost or ErrChanged
	answered time.Duration
}

// A shelf is what the model knows of one key. The moment of each step is known
// only to lie between question and answer, so the times here are bounds; the
// store may be within them as it likes, but not beyond.
type shelf struct {
	now         time.Duration // no step that is yet to come was before, where ends are not apart
	state       idemmail.State
	token       string // empty after resolve: the store made one that nobody knows
	fingerprint string
	receipt     string
	born        span // when it was reserved, renewed or completed
	ends        span // when its time has passed
}

type span struct{ earliest, latest time.Duration }

const never = math.MaxInt64

// slack is how far the store's times may be from this process's.
type slack struct {
	ends time.Duration // in when a record's time has passed
	age  time.Duration // in ages

	// Where ends, or ages, are apart, a call goes by the time of a moment of its
	// own between question and answer, and not by that of its step: it looks at
	// the clock first and then waits, or what it did is seen by others only once
	// it is on disk. So of two calls that overlap, the second to take its step
	// may be the first by its time.
	endsApart, agesApart bool
}

// storeModel is the contract of idemmail.Store for one key, as a sequential
// specification with time.
func storeModel(s slack) porcupine.Model {
	return porcupine.Model{
		Partition: byKey,
		Init:      func() any { return shelf{} },
		Step: func(state, input, output any) (bool, any) {
			return state.(shelf).step(s, input.(question), output.(answer))
		},
	}
}

func byKey(history []porcupine.Operation) [][]porcupine.Operation {
	keys := make(map[string][]porcupine.Operation)
	for _, op := range history {
		key := op.Input.(question).key
		keys[key] = append(keys[key], op)
	}
	var parts [][]porcupine.Operation
	for _, part := range keys {
		parts = append(parts, part)
	}
	return parts
}

// A step is one question and its answer on the way into a shelf.
type step struct {
	shelf // what becomes of it
	slack slack
	at    span // the moment by which it goes
	aged  span // the moment from which, and to which, it counts ages
}

// step reports whether the answer is one that the contract allows in this
// state, and what becomes of it.
func (sh shelf) step(s slack, q question, a answer) (bool, shelf) {
	call := span{q.asked, a.answered}
	inOrder := span{max(sh.now, q.asked), a.answered}
	st := &step{shelf: sh, slack: s, at: inOrder, aged: inOrder}
	if s.endsApart {
		st.at = call
	}
	if s.agesApart {
		st.aged = call
	}
	ok := st.allows(q, a)
	if !s.endsApart {
		st.now = st.at.earliest
	}
	return ok, st.shelf
}

func (st *step) allows(q question, a answer) bool {
	mine := st.state != "" && st.token == q.token && q.token != ""
	switch q.method {
	case "reserve":
		if a.held != nil {
			return st.alive() && st.shows(a.held)
		}
		if !st.gone() {
			return false
		}
		st.put(idemmail.StatePending, a.token, q.fingerprint, "", q.life)
		return true
	case "complete":
		if a.refused {
			return !mine && st.alive()
		}
		if !mine && !st.gone() {
			return false
		}
		st.put(idemmail.StateDone, q.token, q.fingerprint, q.receipt, q.life)
		return true
	case "release":
		pending := mine && st.state == idemmail.StatePending
		if a.refused {
			return !pending && st.alive()
		}
		if !pending {
			return st.gone()
		}
		st.perhapsOver()
		return true
	case "renew":
		pending := mine && st.state == idemmail.StatePending
		if a.refused {
			return !pending || st.gone()
		}
		if !pending || !st.alive() {
			return false
		}
		st.put(idemmail.StatePending, q.token, st.fingerprint, "", q.life)
		return true
	case "renew, perhaps":
		if mine && st.state == idemmail.StatePending {
			st.perhapsRenewed(q.life)
		}
		return true
	case "lookup":
		if a.held == nil {
			return st.gone()
		}
		if !st.alive() || !st.shows(a.held) {
			return false
		}
		if st.token == "" {
			st.token = a.token
		}
		return st.token == a.token
	case "forget", "resolve":
		named := mine && st.state == q.state
		if a.refused {
			return !named || st.gone()
		}
		if !named || !st.alive() {
			return false
		}
		if q.method == "forget" {
			st.clear()
		} else {
			st.put(idemmail.StateDone, "", st.fingerprint, q.receipt, q.life)
		}
		return true
	}
	panic("unknown method " + q.method)
}

// alive reports whether a record may have held the key at the step.
func (st *step) alive() bool {
	if st.state == "" || st.at.earliest-st.slack.ends >= st.ends.latest {
		return false
	}
	st.ends.earliest = max(st.ends.earliest, st.at.earliest-st.slack.ends)
	return true
}

// gone reports whether nothing may have held the key at the step.
func (st *step) gone() bool {
	if st.state == "" {
		return true
	}
	if st.ends.earliest == never || st.at.latest+st.slack.ends < st.ends.earliest {
		return false
	}
	st.at.earliest = max(st.at.earliest, st.ends.earliest-st.slack.ends)
	st.ends.latest = min(st.ends.latest, st.at.latest+st.slack.ends)
	return true
}

// perhapsRenewed has the record begin and end when it did, or when it would if
// it was renewed.
func (st *step) perhapsRenewed(life time.Duration) {
	was := st.shelf
	st.put(was.state, was.token, was.fingerprint, was.receipt, life)
	st.born = span{min(was.born.earliest, st.born.earliest), max(was.born.latest, st.born.latest)}
	st.ends = span{min(was.ends.earliest, st.ends.earliest), max(was.ends.latest, st.ends.latest)}
}

func (st *step) put(state idemmail.State, token, fingerprint, receipt string, life time.Duration) {
	st.shelf = shelf{state: state, token: token, fingerprint: fingerprint, receipt: receipt, born: st.aged}
	if life == idemmail.NoExpiry {
		st.ends = span{never, never}
	} else {
		st.ends = span{st.at.earliest + life, st.at.latest + life}
	}
}

func (st *step) clear() { st.shelf = shelf{} }

// perhapsOver removes the record, unless the step may have found it over and
// left it there: then one whose time is apart may come after it and yet find it
// alive, and renew it say.
func (st *step) perhapsOver() {
	if !st.slack.endsApart || st.ends.earliest == never || st.at.latest+st.slack.ends < st.ends.earliest {
		st.clear()
		return
	}
	st.ends = span{min(st.ends.earliest, st.at.earliest), min(st.ends.latest, st.at.latest+st.slack.ends)}
}

// shows reports whether the record is the one on the shelf.
func (st *step) shows(r *idemmail.Record) bool {
	return r.State == st.state && r.Fingerprint == st.fingerprint && shown(r) == st.receipt &&
		(r.Receipt != nil) == (r.State == idemmail.StateDone) &&
		r.Age >= st.aged.earliest-st.born.latest-st.slack.age &&
		r.Age <= st.aged.latest-st.born.earliest+st.slack.age
}

// shown answers which receipt the record shows.
func shown(r *idemmail.Record) string {
	if r.Receipt == nil {
		return ""
	}
	return r.Receipt.ProviderID
}

// check reports what is wrong with a history: nothing, or the operations on
// the keys whose answers no order of the questions explains.
func check(s slack, history []porcupine.Operation) error {
	var wrong []string
	for _, part := range byKey(history) {
		switch result, found := porcupine.CheckOperationsVerbose(storeModel(s), part, time.Minute); result {
		case porcupine.Illegal:
			wrong = append(wrong, "not linearizable: "+explained(part, found)+"the whole:\n"+describe(part))
		case porcupine.Unknown:
			wrong = append(wrong, fmt.Sprintf("undecided after a minute: %d operations", len(part)))
		}
	}
	if wrong == nil {
		return nil
	}
	return fmt.Errorf("with a slack of %+v: %s", s, strings.Join(wrong, "\n"))
}

// explained tells what no order explains beyond the longest that was found.
func explained(part []porcupine.Operation, found porcupine.LinearizationInfo) string {
	var longest []porcupine.Operation
	for _, order := range found.PartialLinearizationsOperations()[0] {
		if len(order) > len(longest) {
			longest = order
		}
	}
	placed := make(map[porcupine.Operation]bool)
	for _, op := range longest {
		placed[op] = true
	}
	left := slices.DeleteFunc(slices.Clone(part), func(op porcupine.Operation) bool { return placed[op] })
	last := longest[max(0, len(longest)-5):]
	return "the last that an order explains:\n" + inOrder(last) + "what it leaves:\n" + describe(left[:min(5, len(left))])
}

func describe(history []porcupine.Operation) string {
	return inOrder(slices.SortedFunc(slices.Values(history), func(a, b porcupine.Operation) int { return int(a.Call - b.Call) }))
}

func inOrder(history []porcupine.Operation) string {
	var b strings.Builder
	for _, op := range history {
		q, a := op.Input.(question), op.Output.(answer)
		fmt.Fprintf(&b, "%d  %10v to %10v  %s %s token=%.5s fp=%s receipt=%s life=%v state=%s", op.ClientId, q.asked, a.answered,
			q.method, q.key, q.token, q.fingerprint, q.receipt, q.life, q.state)
		switch {
		case a.held != nil:
			fmt.Fprintf(&b, " -> held %s fp=%s receipt=%s age=%v token=%.5s", a.held.State, a.held.Fingerprint, shown(a.held), a.held.Age, a.token)
		case a.refused:
			b.WriteString(" -> refused")
		default:
			fmt.Fprintf(&b, " -> ok token=%.5s", a.token)
		}
		b.WriteByte('\n')
	}
	return b.String()
}
