package mongostore

import (
	"context"
	"crypto/rand"
	"fmt"
	"iter"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/idemmail/idemmail"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// listed is how many documents of a listing are held in memory at once.
const listed = 100

// Lookup is as [idemmail.Reconciler] says.
func (s *Store) Lookup(ctx context.Context, key string) (*idemmail.Entry, error) {
	now, err := s.clock.now(ctx)
	if err != nil {
		return nil, err
	}
	docs, err := s.read(ctx, []string{key})
	if err != nil {
		return nil, err
	}
	doc, ok := docs[key]
	switch {
	case !ok:
		return nil, nil
	case doc.err != nil:
		return nil, doc.err
	case doc.expired(now):
		return nil, nil
	}
	entry := doc.entry(now)
	return &entry, nil
}

// Unsettled is as [idemmail.Reconciler] says. The server walks the keys that
// begin with prefix, by the index of _id, and sends what is not known to be
// settled. Documents whose _id is not a string are passed over.
func (s *Store) Unsettled(ctx context.Context, prefix string, olderThan time.Duration) iter.Seq2[idemmail.Entry, error] {
	return func(yield func(idemmail.Entry, error) bool) {
		cursor, err := s.coll.Find(outsideSession(ctx), unsettled(prefix), options.Find().SetBatchSize(listed))
		if err != nil {
			yield(idemmail.Entry{}, wrap(ctx, "list", err))
			return
		}
		defer closeCursor(ctx, cursor)
		for cursor.Next(ctx) {
			doc, err := decode(cursor.Current)
			if !strings.HasPrefix(doc.Key, prefix) {
				continue
			}
			if err != nil {
				if !yield(idemmail.Entry{Key: doc.Key}, err) {
					return
				}
				continue
			}
			now, err := s.clock.now(ctx)
			if err != nil {
				yield(idemmail.Entry{}, err)
				return
			}
			entry := doc.entry(now)
			wanted := doc.Receipt != nil && doc.Receipt.Status == idemmail.StatusUnknown ||
				doc.State == idemmail.StatePending && entry.Record.Age >= olderThan
			if wanted && !doc.expired(now) && !yield(entry, nil) {
				return
			}
		}
		if err := cursor.Err(); err != nil {
			yield(idemmail.Entry{}, wrap(ctx, "list", err))
		}
	}
}

// unsettled matches all documents whose key begins with prefix but those of
// sent messages, which most of them are.
func unsettled(prefix string) bson.D {
	keys := bson.D{{Key: "$gte", Value: prefix}}
	if end, ok := prefixEnd(prefix); ok {
		keys = append(keys, bson.E{Key: "$lt", Value: end})
	}
	return bson.D{{Key: "_id", Value: keys}, {Key: "$or", Value: bson.A{
		bson.D{{Key: "idemmail", Value: bson.D{{Key: "$ne", Value: int32(format)}}}},
		bson.D{{Key: "state", Value: bson.D{{Key: "$ne", Value: string(idemmail.StateDone)}}}},
		bson.D{{Key: "receipt.status", Value: bson.D{{Key: "$ne", Value: string(idemmail.StatusSent)}}}},
	}}}
}

// prefixEnd answers the least string that is greater than every one with the
// prefix; ok is false where there is none.
func prefixEnd(prefix string) (end string, ok bool) {
	for prefix != "" {
		last, size := utf8.DecodeLastRuneInString(prefix)
		prefix = prefix[:len(prefix)-size]
		switch last {
		case utf8.MaxRune:
			continue
		case 0xD7FF: // the surrogates are no characters
			last = 0xDFFF
		}
		return prefix + string(last+1), true
	}
	return "", false
}

// Resolve is as [idemmail.Reconciler] says. A nil receipt stands for one of
// status sent and nothing else.
func (s *Store) Resolve(ctx context.Context, e idemmail.Entry, r *idemmail.Receipt, ttl time.Duration) error {
	if r == nil {
		r = &idemmail.Receipt{Status: idemmail.StatusSent}
	}
	if r.Status != idemmail.StatusSent {
		return fmt.Errorf("mongostore: resolve %q: only a receipt of status sent resolves a key, not %q", e.Key, r.Status)
	}
	receipt, err := bson.Marshal(r) // as in document.encode
	if err == nil {
		err = checkLife(ttl)
	}
	token := rand.Text()
	return s.settle(ctx, e, err, func(now time.Time, filter bson.D) mongo.WriteModel {
		return mongo.NewUpdateOneModel().SetFilter(filter).SetUpdate(beginAnew(now, ttl, bson.D{
			{Key: "state", Value: string(idemmail.StateDone)},
			{Key: "token", Value: token},
			{Key: "receipt", Value: bson.Raw(receipt)},
		}))
	})
}

// Forget is as [idemmail.Reconciler] says.
func (s *Store) Forget(ctx context.Context, e idemmail.Entry) error {
	return s.settle(ctx, e, nil, func(_ time.Time, filter bson.D) mongo.WriteModel {
		return mongo.NewDeleteOneModel().SetFilter(filter)
	})
}

// settle carries out the model that is made with a filter for what e tells.
func (s *Store) settle(ctx context.Context, e idemmail.Entry, refused error, model func(time.Time, bson.D) mongo.WriteModel) error {
	return s.change(ctx, []*change{{
		key: e.Key,
		err: refused,
		model: func(now time.Time) mongo.WriteModel {
			return model(now, append(heldBy(e.Key, e.Token, e.Record.State), inTime(now)))
		},
		judge: func(*document) error {
			return fmt.Errorf("mongostore: key %q: %w", e.Key, idemmail.ErrChanged)
		},
	}})[0]
}
