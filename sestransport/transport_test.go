package sestransport_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/mail"
	"net/textproto"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sesv2"
	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/sestransport"
)

func TestNew(t *testing.T) {
	client := newClient(t, "http://127.0.0.1:1")
	for name, tt := range map[string]struct {
		client sestransport.API
		opts   sestransport.Options
		want   string // in the error; empty: none
	}{
		"zero":                       {client, sestransport.Options{}, ""},
		"nil client":                 {nil, sestransport.Options{}, "client"},
		"negative concurrency":       {client, sestransport.Options{Concurrency: -1}, "Concurrency"},
		"key tag with a space":       {client, sestransport.Options{KeyTag: "the key"}, "KeyTag"},
		"key tag too long":           {client, sestransport.Options{KeyTag: strings.Repeat("k", 257)}, "KeyTag"},
		"namespace with a colon":     {client, sestransport.Options{KeyTag: "key", Namespace: "a:b"}, "Namespace"},
		"ID with a colon":            {client, sestransport.Options{KeyTag: "key", ID: "a:b"}, "Namespace"},
		"ID with a colon, no tag":    {client, sestransport.Options{ID: "a:b"}, ""},
		"ID with a colon, set apart": {client, sestransport.Options{KeyTag: "key", ID: "a:b", Namespace: "a"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			tr, err := sestransport.New(tt.client, tt.opts)
			if tt.want == "" {
				require.NoError(t, err)
				require.NotNil(t, tr)
				return
			}
			require.ErrorContains(t, err, tt.want)
		})
	}
}

func TestID(t *testing.T) {
	client := newClient(t, "http://127.0.0.1:1")
	require.Equal(t, "ses", newTransport(t, client, sestransport.Options{}).ID())
	require.Equal(t, "ses-eu", newTransport(t, client, sestransport.Options{ID: "ses-eu"}).ID())
}

// fullMessage sets every field that SES can carry.
func fullMessage() *idemmail.Message {
	yes, no := true, false
	return &idemmail.Message{
		From:    mail.Address{Name: "Käthe's Shop", Address: "shop@example.com"},
		ReplyTo: []mail.Address{{Name: "Help", Address: "help@example.com"}},
		To:      []mail.Address{{Name: "Ann, Accounts", Address: "ann@example.org"}, {Address: "bob@example.org"}},
		Cc:      []mail.Address{{Address: "cc@example.org"}},
		Bcc:     []mail.Address{{Address: "bcc@example.org"}},
		Subject: "Ihre Bestellung: Größe 42",
		Text:    "Grüße\r\nKäthe",
		HTML:    `<p>Grüße</p><img src="cid:logo">`,
		Header: textproto.MIMEHeader{
			"X-Note":           {"größer", "plain"},
			"List-Unsubscribe": {"<https://example.com/u>"},
			"X-Nothing":        {},
		},
		Attachments: []idemmail.Attachment{
			{Filename: "logo.png", ContentType: "image/png", ContentID: "logo", Inline: true, Content: []byte{0x89, 0, 0xff}},
			{Filename: "Größe.txt", ContentType: "text/plain; charset=utf-8", Content: []byte("42\n")},
			{Filename: "empty.bin"},
		},
		MessageID:      "made.here@example.com",
		InReplyTo:      "first@example.org",
		References:     []string{"zeroth@example.org", "first@example.org"},
		SendAt:         time.Now().Add(-time.Minute),
		Tracking:       idemmail.Tracking{Opens: &no, Clicks: &yes},
		Tags:           []string{"campaign=spring_2026", "kind=order"},
		Metadata:       map[string]string{"order": "1042", "customer": "77-a"},
		IdempotencyKey: "order/1042",
	}
}

