package sestransport_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sesv2"
	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/sestransport"
)

func TestParseEvent(t *testing.T) {
	read := func(name string) string {
		data, err := os.ReadFile("testdata/" + name)
		require.NoError(t, err)
		return string(data)
	}
	inSNS := func(s string) string {
		message, err := json.Marshal(s)
		require.NoError(t, err)
		return `{"Type":"Notification","Message":` + string(message) + `}`
	}
	want := sestransport.Event{
		Type:      "Send",
		MessageID: "0102019a-7c191be4-e9ae-4d12-a87d-dd0099a07f8a-000000",
		SentAt:    time.Date(2026, 10, 14, 5, 2, 16, 645e6, time.UTC),
		Tags: map[string][]string{
			"ses:configuration-set": {"events"},
			"ses:caller-identity":   {"mailer"},
			"idempotency-key":       {idemmail.ProviderKey("shop", "order/1042")},
		},
	}
	for name, data := range map[string]string{
		"as it is":               read("event-send.json"),
		"SNS":                    read("event-sns.json"),
		"EventBridge":            read("event-eventbridge.json"),
		"EventBridge within SNS": inSNS(read("event-eventbridge.json")),
	} {
		t.Run(name, func(t *testing.T) {
			e, err := sestransport.ParseEvent([]byte(data))
			require.NoError(t, err)
			require.Equal(t, want, e)
		})
	}
	for detail, want := range map[string]string{
		"Email Sent": "Send", "Email Rejected": "Reject", "Email Bounced": "Bounce",
		"Email Complaint Received": "Complaint", "Email Rendering Failed": "Rendering Failure",
	} {
		t.Run("type by the envelope: "+detail, func(t *testing.T) {
			e, err := sestransport.ParseEvent([]byte(`{"detail-type":"` + detail + `","detail":{"mail":{"messageId":"m"}}}`))
			require.NoError(t, err)
			require.Equal(t, want, e.Type)
		})
	}
	for name, data := range map[string]string{
		"nothing":                  "",
		"not JSON":                 "<html>",
		"null":                     "null",
		"a list":                   "[]",
		"empty":                    "{}",
		"subscription to SNS":      `{"Type":"SubscriptionConfirmation","Message":"You have chosen to subscribe","Token":"t"}`,
		"feedback notification":    `{"notificationType":"Bounce","mail":{"messageId":"m","timestamp":"2026-10-14T05:02:16.645Z"}}`,
		"no MessageId":             `{"eventType":"Send","mail":{"timestamp":"2026-10-14T05:02:16.645Z"}}`,
		"a time that is none":      `{"eventType":"Send","mail":{"messageId":"m","timestamp":"soon"}}`,
		"another EventBridge type": `{"detail-type":"Scheduled Event","detail":{}}`,
		"wrapped too often":        inSNS(inSNS(inSNS(read("event-send.json")))),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := sestransport.ParseEvent([]byte(data))
			require.Error(t, err)
		})
	}
}

func TestEventSent(t *testing.T) {
	for _, kind := range []string{"Send", "Delivery", "DeliveryDelay", "Bounce", "Complaint", "Open", "Click", "Subscription"} {
		require.True(t, sestransport.Event{Type: kind}.Sent(), kind)
	}
	for _, kind := range []string{"", "Reject", "Rendering Failure", "Something new"} {
		require.False(t, sestransport.Event{Type: kind}.Sent(), kind)
	}
}

// shop is a decorated transport whose SES takes messages, or loses answers.
func shop(t *testing.T, answers ...error) (*sestransport.Transport, *idemmail.IdempotencyTransport, *int) {
	t.Helper()
	calls := new(int)
	api := apiFunc(func(context.Context, *sesv2.SendEmailInput) (*sesv2.SendEmailOutput, error) {
		*calls++
		if len(answers) >= *calls && answers[*calls-1] != nil {
			return nil, answers[*calls-1]
		}
		return &sesv2.SendEmailOutput{MessageId: aws.String(fmt.Sprint("m", *calls))}, nil
	})
	tr := newTransport(t, api, sestransport.Options{KeyTag: "key", Namespace: "shop"})
	guarded, err := idemmail.New(tr, idemmail.Options{Namespace: "shop"})
	require.NoError(t, err)
	return tr, guarded, calls
}

func eventOf(kind, namespace, key string) sestransport.Event {
	return sestransport.Event{
		Type:      kind,
		MessageID: "0102-" + key,
		SentAt:    time.Date(2026, 10, 14, 5, 2, 16, 645_999_999, time.UTC),
		Tags:      map[string][]string{"key": {idemmail.ProviderKey(namespace, key)}},
	}
}

func TestAnEventSettlesAnUnknownOutcome(t *testing.T) {
	tr, guarded, calls := shop(t, io.ErrUnexpectedEOF)
	_, err := guarded.Send(t.Context(), message())
	require.ErrorIs(t, err, idemmail.ErrDeliveryUnknown)

	n, err := tr.Resolve(t.Context(), guarded,
		eventOf("Send", "shop", "another key"), eventOf("Send", "shop", "order/1042"), eventOf("Delivery", "shop", "order/1042"))
	require.NoError(t, err)
	require.Equal(t, 1, n)

	r, err := guarded.Send(t.Context(), message())
	require.NoError(t, err)
	require.True(t, r.Replayed)
	require.Equal(t, idemmail.StatusSent, r.Status)
	require.Equal(t, "0102-order/1042", r.ProviderID)
	require.Equal(t, "ses", r.Transport)
	require.Equal(t, time.Date(2026, 10, 14, 5, 2, 16, 645e6, time.UTC), r.At)
	require.Equal(t, 1, *calls)

	n, err = tr.Resolve(t.Context(), guarded, eventOf("Open", "shop", "order/1042"))
	require.NoError(t, err)
	require.Zero(t, n, "settled before")
}

