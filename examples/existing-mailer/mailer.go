package main

import (
	"fmt"
	"net/smtp"
)

// A mailer is somebody's own, as many programs have one: it was not made for
// this library, knows no keys and no contexts, and has errors of its own. It is
// used as it is.
type mailer struct{ addr, from string }

// A mailError says how far a mail came.
type mailError struct {
	step string // connect, envelope, content, goodbye
	err  error
}

func (e *mailError) Error() string { return fmt.Sprintf("mailer: %s: %v", e.step, e.err) }
func (e *mailError) Unwrap() error { return e.err }

// SendMail sends a mail over SMTP.
func (m *mailer) SendMail(to, subject, body string) error {
	client, err := smtp.Dial(m.addr)
	if err != nil {
		return &mailError{"connect", err}
	}
	defer client.Close()
	if err := client.Mail(m.from); err != nil {
		return &mailError{"envelope", err}
	}
	if err := client.Rcpt(to); err != nil {
		return &mailError{"envelope", err}
	}
	content, err := client.Data()
	if err != nil {
		return &mailError{"envelope", err}
	}
	_, err = fmt.Fprintf(content, "From: %s\r\nTo: %s\r\nSubject: %s\r\n\r\n%s\r\n", m.from, to, subject, body)
	if err != nil {
		return &mailError{"content", err}
	}
	if err := content.Close(); err != nil { // writes the final dot, and waits for the reply to it
		return &mailError{"content", err}
	}
	if err := client.Quit(); err != nil {
		return &mailError{"goodbye", err}
	}
	return nil
}