func TestEveryFieldReachesTheWire(t *testing.T) {
	s := newServer(t, sent)
	tr := newTransport(t, newClient(t, s.URL), sestransport.Options{
		ConfigurationSet: "events", KeyTag: "idempotency-key", Namespace: "shop",
	})

	r, err := tr.Send(t.Context(), fullMessage())
	require.NoError(t, err)
	require.WithinDuration(t, time.Now(), r.At, time.Minute)
	require.Equal(t, r.At.UTC().Truncate(time.Millisecond), r.At)
	r.At = time.Time{}
	require.Equal(t, &idemmail.Receipt{
		Status:     idemmail.StatusSent,
		Transport:  "ses",
		ProviderID: "0102-message-000000",
		Response:   "request id 4f7a-request",
	}, r)

	got := s.only(t)
	require.Equal(t, http.MethodPost, got.Method)
	require.Equal(t, "/v2/email/outbound-emails", got.Path)
	require.Contains(t, got.Header.Get("Authorization"), "AWS4-HMAC-SHA256")
	for _, field := range []string{"Idempotency-Key", "X-Idempotency-Key"} {
		require.NotContains(t, got.Header, field, "net/http repeats a request that has it")
	}
	want, err := os.ReadFile("testdata/request.json")
	require.NoError(t, err)
	require.JSONEq(t, string(want), string(got.Body))
}

// Whatever a name has in it, a reader of the address finds the name.
func TestNamesReachTheWire(t *testing.T) {
	for _, name := range []string{"Ann", `Ann "A" \ B`, "Käthe", "Käthe, Shop", `Käthe \ Shop`, "山田 =?utf-8?q?a?="} {
		t.Run(name, func(t *testing.T) {
			var in *sesv2.SendEmailInput
			tr := newTransport(t, apiFunc(func(_ context.Context, input *sesv2.SendEmailInput) (*sesv2.SendEmailOutput, error) {
				in = input
				return &sesv2.SendEmailOutput{MessageId: aws.String("m")}, nil
			}), sestransport.Options{})
			m := message()
			m.From.Name, m.To[0].Name = name, name
			_, err := tr.Send(t.Context(), m)
			require.NoError(t, err)
			from, err := mail.ParseAddress(*in.FromEmailAddress)
			require.NoError(t, err)
			require.Equal(t, m.From, *from)
			to, err := mail.ParseAddress(in.Destination.ToAddresses[0])
			require.NoError(t, err)
			require.Equal(t, m.To[0], *to)
		})
	}
}

// What is in the golden file is what another program computes from the key.
func TestKeyTagIsProviderKey(t *testing.T) {
	for name, tt := range map[string]struct {
		opts sestransport.Options
		key  string
		want string
	}{
		"namespace":               {sestransport.Options{KeyTag: "k", Namespace: "shop"}, "order/1", idemmail.ProviderKey("shop", "order/1")},
		"the ID is the namespace": {sestransport.Options{KeyTag: "k", ID: "ses-eu"}, "order/1", idemmail.ProviderKey("ses-eu", "order/1")},
		"nothing set":             {sestransport.Options{KeyTag: "k"}, "order/1", idemmail.ProviderKey("ses", "order/1")},
		"no key":                  {sestransport.Options{KeyTag: "k"}, "", ""},
		"no tag":                  {sestransport.Options{}, "order/1", ""},
	} {
		t.Run(name, func(t *testing.T) {
			var in *sesv2.SendEmailInput
			api := apiFunc(func(_ context.Context, i *sesv2.SendEmailInput) (*sesv2.SendEmailOutput, error) {
				in = i
				return &sesv2.SendEmailOutput{MessageId: aws.String("m")}, nil
			})
			tr := newTransport(t, api, tt.opts)
			check := func(_ *idemmail.Receipt, err error) {
				require.NoError(t, err)
				if tt.want == "" {
					require.Empty(t, in.EmailTags)
					return
				}
				require.Len(t, in.EmailTags, 1)
				require.Equal(t, "k", *in.EmailTags[0].Name)
				require.Equal(t, tt.want, *in.EmailTags[0].Value)
			}
			m := message()
			m.IdempotencyKey = tt.key
			check(tr.Send(t.Context(), m))
			check(tr.SendRaw(t.Context(), &idemmail.RawMessage{From: "a@example.com", To: []string{"b@example.org"}, Data: []byte("From: a@example.com\r\n\r\n."), IdempotencyKey: tt.key}))
		})
	}
}

