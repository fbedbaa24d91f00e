package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"net/http"

	"github.com/idemmail/idemmail"
)

// maxBody is how large an event may be.
const maxBody = 1 << 20

// A webhook is an http.Handler that runs its work once for each event, however
// often and at how many places at once the event is delivered.
type webhook struct {
	guard *idemmail.Guard
	work  func(ctx context.Context, event []byte) error
}

// ServeHTTP takes the event's id from the header Event-Id. Its signature, which
// a real handler checks first, is left out here.
func (h webhook) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	event, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if tooLarge := new(http.MaxBytesError); errors.As(err, &tooLarge) {
		http.Error(w, "event is too large", http.StatusRequestEntityTooLarge)
		return
	} else if err != nil {
		http.Error(w, "cannot read the event", http.StatusBadRequest)
		return
	}
	// Senders hang up when they are kept waiting. Work that has begun goes on:
	// stopped in the middle, its outcome would be unknown. MaxSend ends it.
	ctx := context.WithoutCancel(r.Context())
	// The same id with another body is another event, which must not pass for
	// one that is done.
	sum := sha256.Sum256(event)
	_, err = h.guard.Do(ctx, r.Header.Get("Event-Id"), hex.EncodeToString(sum[:]), func(ctx context.Context) (*idemmail.Receipt, error) {
		return nil, h.work(ctx, event) // no receipt and no error: done
	})
	status := statusOf(err)
	if status == http.StatusConflict || status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "5") // seconds
	}
	if err != nil {
		http.Error(w, http.StatusText(status), status)
		return
	}
	w.WriteHeader(status)
}

// statusOf tells the sender of a webhook what became of its event. The order
// counts: a delivery in flight comes first, since it may look unknown as well.
func statusOf(err error) int {
	var sendError *idemmail.SendError
	switch {
	case err == nil:
		return http.StatusOK // done, by this delivery or by an earlier one
	case errors.Is(err, idemmail.ErrInFlight):
		return http.StatusConflict // another delivery is at it: come again
	case errors.Is(err, idemmail.ErrInvalidKey):
		return http.StatusBadRequest
	case errors.Is(err, idemmail.ErrDeliveryUnknown):
		return http.StatusBadGateway // half done, perhaps: a person has to look
	case errors.As(err, &sendError) && sendError.Receipt.Retryable:
		return http.StatusServiceUnavailable // not done, or no store: come again
	default:
		return http.StatusUnprocessableEntity // not done, and never will be; or an id used twice
	}
}
