package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/idemmail/idemmail"
)

// What happens to the mails of these keys.
const (
	answerIsLost = "order/1002" // SES takes it, and the connection breaks
	isThrottled  = "order/1003" // SES refuses it, the first time
)

// A server is as much of SES as the example needs.
type server struct {
	url  string
	stop func()

	mu        sync.Mutex
	mails     map[string]int // by the tag of the key
	events    [][]byte       // as SNS delivers them
	throttled bool
}

func startServer() (*server, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &server{url: "http://" + listener.Addr().String(), mails: make(map[string]int)}
	web := &http.Server{Handler: s}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = web.Serve(listener) // until it is closed
	}()
	s.stop = func() {
		_ = web.Close()
		<-served
	}
	return s, nil
}

// took is how many mails of a key there are.
func (s *server) took(key string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mails[idemmail.ProviderKey(namespace, key)]
}

// takeEvents empties the queue that the events go to.
func (s *server) takeEvents() [][]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	events := s.events
	s.events = nil
	return events
}

// ServeHTTP answers POST /v2/email/outbound-emails.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var in struct {
		EmailTags []struct{ Name, Value string }
	}
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil || r.URL.Path != "/v2/email/outbound-emails" {
		http.Error(w, `{"message":"bad request"}`, http.StatusBadRequest)
		return
	}
	tag := ""
	for _, t := range in.EmailTags {
		if t.Name == keyTag {
			tag = t.Value
		}
	}
	if tag == idemmail.ProviderKey(namespace, isThrottled) && s.throttle() {
		w.Header().Set("X-Amzn-Errortype", "TooManyRequestsException")
		w.WriteHeader(http.StatusTooManyRequests)
		fmt.Fprint(w, `{"message":"Maximum sending rate exceeded."}`)
		return
	}
	id, err := s.take(tag)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	if tag == idemmail.ProviderKey(namespace, answerIsLost) {
		panic(http.ErrAbortHandler) // closes the connection
	}
	fmt.Fprintf(w, `{"MessageId":%q}`, id)
}

// throttle reports whether this is the first time.
func (s *server) throttle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	first := !s.throttled
	s.throttled = true
	return first
}

// take takes a mail, and publishes that it did.
func (s *server) take(tag string) (id string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mails[tag]++
	id = fmt.Sprintf("0102-%d-000000", len(s.events)+1)
	event, err := json.Marshal(map[string]any{
		"eventType": "Send",
		"mail": map[string]any{
			"messageId": id,
			"timestamp": time.Now().UTC(),
			"tags":      map[string][]string{keyTag: {tag}},
		},
		"send": struct{}{},
	})
	if err != nil {
		return "", err
	}
	notification, err := json.Marshal(map[string]string{"Type": "Notification", "Message": string(event)})
	s.events = append(s.events, notification)
	return id, err
}
