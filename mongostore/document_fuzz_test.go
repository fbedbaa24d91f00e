package mongostore

import (
	"encoding/binary"
	"errors"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/idemmail/idemmail"
)

// Whatever document stands under a key is a record of ours or ErrBadRecord, and
// nothing that is taken for one is without what a record has.
func FuzzDocument(f *testing.F) {
	for _, d := range []document{
		{Key: "k", Format: format, State: idemmail.StatePending, Token: "t", Fingerprint: "1:f", At: at, Expires: at + 1},
		{Key: "k", Format: format, State: idemmail.StateDone, Token: "t", Fingerprint: "1:f", At: at, Receipt: &idemmail.Receipt{
			Status: idemmail.StatusSent, Accepted: []string{"a@example.org"}, Rejected: []idemmail.Rejection{}}},
	} {
		raw, err := d.encode()
		if err != nil {
			f.Fatal(err)
		}
		f.Add([]byte(raw))
	}
	for _, v := range []any{bson.D{}, bson.D{{Key: "_id", Value: "k"}}, bson.D{{Key: "idemmail", Value: 2}}} {
		raw, err := bson.Marshal(v)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		// A document that the driver answers is whole; its own Validate panics
		// over a few that are not.
		if len(raw) < 5 || int(binary.LittleEndian.Uint32(raw)) != len(raw) || raw[len(raw)-1] != 0 || bson.Raw(raw).Validate() != nil {
			return
		}
		d, err := decode(raw)
		switch {
		case errors.Is(err, idemmail.ErrBadRecord):
		case err != nil:
			t.Fatalf("%v: %v", bson.Raw(raw), err)
		case d.Token == "", d.Expires != 0 && d.Expires < d.At:
			t.Fatalf("%v: %+v", bson.Raw(raw), d)
		case d.State != idemmail.StatePending && (d.State != idemmail.StateDone || d.Receipt == nil):
			t.Fatalf("%v: %+v", bson.Raw(raw), d)
		}
	})
}
