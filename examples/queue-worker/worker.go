package main

import (
	"context"
	"errors"
	"fmt"
	"net/mail"
	"time"

	"github.com/idemmail/idemmail"
)

// An order is what a mail is about.
type order struct {
	ID int    `json:"id"`
	To string `json:"to"`
}

// message is the order's mail, the same each time. Its key is not the job's id:
// the mail must not go twice either where it was enqueued twice.
func (o order) message() *idemmail.Message {
	return &idemmail.Message{
		From:           mail.Address{Name: "Shop", Address: "shop@example.com"},
		To:             []mail.Address{{Address: o.To}},
		Subject:        fmt.Sprint("Your order ", o.ID),
		Text:           "Thank you.\n",
		IdempotencyKey: o.key(),
	}
}

func (o order) key() string { return fmt.Sprintf("order-%d", o.ID) }

// A worker does the jobs of a queue.
type worker struct {
	queue  *queue
	mailer *idemmail.IdempotencyTransport
	crash  crashPoint
}

// run does all jobs, until each is done or parked.
func (w worker) run(ctx context.Context) error {
	for {
		for _, j := range w.queue.pending() {
			if err := w.do(ctx, j); err != nil {
				return err
			}
		}
		if len(w.queue.pending()) == 0 {
			return nil
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// do tries a job once. Its error is one of the queue: what is not written
// there has not happened, and another worker has to begin from the file.
func (w worker) do(ctx context.Context, j *job) error {
	receipt, err := w.mailer.Send(ctx, j.order.message())
	key := j.order.key()
	switch judge(receipt, err) {
	case ack:
		how := "sent"
		if receipt.Replayed {
			how = "sent before"
		}
		w.crash.at("before-ack", key)
		w.queue.tear = w.crash.tearing("mid-ack", key)
		if err := w.queue.ack(j); err != nil {
			return err
		}
		w.crash.at("after-ack", key)
		fmt.Printf("job %d, %s: %s\n", j.id, key, how)
	case park:
		w.crash.at("before-park", key)
		w.queue.tear = w.crash.tearing("mid-park", key)
		if err := w.queue.park(j, err.Error()); err != nil {
			return err
		}
		w.crash.at("after-park", key)
		fmt.Printf("job %d, %s: parked: %s\n", j.id, key, j.why)
	case retry: // it stays in the queue
		if j.why != err.Error() { // not each time
			j.why = err.Error()
			fmt.Printf("job %d, %s: later: %s\n", j.id, key, j.why)
		}
	}
	return nil
}

// A verdict is what is done with a job.
type verdict int

const (
	ack   verdict = iota + 1
	retry         // let it come again
	park
)

// judge says what an answer means for the job. The order counts: a send that is
// in flight may look unknown as well.
//
// A real queue lets no job come again for ever: it parks it after some time,
// which has to be shorter than Options.TTL.
func judge(receipt *idemmail.Receipt, err error) verdict {
	switch {
	case err == nil:
		return ack // sent, now or before
	case errors.Is(err, idemmail.ErrInFlight):
		return retry // never ack: the other one may fail
	case errors.Is(err, idemmail.ErrDeliveryUnknown):
		return park // it may have gone: trying again gets the same answer
	case errors.Is(err, idemmail.ErrDuplicate):
		return ack // with Options.RejectDuplicates
	case receipt.Retryable:
		return retry // not sent, or no store
	default:
		return park // never will be sent, or a key that was used for another mail
	}
}
