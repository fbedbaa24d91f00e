package property

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/idemmail/idemmail"
)

// A model is what the promise says of a few keys, told one call after another.
type model struct {
	options idemmail.Options
	sendAt  func(variant string) time.Time
	keys    map[string]*kept
}

// A kept is what a key holds. When it began and ends is known only as far as
// the troubles of its store let it be told.
type kept struct {
	state    idemmail.State
	variant  string
	receipt  *idemmail.Receipt // once done; nil: not known, only status and code
	status   idemmail.Status   // once done
	code     string
	stale    span // pending: when it is taken for abandoned
	ends     span
	unending bool
}

// A span is the earliest and the latest that something was.
type span struct{ earliest, latest time.Time }

func (s span) plus(d time.Duration) span { return span{s.earliest.Add(d), s.latest.Add(d)} }

func (k *kept) ended(now time.Time) bool { return !k.unending && !now.Before(k.ends.latest) }

// moments are those at which a key's meaning changes.
func (k *kept) moments(o idemmail.Options) []span {
	var all []span
	if !k.unending {
		all = append(all, k.ends)
	}
	if k.state == idemmail.StatePending && o.AtMostOnce && o.Lease != idemmail.NoExpiry {
		all = append(all, k.stale)
	}
	return all
}

// clear waits until it is no longer in doubt what the keys mean, and will not
// be soon.
func (m *model) clear(soon time.Duration, keys ...string) {
	for again := true; again; {
		again = false
		for _, key := range keys {
			k := m.keys[key]
			if k == nil {
				continue
			}
			for _, moment := range k.moments(m.options) {
				if now := time.Now(); now.Before(moment.latest) && !now.Add(soon).Before(moment.earliest) {
					time.Sleep(moment.latest.Sub(now))
					again = true
				}
			}
		}
	}
}

// find is what holds a key now.
func (m *model) find(key string) *kept {
	k := m.keys[key]
	if k != nil && k.ended(time.Now()) {
		delete(m.keys, key)
		return nil
	}
	return k
}

// An attempt is one message on its way, and what is to be made of it.
type attempt struct {
	key, variant string
	trouble      trouble
	outcome      outcome

	first   *attempt // of the same key, earlier in the batch
	held    *kept    // what it finds under its key
	token   bool     // it holds its key
	made    *kept    // what it leaves done under its key
	failed  error    // of the reservation
	upset   bool     // something is to be told of the store
	unkeyed bool
	want    want
	effects []func(during span) // on the model, once it is over
}

// A want is the answer that the promise asks for.
type want struct {
	decided   bool
	kind      idemmail.EventKind
	status    idemmail.Status
	code      string
	retryable bool
	replayed  *kept   // the record that it is answered from
	duplicate bool    // ErrDuplicate
	causes    []error // that errors.Is finds
	category  idemmail.Category
	sends     bool // the transport is handed it
}

func (w *want) refuse(kind idemmail.EventKind, code string, causes ...error) {
	*w = want{decided: true, kind: kind, status: idemmail.StatusFailed, code: code, category: idemmail.CategoryUnknown, causes: causes}
	switch code {
	case idemmail.CodeKeyReused, idemmail.CodeInvalidKey:
		w.category = idemmail.CategoryValidation
	case idemmail.CodeNotBegun, idemmail.CodeStoreFailed:
		w.retryable = true
	case idemmail.CodeInFlight:
		w.status, w.retryable = idemmail.StatusUnknown, true
	case idemmail.CodeAbandoned, idemmail.CodePanicked, idemmail.CodeBatchMismatch:
		w.status = idemmail.StatusUnknown
	}
}

// admit refuses what may not be sent, or comes too late.
func (m *model) admit(ctx context.Context, a *attempt) {
	switch {
	case a.key == "" && !m.options.RequireKey:
		a.unkeyed = true
		a.want = want{decided: true, sends: true}
	case a.key == "" || a.key == badKey:
		a.want.refuse(idemmail.EventFailed, idemmail.CodeInvalidKey, idemmail.ErrInvalidKey)
	case ctx.Err() != nil:
		m.tooLate(a)
	}
}

func (m *model) tooLate(a *attempt) {
	a.held = nil
	a.want.refuse(idemmail.EventFailed, idemmail.CodeNotBegun, idemmail.ErrNotBegun, context.Canceled)
}

