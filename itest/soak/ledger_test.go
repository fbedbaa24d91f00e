package soak_test

import (
	"encoding/binary"
	"fmt"
	"os"
)

// An entry of a ledger is one byte of what happened and four of the key. It is
// written at once: what has happened is known though the process dies.
const (
	delivered       = 'd' // the provider has taken a message
	answeredSent    = 's' // a call was told that it was sent
	answeredUnknown = 'u' // a call was told that it may have been
	entrySize       = 5
)

type ledger struct{ file *os.File }

func openLedger(name string) (ledger, error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	return ledger{f}, err
}

func (l ledger) note(what byte, key int) {
	entry := [entrySize]byte{what}
	binary.BigEndian.PutUint32(entry[1:], uint32(key))
	if _, err := l.file.Write(entry[:]); err != nil { // one write: atomic
		panic(err)
	}
}

// A fate is what became of a key, as all ledgers together have it.
type fate struct {
	delivered     uint16
	sent, unknown uint16 // answers
}

// read adds what a ledger says to the fates of the keys.
func readLedger(name string, fates []fate) error {
	content, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	if len(content)%entrySize != 0 {
		return fmt.Errorf("%s is cut off", name)
	}
	for ; len(content) > 0; content = content[entrySize:] {
		f := &fates[binary.BigEndian.Uint32(content[1:entrySize])]
		switch content[0] {
		case delivered:
			f.delivered++
		case answeredSent:
			f.sent++
		case answeredUnknown:
			f.unknown++
		}
	}
	return nil
}
