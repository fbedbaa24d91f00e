package redisstore

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/idemmail/idemmail"
)

// A value in Redis is, in this order (docs/formats.md says more):
//
//	idm1 ds 1753000000000000 26:TOKEN 66:1:FINGERPRINT {"status":"sent"}
//	│    ││ │                │        │                └ the receipt, as JSON; a pending record has none
//	│    ││ │                │        └ the fingerprint, its length in bytes in front
//	│    ││ │                └ the token, its length in bytes in front
//	│    ││ └ the server's time when it was reserved, renewed or completed, in microseconds
//	│    │└ the receipt's status: s sent, f failed, u unknown, ? another, - pending
//	│    └ the state: p pending, d done
//	└ the version of the format
//
// Scripts compare the token without decoding anything, and a listing needs the
// head alone. The scripts have these offsets too.
const (
	magic    = "idm1 "
	atState  = len(magic)
	atStatus = atState + 1
	atTime   = atStatus + 2
	atToken  = atTime + timeSize + 1
	timeSize = 16
)

const (
	letterPending = 'p'
	letterDone    = 'd'
)

// pendingValue encodes a reservation.
func pendingValue(token, fingerprint string, at int64) string {
	b := make([]byte, 0, atToken+len(token)+len(fingerprint)+16)
	b = append(b, magic...)
	b = append(b, letterPending, '-', ' ')
	b = fmt.Appendf(b, "%0*d", timeSize, max(0, at))
	b = append(b, ' ')
	b = appendCounted(b, token)
	b = append(b, ' ')
	b = appendCounted(b, fingerprint)
	return string(b)
}

// appendCounted appends s with its length in front, so that it may hold any
// byte and no token is the beginning of another.
func appendCounted(b []byte, s string) []byte {
	b = strconv.AppendInt(b, int64(len(s)), 10)
	b = append(b, ':')
	return append(b, s...)
}

func counted(s string) string {
	return string(appendCounted(make([]byte, 0, len(s)+8), s))
}

// parse decodes a value. The record's age is left to the caller.
func parse(value string) (token string, at int64, rec idemmail.Record, err error) {
	state, _, at, err := parseHead(value)
	if err != nil {
		return "", 0, rec, err
	}
	rest := value[atToken:]
	token, rest, ok := cutCounted(rest)
	if !ok {
		return "", 0, rec, badRecord("damaged token")
	}
	rest, ok = strings.CutPrefix(rest, " ")
	if !ok {
		return "", 0, rec, badRecord("damaged token")
	}
	rec.State = state
	rec.Fingerprint, rest, ok = cutCounted(rest)
	if !ok {
		return "", 0, rec, badRecord("damaged fingerprint")
	}
	if state == idemmail.StatePending {
		// A later version may keep something here.
		if rest != "" && !(rest[0] == ' ' && json.Valid([]byte(rest))) {
			return "", 0, rec, badRecord("damaged end")
		}
		return token, at, rec, nil
	}
	if !strings.HasPrefix(rest, " ") {
		return "", 0, rec, badRecord("no receipt")
	}
	if err := json.Unmarshal([]byte(rest), &rec.Receipt); err != nil {
		return "", 0, rec, badRecord("damaged receipt") // the error may quote it
	}
	if rec.Receipt == nil {
		return "", 0, rec, badRecord("no receipt")
	}
	if value[atStatus] != statusLetter(rec.Receipt) {
		return "", 0, rec, badRecord("status %q is unknown", value[atStatus])
	}
	return token, at, rec, nil
}

// parseHead decodes what stands before the token: as much as a listing reads of
// a value, and all that tells whether it is a record of this version.
func parseHead(value string) (state idemmail.State, status byte, at int64, err error) {
	switch {
	case !strings.HasPrefix(value, magic[:3]):
		return "", 0, 0, badRecord("a foreign value")
	case !strings.HasPrefix(value, magic):
		return "", 0, 0, badRecord("a foreign value, or a later version of the format")
	case len(value) < atToken || value[atTime-1] != ' ' || value[atToken-1] != ' ':
		return "", 0, 0, badRecord("damaged head")
	}
	status = value[atStatus]
	switch value[atState] {
	case letterPending:
		state = idemmail.StatePending
		if status != '-' {
			return "", 0, 0, badRecord("pending with status %q", status)
		}
	case letterDone:
		state = idemmail.StateDone
	default:
		return "", 0, 0, badRecord("state %q is unknown", value[atState])
	}
	t, err := strconv.ParseUint(value[atTime:atToken-1], 10, 63)
	if err != nil {
		return "", 0, 0, badRecord("damaged time")
	}
	return state, status, int64(t), nil
}

// cutCounted takes a string with its length in front off s.
func cutCounted(s string) (head, rest string, ok bool) {
	digits, rest, ok := strings.Cut(s, ":")
	if !ok {
		return "", "", false
	}
	n, err := strconv.ParseUint(digits, 10, 31)
	if err != nil || n > uint64(len(rest)) {
		return "", "", false
	}
	return rest[:n], rest[n:], true
}

func badRecord(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{idemmail.ErrBadRecord}, args...)...)
}

// statusLetter is the status of a receipt as the head of a value has it; a
// pending record has none.
func statusLetter(r *idemmail.Receipt) byte {
	if r == nil {
		return '-'
	}
	switch r.Status {
	case idemmail.StatusSent:
		return 's'
	case idemmail.StatusFailed:
		return 'f'
	case idemmail.StatusUnknown:
		return 'u'
	}
	return '?'
}

// stateLetter is a state as the head of a value has it; empty for one that no
// value has.
func stateLetter(s idemmail.State) string {
	switch s {
	case idemmail.StatePending:
		return string(letterPending)
	case idemmail.StateDone:
		return string(letterDone)
	}
	return ""
}

func encodeReceipt(r *idemmail.Receipt) (string, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false) // Message-IDs and replies are full of < and >
	if err := e.Encode(r); err != nil {
		return "", fmt.Errorf("receipt: %w", err)
	}
	return strings.TrimSuffix(b.String(), "\n"), nil
}

// milliseconds rounds a lease or a TTL up to Redis' unit; 0 stands for
// NoExpiry. One that is not positive is refused.
func milliseconds(d time.Duration) (int64, error) {
	const most = math.MaxInt64 / int64(time.Millisecond)
	switch {
	case d == idemmail.NoExpiry:
		return 0, nil
	case d <= 0:
		return 0, fmt.Errorf("duration %v is neither positive nor NoExpiry", d)
	}
	ms := int64(d / time.Millisecond)
	if d%time.Millisecond != 0 && ms < most {
		ms++
	}
	return ms, nil
}
