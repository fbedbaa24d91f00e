package mongostore

import (
	"errors"
	"fmt"
	"time"

	"github.com/idemmail/idemmail"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// format is the version of the documents that this package writes, and the only
// one that it reads. It grows when what is known of a field changes its
// meaning; further fields do not make a new one.
const format = 1

// A document is what is kept under a key. Its format is in docs/formats.md and
// in testdata.
type document struct {
	Key         string            `bson:"_id"`
	Format      int32             `bson:"idemmail"`
	State       idemmail.State    `bson:"state"`
	Token       string            `bson:"token"`
	Fingerprint string            `bson:"fingerprint"`
	At          bson.DateTime     `bson:"at"`                // reserved, renewed or completed, by the server's clock
	Expires     bson.DateTime     `bson:"expires,omitempty"` // by the server's clock; zero: never
	Receipt     *idemmail.Receipt `bson:"receipt,omitempty"` // once done
}

// encode answers d as it is stored. It does not go by the client's own codecs
// and options, which may drop or change nil lists, say.
func (d document) encode() (bson.Raw, error) { return bson.Marshal(d) }

// decode reads a stored document. It takes nothing for a record that the
// filter replaceable would not match once its time has passed.
func decode(raw bson.Raw) (document, error) {
	key, _ := raw.Lookup("_id").StringValueOK()
	bad := func(why string) (document, error) {
		return document{Key: key}, fmt.Errorf("mongostore: key %q: %w: %s", key, idemmail.ErrBadRecord, why)
	}
	if !isFormat(raw.Lookup("idemmail")) {
		return bad("no field idemmail with this version's format number")
	}
	d := document{Key: key, Format: format}
	state, _ := raw.Lookup("state").StringValueOK()
	d.State = idemmail.State(state)
	if d.State != idemmail.StatePending && d.State != idemmail.StateDone {
		return bad("unknown state")
	}
	var ok bool
	if d.Token, ok = raw.Lookup("token").StringValueOK(); !ok || d.Token == "" {
		return bad("no token")
	}
	if d.Fingerprint, ok = raw.Lookup("fingerprint").StringValueOK(); !ok {
		return bad("no fingerprint")
	}
	at, ok := raw.Lookup("at").DateTimeOK()
	if !ok {
		return bad("no date in at")
	}
	d.At = bson.DateTime(at)
	if expires, err := raw.LookupErr("expires"); err == nil {
		millis, ok := expires.DateTimeOK()
		if !ok || millis < at {
			return bad("no date after at in expires")
		}
		d.Expires = bson.DateTime(millis)
	}
	if d.State == idemmail.StatePending {
		return d, nil
	}
	receipt, ok := raw.Lookup("receipt").DocumentOK()
	if !ok {
		return bad("done without a receipt")
	}
	if _, ok := receipt.Lookup("status").StringValueOK(); !ok {
		return bad("receipt without a status")
	}
	if err := bson.Unmarshal(receipt, &d.Receipt); err != nil {
		return bad("receipt: " + err.Error())
	}
	return d, nil
}

// isFormat reports whether v equals this version's format number, as the
// server compares numbers: a shell may have written it back as a double.
func isFormat(v bson.RawValue) bool {
	switch v.Type {
	case bson.TypeInt32:
		return v.Int32() == format
	case bson.TypeInt64:
		return v.Int64() == format
	case bson.TypeDouble:
		return v.Double() == format
	}
	return false
}

// expired reports whether the time of d has passed.
func (d document) expired(now time.Time) bool {
	return d.Expires != 0 && d.Expires <= bson.NewDateTimeFromTime(now)
}

// record answers d as it is seen at now.
func (d document) record(now time.Time) idemmail.Record {
	return idemmail.Record{
		State:       d.State,
		Fingerprint: d.Fingerprint,
		Receipt:     d.Receipt,
		Age:         max(0, now.Sub(d.At.Time())),
	}
}

// entry answers d as a Reconciler shows it.
func (d document) entry(now time.Time) idemmail.Entry {
	e := idemmail.Entry{Key: d.Key, Token: d.Token, Record: d.record(now)}
	if d.Expires != 0 {
		e.ExpiresAt = d.Expires.Time().UTC()
	}
	return e
}

// expiry answers when what begins now and is kept for life ends: never early,
// so rounded up to the server's milliseconds, and zero for never.
func expiry(now time.Time, life time.Duration) bson.DateTime {
	if life == idemmail.NoExpiry {
		return 0
	}
	return bson.NewDateTimeFromTime(now.Add(life).Add(time.Millisecond - 1))
}

// checkLife refuses a lease or TTL that is neither positive nor NoExpiry.
func checkLife(life time.Duration) error {
	if life <= 0 && life != idemmail.NoExpiry {
		return fmt.Errorf("mongostore: duration %v is neither positive nor NoExpiry", life)
	}
	return nil
}

var errNotUTF8 = errors.New("mongostore: key or fingerprint is not valid UTF-8")

// The filters below use only what every service that speaks MongoDB 4's
// protocol has. A comparison with a string or a date matches only strings or
// dates, so that they check the types as well.

// ours matches the key's document where it has this version's format.
func ours(key string) bson.D {
	return bson.D{{Key: "_id", Value: key}, {Key: "idemmail", Value: int32(format)}}
}

// heldBy matches the key's document where the token holds it in the state.
func heldBy(key, token string, state idemmail.State) bson.D {
	return append(ours(key), bson.E{Key: "token", Value: token}, bson.E{Key: "state", Value: string(state)})
}

// inTime matches documents whose time has not passed.
func inTime(now time.Time) bson.E {
	return bson.E{Key: "$or", Value: bson.A{
		bson.D{{Key: "expires", Value: bson.D{{Key: "$gt", Value: bson.NewDateTimeFromTime(now)}}}},
		bson.D{{Key: "expires", Value: nil}}, // missing
	}}
}

// replaceable matches the key's document where it is a record whose time has
// passed, or one that the token holds, if there is a token.
func replaceable(key, token string, now time.Time) bson.D {
	millis := bson.NewDateTimeFromTime(now)
	pending := bson.D{
		{Key: "state", Value: string(idemmail.StatePending)},
		{Key: "token", Value: bson.D{{Key: "$gt", Value: ""}}},
		{Key: "fingerprint", Value: bson.D{{Key: "$gte", Value: ""}}},
		{Key: "at", Value: bson.D{{Key: "$lte", Value: millis}}},
		{Key: "expires", Value: bson.D{{Key: "$lte", Value: millis}}},
	}
	done := append(bson.D{
		{Key: "state", Value: string(idemmail.StateDone)},
		{Key: "receipt.status", Value: bson.D{{Key: "$gte", Value: ""}}},
	}, pending[1:]...)
	either := bson.A{pending, done}
	if token != "" {
		either = append(either,
			bson.D{{Key: "token", Value: token}, {Key: "state", Value: string(idemmail.StatePending)}},
			bson.D{{Key: "token", Value: token}, {Key: "state", Value: string(idemmail.StateDone)}})
	}
	return append(ours(key), bson.E{Key: "$or", Value: either})
}