// take is the store's part of a reservation.
func (m *model) take(a *attempt, cancel func()) {
	if a.trouble.cancelsInReserve {
		cancel()
	}
	found := m.find(a.key)
	switch a.trouble.reserve {
	case works:
		a.held, a.token = found, found == nil
		return
	case errsAfter, hangsLast:
		if found == nil {
			a.later(func(during span) { m.pend(a, during) })
		}
		a.failed = errReserve
	case bad:
		a.failed = idemmail.ErrBadRecord
	default:
		a.failed = errReserve
	}
}

// judge answers an attempt that was reserved, or leaves it to be sent.
func (m *model) judge(ctx context.Context, a *attempt) {
	switch {
	case ctx.Err() != nil:
		m.tooLate(a)
		m.release(a)
	case a.failed != nil:
		a.upset = true
		if m.options.FailOpen && a.failed != idemmail.ErrBadRecord {
			return
		}
		a.want.refuse(idemmail.EventFailed, idemmail.CodeStoreFailed, idemmail.ErrStoreFailed)
		if a.failed == idemmail.ErrBadRecord {
			a.want.causes = append(a.want.causes, a.failed)
		}
	case a.held != nil:
		m.answerFrom(a, a.held)
	}
}

var errReserve = errors.New("reserve fails")

// answerFrom answers an attempt by the record that holds its key.
func (m *model) answerFrom(a *attempt, k *kept) {
	abandons := m.options.AtMostOnce && m.options.Lease != idemmail.NoExpiry
	switch {
	case k.variant != a.variant:
		a.want.refuse(idemmail.EventKeyReused, idemmail.CodeKeyReused, idemmail.ErrKeyReused)
	case k.state == idemmail.StatePending && abandons && !time.Now().Before(k.stale.latest):
		a.want.refuse(idemmail.EventUnknown, idemmail.CodeAbandoned, idemmail.ErrAbandoned)
	case k.state == idemmail.StatePending:
		a.want.refuse(idemmail.EventInFlight, idemmail.CodeInFlight, idemmail.ErrInFlight)
	case k.status != idemmail.StatusSent && k.status != idemmail.StatusFailed && k.status != idemmail.StatusUnknown:
		a.upset = true
		a.want.refuse(idemmail.EventFailed, idemmail.CodeStoreFailed, idemmail.ErrStoreFailed, idemmail.ErrBadRecord)
	default:
		a.want = want{decided: true, kind: idemmail.EventReplayed, status: k.status, code: k.code, replayed: k,
			duplicate: m.options.RejectDuplicates && k.status != idemmail.StatusFailed}
	}
}

// weigh answers an attempt that was sent, and settles its key. panicked says
// that the transport did not come back.
func (m *model) weigh(a *attempt, ended, panicked, missing bool) {
	o := a.outcome
	status, code := o.weigh(ended)
	switch {
	case panicked:
		a.want.refuse(idemmail.EventUnknown, idemmail.CodePanicked, idemmail.ErrPanicked)
	case missing:
		a.want.refuse(idemmail.EventUnknown, idemmail.CodeBatchMismatch, idemmail.ErrBatchMismatch)
	default:
		a.want = want{decided: true, status: status, code: code}
		switch status {
		case idemmail.StatusSent:
			a.want.kind = idemmail.EventSent
		case idemmail.StatusFailed:
			a.want.kind = idemmail.EventFailed
			a.want.retryable = code == idemmail.CodeInFlight
		case idemmail.StatusUnknown:
			a.want.kind = idemmail.EventUnknown
		}
		if cause := o.cause(); cause != nil && status != idemmail.StatusSent {
			a.want.causes = append(a.want.causes, cause)
		}
		switch code {
		case idemmail.CodeAborted:
			a.want.causes = append(a.want.causes, idemmail.ErrAborted)
		case idemmail.CodeInFlight:
			a.want.causes = append(a.want.causes, idemmail.ErrInFlight)
		}
	}
	a.want.sends = true
	if a.want.status == idemmail.StatusFailed {
		m.release(a)
	} else {
		m.complete(a)
	}
}

