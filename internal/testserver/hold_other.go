//go:build !unix

package testserver

import "os"

// No process can be held here: no process takes these.
var stopSignal, continueSignal os.Signal = os.Interrupt, os.Interrupt
