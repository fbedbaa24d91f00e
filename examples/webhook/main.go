// Webhook is an HTTP handler that is given each event more than once, as
// senders of webhooks do, and books it once. It delivers events to itself, one
// after another and at the same time, and prints the answers. The example exits
// with 1 if an event was booked twice or not at all.
//
// The keys are in the Redis that REDIS_URL names, which any number of servers
// can share; without it in a miniredis in this process.
package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/redisstore"
)

func main() {
	if err := run(os.Getenv("REDIS_URL")); err != nil {
		fmt.Fprintln(os.Stderr, "webhook:", err)
		os.Exit(1)
	}
}

func run(url string) error {
	if url == "" {
		mini, err := miniredis.Run()
		if err != nil {
			return err
		}
		defer mini.Close()
		url = "redis://" + mini.Addr()
	}
	options, err := redis.ParseURL(url)
	if err != nil {
		return err
	}
	options.ContextTimeoutEnabled = true // so that deadlines hold while it waits for Redis
	client := redis.NewClient(options)
	defer client.Close()
	guard, err := idemmail.NewGuard(idemmail.Options{
		// The prefix keeps the keys of another run apart; a program has none.
		Store:      redisstore.New(client, redisstore.Options{KeyPrefix: "example-" + rand.Text() + ":"}),
		Namespace:  "payments",
		TTL:        time.Minute,                   // in production: longer than the sender goes on trying
		RequireKey: true,                          // an event without an id is refused
		Logger:     slog.New(slog.DiscardHandler), // what is printed says it all
	})
	if err != nil {
		return err
	}
	ledger := newLedger()
	server := httptest.NewServer(webhook{guard: guard, work: ledger.book})
	defer server.Close()
	server.Client().Timeout = 30 * time.Second
	return deliverAll(sender{server}, ledger)
}

// deliverAll delivers the events and holds what was booked against what is to
// be.
func deliverAll(s sender, l *ledger) error {
	var wrong []error
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "EVENT\tID\tDELIVERED\tANSWERS\tBOOKED")
	for _, d := range []struct {
		event, id, how string
		deliver        func(id, event string) (answers []string, err error)
		booked         int // how often it is to be
	}{
		{"payment", "evt_1", "twice", s.twice, 1},
		{slow, "evt_2", "ten times at once, and again", func(id, event string) ([]string, error) {
			return s.atOnce(10, id, event, l.release)
		}, 1},
		{locked, "evt_3", "twice; the ledger is locked at first", s.twice, 1},
		{lost, "evt_4", "twice; the ledger's answer is lost", s.twice, 1},
		{"payout", "evt_1", "twice; under the id of the payment", s.twice, 0},
		{"donation", "", "twice; without an id", s.twice, 0},
	} {
		answers, err := d.deliver(d.id, d.event)
		booked := l.booked(d.event)
		if err == nil && booked != d.booked {
			err = fmt.Errorf("%s was booked %d times", d.event, booked)
		}
		wrong = append(wrong, err)
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%d\n", d.event, d.id, d.how, strings.Join(answers, ", "), booked)
	}
	return errors.Join(append(wrong, table.Flush())...)
}

// A sender delivers events.
type sender struct{ server *httptest.Server }

func (s sender) once(id, event string) (answer string, err error) {
	request, err := http.NewRequest(http.MethodPost, s.server.URL, strings.NewReader(event))
	if err != nil {
		return "", err
	}
	request.Header.Set("Event-Id", id)
	response, err := s.server.Client().Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, response.Body)
	answer = fmt.Sprint(response.StatusCode)
	if after := response.Header.Get("Retry-After"); after != "" {
		answer += " (retry)"
	}
	return answer, err
}

func (s sender) twice(id, event string) ([]string, error) {
	first, err := s.once(id, event)
	second, again := s.once(id, event)
	return []string{first, second}, errors.Join(err, again)
}

// atOnce delivers n times at once, and once more. One of the deliveries does
// the work, which lasts until all others have been answered.
func (s sender) atOnce(n int, id, event string, release chan<- struct{}) ([]string, error) {
	type result struct {
		answer string
		err    error
	}
	results := make(chan result)
	for range n {
		go func() {
			answer, err := s.once(id, event)
			results <- result{answer, err}
		}()
	}
	var errs []error
	count := make(map[string]int)
	for i := range n {
		if i == n-1 {
			close(release)
		}
		r := <-results
		count[r.answer]++
		errs = append(errs, r.err)
	}
	var answers []string
	for answer, times := range count {
		answers = append(answers, fmt.Sprintf("%d x %s", times, answer))
	}
	slices.Sort(answers)
	again, err := s.once(id, event)
	return append(answers, again), errors.Join(append(errs, err)...)
}
