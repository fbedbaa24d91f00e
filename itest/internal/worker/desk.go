package worker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/mail"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/itest/internal/backend"
	"github.com/idemmail/idemmail/smtptransport"
)

// ConfigEnv has a test binary work: it holds the Config. TestMain asks for it
// and calls Main.
const ConfigEnv = "IDEMMAIL_ITEST_WORKER"

// Main is the worker's process. It answers its exit status.
func Main() int {
	var c Config
	err := json.Unmarshal([]byte(os.Getenv(ConfigEnv)), &c)
	if err == nil {
		err = work(c, os.Stdin, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "worker:", err)
		return 1
	}
	return 0
}

// A desk is where a worker's lines come in and go out.
type desk struct {
	config     Config
	transports map[string]*idemmail.IdempotencyTransport // by mode
	sendings   map[int]*sending

	mu  sync.Mutex // of out
	out *json.Encoder
}

// work does what the lines of in say, until their end.
func work(c Config, in io.Reader, out io.Writer) error {
	d := &desk{config: c, transports: map[string]*idemmail.IdempotencyTransport{}, sendings: map[int]*sending{}, out: json.NewEncoder(out)}
	store := c.Store
	if store == nil {
		s, hangUp, err := backend.Dial(c.URL)
		if err != nil {
			return err
		}
		defer hangUp()
		store = s
	}
	if c.StopAt != "" {
		store = stopStore{store, c.StopAt}
	}
	for name, m := range c.Modes {
		if err := d.open(name, m, store); err != nil {
			return err
		}
	}

	var all sync.WaitGroup
	defer all.Wait()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for lines := json.NewDecoder(in); ; {
		var r request
		if err := lines.Decode(&r); errors.Is(err, io.EOF) || errors.Is(err, io.ErrClosedPipe) {
			return nil
		} else if err != nil {
			return err
		}
		switch s := d.sendings[r.ID]; {
		case len(r.Send) > 0:
			d.send(ctx, &all, r)
		case r.Outcome != "":
			s.outcome <- r.Outcome
		case r.Cancel:
			s.cancel()
		case r.GoOn:
			close(s.goOn)
		}
	}
}

func (d *desk) open(name string, m Mode, store idemmail.Store) error {
	var next idemmail.Transport = idemmail.TransportFunc(ask)
	if d.config.SMTP != "" {
		smtp, err := smtptransport.New(smtptransport.Options{Addr: d.config.SMTP, TLS: smtptransport.NoTLS, KeyHeader: "X-Idempotency-Key"})
		if err != nil {
			return err
		}
		next = idemmail.TransportFunc(func(ctx context.Context, m *idemmail.Message) (*idemmail.Receipt, error) {
			sendingOf(ctx, m.IdempotencyKey).tell(note{Began: true})
			return smtp.Send(ctx, m)
		})
	}
	t, err := idemmail.New(next, idemmail.Options{
		Store:        store,
		Namespace:    d.config.Namespace,
		Lease:        m.Lease,
		TTL:          m.TTL,
		StoreTimeout: m.StoreTimeout,
		MaxSend:      m.MaxSend,
		WaitInFlight: m.WaitInFlight,
		AtMostOnce:   m.AtMostOnce,
		FailOpen:     m.FailOpen,
		Logger:       slog.New(slog.DiscardHandler),
		Observe: func(ctx context.Context, e idemmail.Event) {
			if s := sendingOf(ctx, e.Key); s != nil {
				s.tell(note{Observed: e.Kind})
			}
		},
	})
	d.transports[name] = t
	return err
}

// A sending is a message that is on its way.
type sending struct {
	message
	desk    *desk
	outcome chan Outcome
	goOn    chan struct{}
	cancel  context.CancelFunc
}

func (s *sending) tell(n note) {
	n.ID = s.ID
	s.desk.mu.Lock()
	defer s.desk.mu.Unlock()
	_ = s.desk.out.Encode(n) // nobody may be listening any more
}

type sendingsKey struct{}

// sendingOf answers the sending under a key in the call that has the context.
func sendingOf(ctx context.Context, key string) *sending {
	sendings, _ := ctx.Value(sendingsKey{}).(map[string]*sending)
	return sendings[key]
}

