package redisstore

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/idemmail/idemmail"
)

var (
	//go:embed complete.lua
	completeSource string
	//go:embed free.lua
	freeSource string
	//go:embed renew.lua
	renewSource string
	//go:embed resolve.lua
	resolveSource string
	//go:embed lookup.lua
	lookupSource string

	completeScript = redis.NewScript(completeSource)
	freeScript     = redis.NewScript(freeSource)
	renewScript    = redis.NewScript(renewSource)
	resolveScript  = redis.NewScript(resolveSource)
	lookupScript   = redis.NewScript(lookupSource)
)

// An operation is a script and what its answers mean.
type operation struct {
	name    string
	script  *redis.Script
	missing error // where nothing holds the key
	other   error // where another token holds it, or another state
}

var (
	complete = operation{"complete", completeScript, nil, idemmail.ErrLeaseLost}
	release  = operation{"release", freeScript, nil, idemmail.ErrLeaseLost}
	renew    = operation{"renew", renewScript, idemmail.ErrLeaseLost, idemmail.ErrLeaseLost}
	resolve  = operation{"resolve", resolveScript, idemmail.ErrChanged, idemmail.ErrChanged}
	forget   = operation{"forget", freeScript, idemmail.ErrChanged, idemmail.ErrChanged}
)

func completeArgs(token string, rec idemmail.Record, ttl time.Duration) ([]any, error) {
	switch {
	case rec.State != idemmail.StateDone:
		return nil, fmt.Errorf("record of state %q is not done", rec.State)
	case rec.Receipt == nil:
		return nil, errors.New("record has no receipt")
	}
	lifetime, err := lifetime(ttl)
	if err != nil {
		return nil, err
	}
	receipt, err := encodeReceipt(rec.Receipt)
	if err != nil {
		return nil, err
	}
	rest := " " + counted(rec.Fingerprint) + " " + receipt
	return []any{counted(token), string(statusLetter(rec.Receipt)), rest, lifetime}, nil
}

func freeArgs(token string, state idemmail.State) []any {
	return []any{counted(token), stateLetter(state)}
}

func renewArgs(token string, lease time.Duration) ([]any, error) {
	lifetime, err := lifetime(lease)
	if err != nil {
		return nil, err
	}
	return []any{counted(token), lifetime}, nil
}

func resolveArgs(e idemmail.Entry, token string, r *idemmail.Receipt, ttl time.Duration) ([]any, error) {
	lifetime, err := lifetime(ttl)
	if err != nil {
		return nil, err
	}
	receipt, err := encodeReceipt(r)
	if err != nil {
		return nil, err
	}
	return []any{counted(e.Token), stateLetter(e.Record.State), counted(token), string(statusLetter(r)), receipt, lifetime}, nil
}

// lifetime is a duration as the scripts take it: milliseconds, empty for ever.
func lifetime(d time.Duration) (string, error) {
	ms, err := milliseconds(d)
	if err != nil || ms == 0 {
		return "", err
	}
	return strconv.FormatInt(ms, 10), nil
}

// run runs a script on a key in one round trip, in two where the server does
// not have it. key is as Redis knows it.
func (s *Store) run(ctx context.Context, script *redis.Script, key string, args []any) reply {
	sent := time.Now()
	cmd := s.client.EvalSha(ctx, script.Hash(), []string{key}, args...)
	if redis.HasErrorPrefix(cmd.Err(), "NOSCRIPT") {
		s.unprepare()
		sent = time.Now()
		cmd = script.Eval(ctx, s.client, []string{key}, args...)
	}
	return s.read(cmd, sent)
}

// read takes the answer of a script and learns the server's time from it.
func (s *Store) read(cmd *redis.Cmd, sent time.Time) reply {
	text, err := cmd.Text()
	if err != nil {
		return reply{err: err}
	}
	if len(text) != 1+timeSize {
		return reply{err: errors.New("a script's answer has another form")}
	}
	now, err := strconv.ParseInt(text[1:], 10, 64)
	if err != nil {
		return reply{err: errors.New("a script's answer has no time")}
	}
	s.clock.learn(now, sent)
	return reply{value: text[:1]}
}

// judge says what a script's answer means.
func (op operation) judge(ctx context.Context, r reply) error {
	if r.err != nil {
		return explain(ctx, r.err)
	}
	switch r.value {
	case "k":
		return nil
	case "n":
		return op.missing
	case "l":
		return op.other
	case "b":
		return badRecord("a foreign or damaged value")
	}
	return fmt.Errorf("a script answered %q", r.value)
}
