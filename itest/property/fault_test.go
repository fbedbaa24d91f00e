package property

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"time"

	"pgregory.net/rapid"

	"github.com/idemmail/idemmail"
)

// A tap is what happens to one call of a store, about one key.
type tap string

const (
	works      tap = "works"
	errsBefore tap = "errs before it does anything"
	errsAfter  tap = "errs after it is done" // its answer is lost
	hangsFirst tap = "hangs before it does anything"
	hangsLast  tap = "hangs after it is done"
	full       tap = "is full"
	bad        tap = "finds a bad record"
	loses      tap = "says that the lease is lost"
	panics     tap = "panics"
	exits      tap = "ends its goroutine"
	both       tap = "answers a token and a record"  // reserve
	neither    tap = "answers neither"               // reserve
	late       tap = "takes a minute, whoever waits" // reserve
)

const lateness = time.Minute

// A settling is what happens to the calls that complete or release one key.
type settling struct {
	first []tap // one for each call
	then  tap   // for all others
}

func drawSettling(t *rapid.T, label string, hangs bool) settling {
	if rapid.IntRange(0, 3).Draw(t, label+" fails") > 0 {
		return settling{then: works}
	}
	ends := []tap{works, works, works, errsBefore, errsAfter, loses, full, bad}
	if hangs {
		ends = append(ends, hangsFirst, hangsLast)
	}
	return settling{
		first: rapid.SliceOfN(rapid.SampledFrom([]tap{errsBefore, errsAfter, panics, exits}), 0, 3).Draw(t, label+" first"),
		then:  rapid.SampledFrom(ends).Draw(t, label+" then"),
	}
}

// come says what settling comes to: whether it is done, and whether the engine
// is left believing that it is.
func (s settling) comes() (done, believed bool) {
	for _, tap := range append(append([]tap{}, s.first...), s.then) {
		switch tap {
		case works:
			return true, true
		case errsAfter, hangsLast:
			done = true
		}
	}
	return done, false
}

// A trouble is what happens to the store's calls about one key, while one
// message is sent.
type trouble struct {
	reserve           tap
	cancelsInReserve  bool // the caller's context ends while it is reserved
	complete, release settling
}

var calm = trouble{reserve: works, complete: settling{then: works}, release: settling{then: works}}

func drawTrouble(t *rapid.T, hangs bool) trouble {
	tr := trouble{
		reserve:          works,
		cancelsInReserve: rapid.IntRange(0, 15).Draw(t, "cancels in reserve") == 0,
		complete:         drawSettling(t, "complete", hangs),
		release:          drawSettling(t, "release", hangs),
	}
	if rapid.IntRange(0, 4).Draw(t, "reserve fails") == 0 {
		taps := []tap{errsBefore, errsAfter, full, bad, panics, exits, both, neither}
		if hangs {
			taps = append(taps, hangsFirst, hangsLast, late)
		}
		tr.reserve = rapid.SampledFrom(taps).Draw(t, "reserve")
	}
	if tr.reserve == both || tr.reserve == late {
		tr.release = calm.release // one that is tried once, and not for the caller
	}
	return tr
}

var errStore = errors.New("the store's own error")

// A faultyStore has troubles.
type faultyStore struct {
	*idemmail.MemStore

	mu       sync.Mutex
	troubles map[string]*trouble // by key; each is used up
	cancel   func()              // the caller's context
}

func (s *faultyStore) meetWith(troubles map[string]*trouble, cancel func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.troubles, s.cancel = troubles, cancel
}

// meet takes what is to happen to the next call about a key.
func (s *faultyStore) meet(key string, next func(*trouble) tap) tap {
	s.mu.Lock()
	defer s.mu.Unlock()
	tr := s.troubles[key]
	if tr == nil {
		return works
	}
	return next(tr)
}

func (s *settling) next() tap {
	if len(s.first) == 0 {
		return s.then
	}
	tap := s.first[0]
	s.first = s.first[1:]
	return tap
}

// suffer does a call as the tap says, and answers its error, or that of do.
func suffer(ctx context.Context, tap tap, do func() error) error {
	switch tap {
	case errsBefore:
		return errStore
	case errsAfter:
		_ = do()
		return errStore
	case hangsFirst:
		<-ctx.Done()
		return ctx.Err()
	case hangsLast:
		_ = do()
		<-ctx.Done()
		return ctx.Err()
	case full:
		return idemmail.ErrStoreFull
	case bad:
		return idemmail.ErrBadRecord
	case loses:
		return idemmail.ErrLeaseLost
	case panics:
		panic(errStore)
	case exits:
		runtime.Goexit()
	}
	return do()
}

func (s *faultyStore) Reserve(ctx context.Context, key, fingerprint string, lease time.Duration) (token string, held *idemmail.Record, err error) {
	tap := s.meet(key, func(tr *trouble) tap {
		if tr.cancelsInReserve {
			tr.cancelsInReserve = false
			s.cancel()
		}
		tap := tr.reserve
		tr.reserve = works
		return tap
	})
	if tap == neither {
		return "", nil, nil
	}
	err = suffer(ctx, tap, func() (err error) {
		token, held, err = s.MemStore.Reserve(context.WithoutCancel(ctx), key, fingerprint, lease)
		return err
	})
	switch {
	case err != nil:
		return "", nil, err
	case tap == both && token == "":
		token = "none of the store's"
	case tap == both:
		held = &idemmail.Record{State: idemmail.StatePending, Fingerprint: fingerprint}
	case tap == late:
		time.Sleep(lateness)
	}
	return token, held, nil
}

func (s *faultyStore) Complete(ctx context.Context, key, token string, rec idemmail.Record, ttl time.Duration) error {
	tap := s.meet(key, func(tr *trouble) tap { return tr.complete.next() })
	return suffer(ctx, tap, func() error { return s.MemStore.Complete(context.WithoutCancel(ctx), key, token, rec, ttl) })
}

func (s *faultyStore) Release(ctx context.Context, key, token string) error {
	tap := s.meet(key, func(tr *trouble) tap { return tr.release.next() })
	return suffer(ctx, tap, func() error { return s.MemStore.Release(context.WithoutCancel(ctx), key, token) })
}
