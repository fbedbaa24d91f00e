// Package soak tells whether tests are to take their long form.
package soak

import "os"

// Wanted reports whether IDEMMAIL_SOAK is set, to 1.
func Wanted() bool { return os.Getenv("IDEMMAIL_SOAK") == "1" }

// Scaled answers how often something is done: short, or long in a soak.
func Scaled(short, long int) int {
	if Wanted() {
		return long
	}
	return short
}