// The tag is that of the namespace that the decorator takes by default.
func TestKeyTagBeneathTheDecorator(t *testing.T) {
	s := newServer(t, sent)
	tr := newTransport(t, newClient(t, s.URL), sestransport.Options{KeyTag: "k", ID: "ses-eu"})
	guarded, err := idemmail.New(tr, idemmail.Options{Key: func(*idemmail.Message) string { return "derived" }})
	require.NoError(t, err)
	_, err = guarded.Send(t.Context(), message())
	require.NoError(t, err)
	require.Equal(t, []any{map[string]any{"Name": "k", "Value": idemmail.ProviderKey("ses-eu", "derived")}}, body(t, s.only(t))["EmailTags"])
}

func TestSendLeavesTheMessageAlone(t *testing.T) {
	s := newServer(t, sent)
	tr := newTransport(t, newClient(t, s.URL), sestransport.Options{KeyTag: "k"})
	m := fullMessage()
	at := m.SendAt
	_, err := tr.Send(t.Context(), m)
	require.NoError(t, err)
	want := fullMessage()
	want.SendAt = at
	require.Equal(t, want, m)
}

func TestLongReferencesKeepTheFirstAndTheLatest(t *testing.T) {
	s := newServer(t, sent)
	tr := newTransport(t, newClient(t, s.URL), sestransport.Options{})
	m := message()
	for i := range 40 {
		m.References = append(m.References, fmt.Sprintf("%02d.%s@example.org", i, strings.Repeat("x", 30)))
	}
	_, err := tr.Send(t.Context(), m)
	require.NoError(t, err)
	fields := body(t, s.only(t))["Content"].(map[string]any)["Simple"].(map[string]any)["Headers"].([]any)
	value := fields[0].(map[string]any)["Value"].(string)
	require.LessOrEqual(t, len(value), 870)
	ids := strings.Fields(value)
	require.Equal(t, "<"+m.References[0]+">", ids[0])
	for i, id := range ids[1:] {
		require.Equal(t, "<"+m.References[40-len(ids)+1+i]+">", id)
	}
	require.Greater(t, len(value)+len(ids[0])+1, 870, "another one would not have fitted")
}

func TestSendRaw(t *testing.T) {
	s := newServer(t, sent)
	tr := newTransport(t, newClient(t, s.URL), sestransport.Options{ConfigurationSet: "events"})
	data := []byte("From: Shop <shop@example.com>\r\nTo: all@example.org\r\nSubject: x\r\n\r\nText\r\n")
	r, err := tr.SendRaw(t.Context(), &idemmail.RawMessage{
		From: "bounces@example.com",
		To:   []string{"ann@example.org", `"quoted one"@example.org`},
		Data: data,
	})
	require.NoError(t, err)
	require.Equal(t, idemmail.StatusSent, r.Status)
	require.Equal(t, "0102-message-000000", r.ProviderID)

	got := body(t, s.only(t))
	require.NotContains(t, got, "FromEmailAddress", "it replaces the From field of the message")
	delete(got["Content"].(map[string]any), "Raw")
	var raw struct {
		Content struct{ Raw struct{ Data []byte } }
	}
	require.NoError(t, json.Unmarshal(s.only(t).Body, &raw))
	require.Equal(t, data, raw.Content.Raw.Data)
	require.Equal(t, map[string]any{
		"FeedbackForwardingEmailAddress": "bounces@example.com",
		"ConfigurationSetName":           "events",
		"Content":                        map[string]any{},
		"Destination":                    map[string]any{"ToAddresses": []any{"ann@example.org", `"quoted one"@example.org`}},
	}, got)
}

