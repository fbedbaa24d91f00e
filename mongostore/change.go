package mongostore

import (
	"context"
	"fmt"
	"time"

	"github.com/idemmail/idemmail"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

// Release is as [idemmail.Store] says.
func (s *Store) Release(ctx context.Context, key, token string) error {
	return s.ReleaseMany(ctx, []idemmail.ReleaseRequest{{Key: key, Token: token}})[0]
}

// ReleaseMany is as [idemmail.BatchStore] says. Where some of many keys could
// not be released, one that was, and that another owner has reserved in the
// moment since, is answered with idemmail.ErrLeaseLost too.
func (s *Store) ReleaseMany(ctx context.Context, reqs []idemmail.ReleaseRequest) []error {
	changes := make([]*change, len(reqs))
	for i, r := range reqs {
		changes[i] = &change{
			key: r.Key,
			model: func(time.Time) mongo.WriteModel {
				return mongo.NewDeleteOneModel().SetFilter(heldBy(r.Key, r.Token, idemmail.StatePending))
			},
			judge: func(holds *document) error {
				if holds == nil {
					return nil
				}
				return fmt.Errorf("mongostore: release key %q: %w", r.Key, idemmail.ErrLeaseLost)
			},
		}
	}
	return s.change(ctx, changes)
}

// Renew is as [idemmail.Renewer] says.
func (s *Store) Renew(ctx context.Context, key, token string, lease time.Duration) error {
	return s.RenewMany(ctx, []idemmail.RenewRequest{{Key: key, Token: token, Lease: lease}})[0]
}

// RenewMany is as [idemmail.BatchStore] says. Where some of many keys could not
// be renewed, one that was, and that was settled in the moment since, is
// answered with idemmail.ErrLeaseLost too.
func (s *Store) RenewMany(ctx context.Context, reqs []idemmail.RenewRequest) []error {
	changes := make([]*change, len(reqs))
	for i, r := range reqs {
		changes[i] = &change{
			key: r.Key,
			err: checkLife(r.Lease),
			model: func(now time.Time) mongo.WriteModel {
				return mongo.NewUpdateOneModel().
					SetFilter(append(heldBy(r.Key, r.Token, idemmail.StatePending), inTime(now))).
					SetUpdate(beginAnew(now, r.Lease, nil))
			},
			judge: func(holds *document) error {
				if holds != nil && holds.Token == r.Token && holds.State == idemmail.StatePending {
					return nil // one of those that matched
				}
				return fmt.Errorf("mongostore: renew key %q: %w", r.Key, idemmail.ErrLeaseLost)
			},
		}
	}
	return s.change(ctx, changes)
}

// beginAnew answers the update that sets fields and lets a record's time begin
// at now and last for life.
func beginAnew(now time.Time, life time.Duration, fields bson.D) bson.D {
	set := append(bson.D{{Key: "at", Value: bson.NewDateTimeFromTime(now)}}, fields...)
	if end := expiry(now, life); end != 0 {
		return bson.D{{Key: "$set", Value: append(set, bson.E{Key: "expires", Value: end})}}
	}
	return bson.D{
		{Key: "$set", Value: set},
		{Key: "$unset", Value: bson.D{{Key: "expires", Value: ""}}},
	}
}

// A change is the update or removal of one key's document.
type change struct {
	key   string
	model func(now time.Time) mongo.WriteModel

	// judge answers the result where the model may have matched nothing, by
	// what holds the key after it: nil if nothing does.
	judge func(holds *document) error
	err   error
}

// change carries out those of the changes that have no error yet, and answers
// the error of each. Where they matched fewer documents than they are, which
// the server does not tell one by one, it reads all of them.
func (s *Store) change(ctx context.Context, changes []*change) []error {
	now, err := s.clock.now(ctx)
	var sent []*change
	var models []mongo.WriteModel
	for _, c := range changes {
		if c.err == nil {
			c.err = err
		}
		if c.err == nil {
			sent = append(sent, c)
			models = append(models, c.model(now))
		}
	}
	if len(sent) > 0 {
		s.changeSent(ctx, sent, models, now)
	}
	errs := make([]error, len(changes))
	for i, c := range changes {
		errs[i] = c.err
	}
	return errs
}

func (s *Store) changeSent(ctx context.Context, changes []*change, models []mongo.WriteModel, now time.Time) {
	matched, errs := s.write(ctx, models)
	var done []*change
	var keys []string
	for i, c := range changes {
		if c.err = errs[i]; c.err == nil {
			done = append(done, c)
			keys = append(keys, c.key)
		}
	}
	if matched >= len(done) {
		return
	}
	docs, err := s.read(ctx, keys)
	for _, c := range done {
		doc, ok := docs[c.key]
		switch {
		case err != nil:
			c.err = err
		case !ok:
			c.err = c.judge(nil)
		case doc.err != nil:
			c.err = doc.err
		case doc.expired(now):
			c.err = c.judge(nil)
		default:
			c.err = c.judge(&doc.document)
		}
	}
}
