package sestransport_test

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/sesv2"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/sestransport"
)

// Whatever comes back: a message is called sent only with a MessageId, failed
// only after a refusal, and error and receipt never disagree.
func FuzzAnswer(f *testing.F) {
	for _, seed := range []struct {
		status int
		code   string
		body   string
	}{
		{200, "", `{"MessageId":"m"}`},
		{200, "", `{"MessageId":""}`},
		{200, "", `{"MessageId":" "}`},
		{200, "", `{"MessageId":null}`},
		{200, "", `{"MessageId":{"a":[1]}}`},
		{200, "", `{"messageid":"m"}`},
		{200, "", `{"MessageId":"m"}trailing`},
		{200, "", `{"MessageId":"m`},
		{200, "", "<html>"},
		{200, "", ""},
		{200, "MessageRejected", `{"MessageId":"m"}`},
		{204, "", ""},
		{299, "", `{"MessageId":"m"}`},
		{302, "", ""},
		{400, "MessageRejected", `{"message":"no"}`},
		{400, "RequestAbortedException", "{}"},
		{400, "", `{"__type":"a#BadRequestException"}`},
		{400, "", `{"code":"ServiceUnavailable"}`},
		{429, "TooManyRequestsException:http://internal/", "{}"},
		{500, "TooManyRequestsException", "{}"},
		{503, "ServiceUnavailable", "{}"},
		{503, "serviceunavailable", "{}"},
		{503, "", "{}"},
		{503, "", "<html>"},
		{599, "", "\x00"},
	} {
		f.Add(seed.status, seed.code, []byte(seed.body))
	}
	f.Fuzz(func(t *testing.T, status int, code string, body []byte) {
		if status < 200 || status > 599 {
			return // net/http does not hand these on
		}
		requests := 0
		client := sesv2.New(sesv2.Options{
			Region:      "eu-west-1",
			Credentials: credentials,
			HTTPClient: doFunc(func(*http.Request) (*http.Response, error) {
				requests++
				h := http.Header{}
				if code != "" {
					h["X-Amzn-Errortype"] = []string{code}
				}
				return &http.Response{StatusCode: status, Header: h, Body: io.NopCloser(bytes.NewReader(body))}, nil
			}),
		})
		tr, err := sestransport.New(client, sestransport.Options{})
		if err != nil {
			t.Fatal(err)
		}
		r, err := tr.Send(t.Context(), message())
		if r == nil {
			t.Fatal("no receipt")
		}
		if requests != 1 {
			t.Fatalf("%d requests", requests)
		}
		switch r.Status {
		case idemmail.StatusSent:
			if err != nil || status > 299 || strings.TrimSpace(r.ProviderID) == "" {
				t.Fatalf("sent: status %d, id %q, %v", status, r.ProviderID, err)
			}
		case idemmail.StatusFailed:
			refused := status >= 400 && status <= 499 && r.Code != "RequestAbortedException" ||
				status == 503 && (r.Code == "ServiceUnavailable" || r.Code == "ServiceUnavailableException")
			if !refused || idemmail.ClassifyError(err) != idemmail.NotDelivered {
				t.Fatalf("failed: status %d, code %q, %v", status, r.Code, err)
			}
		case idemmail.StatusUnknown:
			if r.Retryable || idemmail.ClassifyError(err) != idemmail.DeliveryUnknown {
				t.Fatalf("unknown: retryable %t, %v", r.Retryable, err)
			}
		default:
			t.Fatalf("status %q", r.Status)
		}
		if (err == nil) != (r.Category == "") || err != nil && r.Detail != err.Error() {
			t.Fatalf("category %q, detail %q, %v", r.Category, r.Detail, err)
		}
	})
}

func FuzzParseEvent(f *testing.F) {
	for _, seed := range []string{
		`{"eventType":"Send","mail":{"messageId":"m","timestamp":"2026-10-14T05:02:16.645Z","tags":{"k":["v"]}}}`,
		`{"Type":"Notification","Message":"{\"eventType\":\"Send\",\"mail\":{\"messageId\":\"m\"}}"}`,
		`{"detail-type":"Email Sent","detail":{"mail":{"messageId":"m"}}}`,
		`{"detail":"x"}`, `{"Message":"null"}`, `null`, ``,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		e, err := sestransport.ParseEvent(data)
		if (err == nil) != (e.MessageID != "" && e.Type != "") {
			t.Fatalf("%+v, %v", e, err)
		}
	})
}