// send begins a send, or a batch of them.
func (d *desk) send(ctx context.Context, all *sync.WaitGroup, r request) {
	ctx, cancel := context.WithCancel(ctx)
	byKey := map[string]*sending{}
	sendings := make([]*sending, len(r.Send))
	mails := make([]*idemmail.Message, len(r.Send))
	for i, m := range r.Send {
		s := &sending{message: m, desk: d, outcome: make(chan Outcome, 1), goOn: make(chan struct{}), cancel: cancel}
		d.sendings[m.ID], byKey[m.Key], sendings[i] = s, s, s
		mails[i] = &idemmail.Message{
			From:           mail.Address{Address: "shop@example.com"},
			To:             []mail.Address{{Address: "customer@example.com"}},
			Subject:        cmp.Or(m.Subject, "Your order "+m.Key),
			Text:           "Thank you.\r\n",
			SendAt:         m.SendAt,
			MessageID:      fmt.Sprintf("%d.%d@worker.example.com", os.Getpid(), m.ID), // tells who has sent it
			IdempotencyKey: m.Key,
		}
	}
	ctx = context.WithValue(ctx, sendingsKey{}, byKey)
	transport := d.transports[r.Mode]
	all.Go(func() {
		defer cancel()
		results := make([]idemmail.Result, len(mails))
		panicked := true
		func() {
			defer func() { _ = recover() }()
			if r.Batch {
				results = transport.SendMany(ctx, mails)
			} else {
				results[0].Receipt, results[0].Err = transport.Send(ctx, mails[0])
			}
			panicked = false
		}()
		for i, s := range sendings {
			if panicked {
				s.tell(note{Answer: &Answer{Panicked: true}})
				continue
			}
			s.tell(note{Answer: answer(results[i])})
		}
	})
}

// ask is the transport that asks the test what becomes of a message.
func ask(ctx context.Context, m *idemmail.Message) (*idemmail.Receipt, error) {
	s := sendingOf(ctx, m.IdempotencyKey)
	s.tell(note{Began: true})
	outcome, over := Hang, ctx.Done()
	if s.Deaf {
		over = nil
	}
	select {
	case outcome = <-s.outcome:
	case <-over:
	}
	switch outcome {
	case Sent:
		return &idemmail.Receipt{Status: idemmail.StatusSent, ProviderID: fmt.Sprintf("%d-%d", os.Getpid(), s.ID)}, nil
	case Failed:
		return nil, idemmail.NotSent(errors.New("refused"))
	case Unknown:
		return nil, idemmail.MayBeSent(errors.New("connection lost"))
	case Panic:
		panic("the transport panics")
	}
	<-ctx.Done()
	return nil, ctx.Err()
}

var sentinels = map[string]error{
	"ErrInFlight":        idemmail.ErrInFlight,
	"ErrKeyReused":       idemmail.ErrKeyReused,
	"ErrNotBegun":        idemmail.ErrNotBegun,
	"ErrAborted":         idemmail.ErrAborted,
	"ErrAbandoned":       idemmail.ErrAbandoned,
	"ErrPanicked":        idemmail.ErrPanicked,
	"ErrStoreFailed":     idemmail.ErrStoreFailed,
	"ErrStoreFull":       idemmail.ErrStoreFull,
	"ErrBadRecord":       idemmail.ErrBadRecord,
	"ErrDeliveryUnknown": idemmail.ErrDeliveryUnknown,
	"context.Canceled":   context.Canceled,
}

func answer(r idemmail.Result) *Answer {
	a := &Answer{
		Status:     r.Receipt.Status,
		Code:       r.Receipt.Code,
		ProviderID: r.Receipt.ProviderID,
		Replayed:   r.Receipt.Replayed,
		Retryable:  r.Receipt.Retryable,
		Nil:        r.Err == nil,
	}
	for name, err := range sentinels {
		if errors.Is(r.Err, err) {
			a.Is = append(a.Is, name)
		}
	}
	return a
}

// A stopStore stops the sends that are to stop.
type stopStore struct {
	idemmail.Store
	at Step
}

func (s stopStore) Reserve(ctx context.Context, key, fingerprint string, lease time.Duration) (token string, held *idemmail.Record, err error) {
	s.around(ctx, key, BeforeReserve, MidReserve, AfterReserve, func() {
		token, held, err = s.Store.Reserve(ctx, key, fingerprint, lease)
	})
	return token, held, err
}

func (s stopStore) Complete(ctx context.Context, key, token string, rec idemmail.Record, ttl time.Duration) (err error) {
	s.around(ctx, key, BeforeComplete, MidComplete, AfterComplete, func() {
		err = s.Store.Complete(ctx, key, token, rec, ttl)
	})
	return err
}

func (s stopStore) Release(ctx context.Context, key, token string) (err error) {
	s.around(ctx, key, BeforeRelease, MidRelease, AfterRelease, func() {
		err = s.Store.Release(ctx, key, token)
	})
	return err
}

// around makes a call of the store. One that is to stop in the middle waits
// for the test, which then has the answer lost, and never returns.
func (s stopStore) around(ctx context.Context, key string, before, mid, after Step, call func()) {
	_, key, _ = strings.Cut(key, ":")
	sending := sendingOf(ctx, key)
	stops := sending != nil && sending.Stop
	if stops && (s.at == before || s.at == mid) {
		sending.tell(note{Stopped: true})
		<-sending.goOn
	}
	call()
	if stops && s.at == after {
		sending.tell(note{Stopped: true})
	}
	if stops && (s.at == mid || s.at == after) {
		select {}
	}
}
