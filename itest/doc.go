// Package itest tests the modules of this project together, and tries to break
// what they promise: over every store, in several processes, with servers and
// networks that fail. There is nothing in it to import. It is a module of its
// own, so that nobody else carries the tools that this takes.
//
// The tests are bounded for make test; with IDEMMAIL_SOAK=1 in the environment
// they take their long form.
package itest
