package sestransport

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/idemmail/idemmail"
)

// An Event is what SES publishes about a mail that it has taken (Developer
// Guide, "Contents of event data that Amazon SES publishes to Amazon SNS").
type Event struct {
	Type      string              // "Send", "Delivery", "Bounce", "Reject" and so on
	MessageID string              // SES's MessageId; a receipt's ProviderID
	SentAt    time.Time           // when SES took the mail
	Tags      map[string][]string // the mail's email tags, and SES's own ("ses:caller-identity")
}

// maxEnvelopes is how deep an event may be wrapped: EventBridge in SNS, with
// one to spare.
const maxEnvelopes = 3

// detailTypes are what EventBridge calls the types.
var detailTypes = map[string]string{
	"Email Sent":               "Send",
	"Email Rejected":           "Reject",
	"Email Delivered":          "Delivery",
	"Email Delivery Delayed":   "DeliveryDelay",
	"Email Bounced":            "Bounce",
	"Email Complaint Received": "Complaint",
	"Email Opened":             "Open",
	"Email Clicked":            "Click",
	"Email Subscribed":         "Subscription",
	"Email Rendering Failed":   "Rendering Failure",
}

// ParseEvent reads an event as an event destination of a configuration set
// delivers it: as it is, in a notification of SNS (also where SQS passes that
// on), or in an event of EventBridge. Notifications of an identity's feedback,
// which have no tags, are an error.
//
// It does not check who wrote the data. Read it from a queue of your own, or
// verify the signature of SNS before.
func ParseEvent(data []byte) (Event, error) {
	eventType := "" // by the envelope
	for range maxEnvelopes {
		var e struct {
			Message    string          `json:"Message"`     // SNS
			Detail     json.RawMessage `json:"detail"`      // EventBridge
			DetailType string          `json:"detail-type"` // EventBridge
			EventType  string          `json:"eventType"`
			Mail       struct {
				MessageID string              `json:"messageId"`
				Timestamp time.Time           `json:"timestamp"`
				Tags      map[string][]string `json:"tags"`
			} `json:"mail"`
		}
		if err := json.Unmarshal(data, &e); err != nil {
			return Event{}, fmt.Errorf("sestransport: event: %w", err)
		}
		eventType = cmp.Or(e.EventType, detailTypes[e.DetailType], eventType)
		switch {
		case eventType != "" && e.Mail.MessageID != "":
			return Event{
				Type:      eventType,
				MessageID: e.Mail.MessageID,
				SentAt:    e.Mail.Timestamp.UTC(),
				Tags:      e.Mail.Tags,
			}, nil
		case e.Message != "":
			data = []byte(e.Message)
		case len(e.Detail) > 0:
			data = e.Detail
		default:
			return Event{}, errors.New("sestransport: event: neither an event of SES nor an envelope with one")
		}
	}
	return Event{}, errors.New("sestransport: event: too many envelopes")
}

// Sent reports whether the event shows that SES took the mail and set out to
// deliver it. A Reject (SES found a virus) and a Rendering Failure do not: the
// mail goes nowhere, and trying again will not help.
func (e Event) Sent() bool {
	switch e.Type {
	case "Send", "Delivery", "DeliveryDelay", "Bounce", "Complaint", "Open", "Click", "Subscription":
		return true
	}
	return false
}

// A Reconciler lists what is unsettled and settles it, with keys that are
// without their namespace. *[idemmail.IdempotencyTransport] and
// *[idemmail.Guard] are Reconcilers.
type Reconciler interface {
	Unsettled(ctx context.Context, olderThan time.Duration) iter.Seq2[idemmail.Entry, error]
	Resolve(ctx context.Context, e idemmail.Entry, r *idemmail.Receipt) error
}

// Resolve settles as sent the keys of r that the events show to have gone, and
// reports how many these were. An event belongs to a key by its KeyTag, so t
// and the decorator must have the same namespace, and messages a configuration
// set that publishes events.
//
// Most events are of mails whose outcome is known; they match nothing and are
// passed over. The unsettled keys are listed once per call, and not at all
// where no event has the tag, so hand in events by the batch.
//
// A key whose send is still under way is left alone, with an error that wraps
// [idemmail.ErrInFlight]: hand its event in again later (leave it on the
// queue), for should that send's answer be lost, the event is what tells. Other
// errors are those of r, joined; what could be settled was.
func (t *Transport) Resolve(ctx context.Context, r Reconciler, events ...Event) (int, error) {
	byTag := map[string]Event{}
	for _, e := range events {
		if values := e.Tags[t.opts.KeyTag]; t.opts.KeyTag != "" && len(values) == 1 && e.Sent() {
			byTag[values[0]] = e
		}
	}
	if len(byTag) == 0 {
		return 0, nil
	}
	resolved := 0
	var errs []error
	for entry, err := range r.Unsettled(ctx, 0) {
		if err != nil {
			errs = append(errs, err)
			continue
		}
		tag := idemmail.ProviderKey(t.namespace, entry.Key)
		e, ok := byTag[tag]
		if !ok {
			continue
		}
		delete(byTag, tag)
		switch err := r.Resolve(ctx, entry, t.eventReceipt(e)); {
		case err == nil:
			resolved++
		case errors.Is(err, idemmail.ErrChanged): // settled meanwhile
		default:
			errs = append(errs, fmt.Errorf("sestransport: resolve: %w", err))
		}
		if len(byTag) == 0 {
			break
		}
	}
	return resolved, errors.Join(errs...)
}

func (t *Transport) eventReceipt(e Event) *idemmail.Receipt {
	return &idemmail.Receipt{
		Status:     idemmail.StatusSent,
		Transport:  t.opts.ID,
		ProviderID: e.MessageID,
		Response:   "event " + e.Type,
		At:         e.SentAt.Truncate(time.Millisecond),
	}
}
