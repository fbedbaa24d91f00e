package main

import (
	"context"
	"errors"
	"net/mail"

	"github.com/idemmail/idemmail"
)

// A onceMailer sends with a mailer, each mail once under its key.
type onceMailer struct {
	mailer *mailer
	guard  *idemmail.Guard
}

// SendMail has what the mailer's own has, with a context and a key. The mailer
// does not heed the context once it has begun.
func (m onceMailer) SendMail(ctx context.Context, key, to, subject, body string) (*idemmail.Receipt, error) {
	// Tells another mail under the same key.
	fingerprint := idemmail.Fingerprint(&idemmail.Message{To: []mail.Address{{Address: to}}, Subject: subject, Text: body})
	return m.guard.Do(ctx, key, fingerprint, func(context.Context) (*idemmail.Receipt, error) {
		return nil, outcome(m.mailer.SendMail(to, subject, body)) // no receipt and no error: sent
	})
}

// outcome says what an error of the mailer means for the mail: it was surely
// not taken, or it may have been. Where a mailer does not tell, it may have
// been: a mail that is called failed is sent again.
func outcome(err error) error {
	var failed *mailError
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &failed):
		return idemmail.MayBeSent(err)
	case failed.step == "goodbye":
		return nil // the server has the mail, whatever became of the connection
	case failed.step == "connect", failed.step == "envelope":
		return idemmail.NotSent(err)
	case idemmail.ClassifyError(err) == idemmail.NotDelivered:
		return err // the server's "no" to the mail itself
	default:
		return idemmail.MayBeSent(err)
	}
}
