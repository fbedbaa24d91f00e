package main

import (
	"errors"

	"github.com/idemmail/idemmail"
)

// Exit codes. They are in the help, and scripts rely on them.
const (
	exitDone         = 0
	exitFailed       = 1
	exitUsage        = 2
	exitNotFound     = 3
	exitRefused      = 4
	exitNotConfirmed = 5
	exitUnsafe       = 6
	exitBadRecord    = 7
	exitUnsettled    = 8
)

const exitHelp = `Exit codes:
  0  done; for list: all was listed, be it nothing
  1  the store could not be reached, or answered with an error
  2  wrong use: a flag, the store URL, or a KEY that cannot be one
  3  nothing holds KEY (any more)
  4  refused: KEY is settled already, its send may be alive, or its record
     has changed since it was read
  5  not confirmed: nothing was changed
  6  check: the store is not safe to use
  7  data that is no record of idemmail: under KEY, or shown in the list
  8  list --exit-code: something is unsettled`

// An exitError ends the program with a code. One without err has nothing to
// say that was not said already.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

func exit(code int, err error) error { return &exitError{code, err} }

// wrongUse ends the program for what the operator wrote.
func wrongUse(err error) error { return exit(exitUsage, err) }

// failed ends the program for what a store answered.
func failed(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, idemmail.ErrBadRecord):
		return exit(exitBadRecord, err)
	case errors.Is(err, idemmail.ErrInvalidKey):
		return wrongUse(err)
	case errors.Is(err, idemmail.ErrChanged), errors.Is(err, idemmail.ErrInFlight):
		return exit(exitRefused, err)
	}
	return exit(exitFailed, err)
}