// complete keeps the receipt under the key, as far as the store does.
func (m *model) complete(a *attempt) {
	if !a.token {
		return
	}
	done, believed := a.trouble.complete.comes()
	a.upset = !believed
	status, code := a.want.status, a.want.code
	if !done {
		a.later(func(during span) { m.pend(a, during) })
		return
	}
	a.later(func(during span) {
		k := &kept{state: idemmail.StateDone, variant: a.variant, status: status, code: code}
		life := func(t time.Time) time.Duration { return m.options.TTL + max(0, m.sendAt(a.variant).Sub(t)) }
		settled := span{during.earliest.Add(a.outcome.lasts), during.latest}
		k.ends = span{settled.earliest.Add(life(settled.latest)), settled.latest.Add(life(settled.earliest))}
		k.unending = m.options.TTL == idemmail.NoExpiry || m.options.AtMostOnce && status == idemmail.StatusUnknown
		m.keys[a.key], a.made = k, k
	})
}

// release frees the key, as far as the store does.
func (m *model) release(a *attempt) {
	if !a.token {
		return
	}
	done, believed := a.trouble.release.comes()
	a.upset = !believed
	if !done {
		a.later(func(during span) { m.pend(a, during) })
	}
}

// pend leaves the key reserved since some time during the attempt: it may have
// been renewed.
func (m *model) pend(a *attempt, during span) {
	k := &kept{state: idemmail.StatePending, variant: a.variant}
	k.ends = during.plus(m.options.Lease)
	k.stale = during.plus(m.options.Lease + 1)
	k.unending = m.options.AtMostOnce || m.options.Lease == idemmail.NoExpiry
	m.keys[a.key] = k
}

func (a *attempt) later(effect func(during span)) { a.effects = append(a.effects, effect) }

// follow answers an attempt whose key came earlier in the batch.
func (m *model) follow(a *attempt) {
	first := a.first
	switch {
	case first.held != nil:
		m.answerFrom(a, first.held)
	case first.variant != a.variant:
		a.want.refuse(idemmail.EventKeyReused, idemmail.CodeKeyReused, idemmail.ErrKeyReused)
	default:
		a.want = first.want
		a.want.kind, a.want.sends = idemmail.EventReplayed, false
		a.want.replayed = &kept{status: first.want.status, code: first.want.code}
		a.want.duplicate = m.options.RejectDuplicates && first.want.status != idemmail.StatusFailed
	}
}

// agrees reports how an answer differs from what is wanted.
func (w want) agrees(r *idemmail.Receipt, err error) error {
	if r == nil {
		return errors.New("no receipt")
	}
	if r.Status != w.status || r.Code != w.code {
		return fmt.Errorf("answered %s %q, wanted %s %q", r.Status, r.Code, w.status, w.code)
	}
	if r.Replayed != (w.replayed != nil) {
		return fmt.Errorf("replayed: %v", r.Replayed)
	}
	if w.status == idemmail.StatusSent && !w.duplicate {
		if err != nil {
			return fmt.Errorf("sent, and an error: %w", err)
		}
		return nil
	}
	var sendError *idemmail.SendError
	if !errors.As(err, &sendError) || sendError.Receipt != r {
		return fmt.Errorf("error %v is no SendError with the receipt", err)
	}
	for _, cause := range w.causes {
		if !errors.Is(err, cause) {
			return fmt.Errorf("error %q does not match %q", err, cause)
		}
	}
	if errors.Is(err, idemmail.ErrDeliveryUnknown) != (w.status == idemmail.StatusUnknown) {
		return fmt.Errorf("error %q matches ErrDeliveryUnknown wrongly", err)
	}
	if sendError.DeliveryUnknown() != (w.status != idemmail.StatusFailed) {
		return fmt.Errorf("DeliveryUnknown of %q is wrong", err)
	}
	if errors.Is(err, idemmail.ErrDuplicate) != w.duplicate {
		return fmt.Errorf("error %q matches ErrDuplicate wrongly", err)
	}
	if w.category != "" && r.Category != w.category {
		return fmt.Errorf("category %q, wanted %q", r.Category, w.category)
	}
	if (w.retryable || w.status == idemmail.StatusUnknown) && r.Retryable != w.retryable {
		return fmt.Errorf("retryable: %v", r.Retryable)
	}
	return nil
}
