package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/redisstore"
	"github.com/idemmail/idemmail/smtptransport"
)

// lease is how long a key is held for a worker that does not renew it any more.
const lease = 10 * time.Minute

// places are where a worker finds what it works with.
type places struct{ SMTP, Redis string }

// newMailer makes what all workers send with. AtMostOnce: a mail of which
// nobody knows whether it went waits for an operator, and never goes twice.
// Without it, the next worker would send it again once the lease has passed.
func newMailer(at places, wrap func(idemmail.Transport) idemmail.Transport) (*idemmail.IdempotencyTransport, func(), error) {
	var transport idemmail.Transport
	transport, err := smtptransport.New(smtptransport.Options{
		Addr:      at.SMTP,
		TLS:       smtptransport.NoTLS, // the server is in this process
		KeyHeader: keyHeader,           // so that the server can tell the mails apart
	})
	if err != nil {
		return nil, nil, err
	}
	if wrap != nil {
		transport = wrap(transport)
	}
	client := redis.NewClient(&redis.Options{Addr: at.Redis, ContextTimeoutEnabled: true})
	mailer, err := idemmail.New(transport, idemmail.Options{
		Store:           redisstore.New(client, redisstore.Options{}),
		Namespace:       "quickstart",
		Lease:           lease,
		AtMostOnce:      true,
		MessageIDDomain: "shop.example",
		Logger:          slog.New(slog.DiscardHandler), // the table says it all
	})
	return mailer, func() { client.Close() }, err
}

// workerVariable makes a process a worker, and tells it the places.
const workerVariable = "IDEMMAIL_QUICKSTART_WORKER"

func isWorker() bool { return os.Getenv(workerVariable) != "" }

// runDoomedWorker runs the job in a process of its own, which is killed in the
// middle of it.
func runDoomedWorker(ctx context.Context, at places) (answers, error) {
	executable, err := os.Executable()
	if err != nil {
		return nil, err
	}
	variable, err := json.Marshal(at)
	if err != nil {
		return nil, err
	}
	worker := exec.CommandContext(ctx, executable)
	worker.Env = append(os.Environ(), workerVariable+"="+string(variable))
	worker.Stderr = os.Stderr
	printed, err := worker.Output()
	if exit := new(exec.ExitError); !errors.As(err, &exit) {
		return nil, fmt.Errorf("the worker was to be killed, but ended with %v", err)
	}
	said := make(answers)
	for line := range bytes.Lines(printed) {
		var answer [2]string
		if err := json.Unmarshal(line, &answer); err != nil {
			return nil, fmt.Errorf("the worker said %q: %w", line, err)
		}
		said[answer[0]] = answer[1]
	}
	if len(said) == 0 {
		return nil, errors.New("the worker was killed before it sent anything")
	}
	return said, nil
}

// work is the worker. It tells the answers as they come, since it will not
// live to tell them all.
func work() {
	if err := workAll(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "quickstart, worker:", err)
		os.Exit(1)
	}
}

func workAll(ctx context.Context) error {
	var at places
	if err := json.Unmarshal([]byte(os.Getenv(workerVariable)), &at); err != nil {
		return err
	}
	orders, err := readOrders()
	if err != nil {
		return err
	}
	tell := json.NewEncoder(os.Stdout)
	mailer, closeMailer, err := newMailer(at, func(t idemmail.Transport) idemmail.Transport { return doomed{t, tell} })
	if err != nil {
		return err
	}
	defer closeMailer()
	for _, o := range orders {
		for key, answer := range job(ctx, mailer, []order{o}) {
			if err := tell.Encode([2]string{key, answer}); err != nil {
				return err
			}
		}
	}
	return nil
}

// A doomed transport has its process killed when the server has accepted a
// mail: before anything else learns of it.
type doomed struct {
	idemmail.Transport
	tell *json.Encoder
}

func (d doomed) Send(ctx context.Context, m *idemmail.Message) (*idemmail.Receipt, error) {
	receipt, err := d.Transport.Send(ctx, m)
	if err != nil {
		return receipt, err
	}
	if err := d.tell.Encode([2]string{m.IdempotencyKey, "accepted, killed"}); err != nil {
		return receipt, err
	}
	process, err := os.FindProcess(os.Getpid())
	if err != nil {
		return receipt, err
	}
	if err := process.Kill(); err != nil {
		return receipt, err
	}
	select {} // until the signal arrives
}