func TestSendManyAnswersInOrder(t *testing.T) {
	s := newServer(t, func(w http.ResponseWriter, r *http.Request) {})
	s.answer = func(w http.ResponseWriter, r *http.Request) {
		// The last request is ours: count under the lock, answer by subject.
		s.mu.Lock()
		var subject string
		for _, q := range s.requests {
			if q.Header.Get("Amz-Sdk-Invocation-Id") == r.Header.Get("Amz-Sdk-Invocation-Id") {
				var in struct {
					Content struct {
						Simple struct{ Subject struct{ Data string } }
					}
				}
				_ = json.Unmarshal(q.Body, &in)
				subject = in.Content.Simple.Subject.Data
			}
		}
		s.mu.Unlock()
		if subject == "3" {
			refuse(400, "MessageRejected")(w, r)
			return
		}
		_, _ = fmt.Fprintf(w, `{"MessageId":"id-%s"}`, subject)
	}
	tr := newTransport(t, newClient(t, s.URL), sestransport.Options{})
	var msgs []*idemmail.Message
	for i := range 20 {
		m := message()
		m.Subject = fmt.Sprint(i)
		msgs = append(msgs, m)
	}
	msgs[7] = nil
	msgs[9].To = nil

	results := tr.SendMany(t.Context(), msgs)
	require.Len(t, results, 20)
	for i, r := range results {
		switch i {
		case 3, 7, 9:
			requireFailed(t, r.Receipt, r.Err)
		default:
			require.NoError(t, r.Err)
			require.Equal(t, fmt.Sprintf("id-%d", i), r.Receipt.ProviderID)
		}
	}
	require.Equal(t, 18, s.count())
	require.Empty(t, tr.SendMany(t.Context(), nil))
}

func TestSendManyIsBounded(t *testing.T) {
	for _, tt := range []struct{ concurrency, messages, want int }{{0, 20, 4}, {1, 5, 1}, {3, 20, 3}, {10, 2, 2}} {
		t.Run(fmt.Sprint(tt), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex
				now, most := 0, 0
				api := apiFunc(func(context.Context, *sesv2.SendEmailInput) (*sesv2.SendEmailOutput, error) {
					mu.Lock()
					now++
					most = max(most, now)
					mu.Unlock()
					time.Sleep(time.Second) // of the bubble's clock
					mu.Lock()
					now--
					mu.Unlock()
					return &sesv2.SendEmailOutput{MessageId: aws.String("m")}, nil
				})
				tr := newTransport(t, api, sestransport.Options{Concurrency: tt.concurrency})
				msgs := make([]*idemmail.Message, tt.messages)
				for i := range msgs {
					msgs[i] = message()
				}
				for _, r := range tr.SendMany(t.Context(), msgs) {
					require.NoError(t, r.Err)
				}
				require.Equal(t, tt.want, most)
			})
		})
	}
}

func TestSendManyContextEndsMidway(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	calls := 0
	api := apiFunc(func(ctx context.Context, _ *sesv2.SendEmailInput) (*sesv2.SendEmailOutput, error) {
		if calls++; calls == 2 {
			cancel()
			return nil, ctx.Err()
		}
		return &sesv2.SendEmailOutput{MessageId: aws.String("m")}, nil
	})
	tr := newTransport(t, api, sestransport.Options{Concurrency: 1})
	results := tr.SendMany(ctx, []*idemmail.Message{message(), message(), message(), message()})
	require.NoError(t, results[0].Err)
	requireUnknown(t, results[1].Receipt, results[1].Err)
	for _, r := range results[2:] {
		requireFailed(t, r.Receipt, r.Err)
		require.ErrorIs(t, r.Err, context.Canceled)
		require.True(t, r.Receipt.Retryable)
	}
	require.Equal(t, 2, calls)
}

func TestSendManyPassesAPanicOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int64
		api := apiFunc(func(context.Context, *sesv2.SendEmailInput) (*sesv2.SendEmailOutput, error) {
			if calls.Add(1) == 2 {
				panic("client broke")
			}
			time.Sleep(time.Second)
			return &sesv2.SendEmailOutput{MessageId: aws.String("m")}, nil
		})
		tr := newTransport(t, api, sestransport.Options{Concurrency: 2})
		require.PanicsWithValue(t, "client broke", func() {
			tr.SendMany(t.Context(), []*idemmail.Message{message(), message(), message(), message()})
		})
		require.EqualValues(t, 2, calls.Load(), "what had not begun stays so")
	})
}

func TestSendManyWithAClientThatEndsItsGoroutine(t *testing.T) {
	api := apiFunc(func(context.Context, *sesv2.SendEmailInput) (*sesv2.SendEmailOutput, error) {
		runtime.Goexit()
		return nil, errors.New("not reached")
	})
	tr := newTransport(t, api, sestransport.Options{Concurrency: 2})
	for _, r := range tr.SendMany(t.Context(), []*idemmail.Message{message(), message(), message()}) {
		requireUnknown(t, r.Receipt, r.Err)
	}
}