func TestEventsThatSettleNothing(t *testing.T) {
	other := eventOf("Send", "shop", "order/1042")
	other.Tags["key"] = append(other.Tags["key"], "two values")
	untagged := eventOf("Send", "shop", "order/1042")
	untagged.Tags = nil
	for name, e := range map[string]sestransport.Event{
		"other namespace":   eventOf("Send", "staging", "order/1042"),
		"other key":         eventOf("Send", "shop", "order/1043"),
		"rejected":          eventOf("Reject", "shop", "order/1042"),
		"rendering failure": eventOf("Rendering Failure", "shop", "order/1042"),
		"tag of two values": other,
		"no tag":            untagged,
	} {
		t.Run(name, func(t *testing.T) {
			tr, guarded, calls := shop(t, io.ErrUnexpectedEOF)
			_, err := guarded.Send(t.Context(), message())
			require.Error(t, err)
			n, err := tr.Resolve(t.Context(), guarded, e)
			require.NoError(t, err)
			require.Zero(t, n)
			_, err = guarded.Send(t.Context(), message())
			require.ErrorIs(t, err, idemmail.ErrDeliveryUnknown)
			require.Equal(t, 1, *calls)
		})
	}
}

// An event can be faster than the answer of SES, or outlive it.
func TestAnEventOfASendThatIsUnderWayIsKept(t *testing.T) {
	begun, release := make(chan struct{}), make(chan struct{})
	api := apiFunc(func(context.Context, *sesv2.SendEmailInput) (*sesv2.SendEmailOutput, error) {
		close(begun)
		<-release
		return nil, io.ErrUnexpectedEOF
	})
	tr := newTransport(t, api, sestransport.Options{KeyTag: "key", ID: "shop"})
	guarded, err := idemmail.New(tr, idemmail.Options{})
	require.NoError(t, err)
	done := make(chan error)
	go func() {
		_, err := guarded.Send(t.Context(), message())
		done <- err
	}()
	<-begun
	n, err := tr.Resolve(t.Context(), guarded, eventOf("Send", "shop", "order/1042"))
	require.ErrorIs(t, err, idemmail.ErrInFlight)
	require.Zero(t, n)

	close(release)
	require.ErrorIs(t, <-done, idemmail.ErrDeliveryUnknown)
	n, err = tr.Resolve(t.Context(), guarded, eventOf("Send", "shop", "order/1042"))
	require.NoError(t, err)
	require.Equal(t, 1, n)
}

// reconciler lists what it is told and settles as it is told.
type reconciler struct {
	entries []idemmail.Entry
	errs    []error // of the listing, beside the entry
	resolve func(e idemmail.Entry) error
	listed  int
}

func (r *reconciler) Unsettled(context.Context, time.Duration) iter.Seq2[idemmail.Entry, error] {
	return func(yield func(idemmail.Entry, error) bool) {
		for i, e := range r.entries {
			r.listed++
			if !yield(e, r.errs[i]) {
				return
			}
		}
	}
}

func (r *reconciler) Resolve(_ context.Context, e idemmail.Entry, _ *idemmail.Receipt) error {
	return r.resolve(e)
}

func TestResolveGoesOnAfterErrors(t *testing.T) {
	bad, down := fmt.Errorf("%w: b", idemmail.ErrBadRecord), errors.New("down")
	r := &reconciler{
		entries: []idemmail.Entry{{Key: "a"}, {Key: "b"}, {Key: "c"}, {Key: "d"}, {Key: "e"}},
		errs:    []error{nil, bad, nil, nil, nil},
		resolve: func(e idemmail.Entry) error {
			return map[string]error{"a": down, "c": fmt.Errorf("resolve: %w", idemmail.ErrChanged)}[e.Key]
		},
	}
	tr := newTransport(t, uncalled(t), sestransport.Options{KeyTag: "key", Namespace: "shop"})
	n, err := tr.Resolve(t.Context(), r, eventOf("Send", "shop", "a"), eventOf("Send", "shop", "c"), eventOf("Send", "shop", "d"))
	require.ErrorIs(t, err, bad)
	require.ErrorIs(t, err, down)
	require.NotErrorIs(t, err, idemmail.ErrChanged)
	require.Equal(t, 1, n)
	require.Equal(t, 4, r.listed, "ends with the last event that can match")
}

func TestResolveListsNothingWithoutATaggedEvent(t *testing.T) {
	r := &reconciler{entries: []idemmail.Entry{{Key: "a"}}, errs: []error{nil}}
	for _, opts := range []sestransport.Options{{KeyTag: "other"}, {}} {
		tr := newTransport(t, uncalled(t), opts)
		n, err := tr.Resolve(t.Context(), r, eventOf("Send", "ses", "a"))
		require.NoError(t, err)
		require.Zero(t, n)
	}
	require.Zero(t, r.listed)
}
