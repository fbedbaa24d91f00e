// Package linear has concurrent histories of every store checked against the
// contract of [idemmail.Store], as a sequential specification with time: there
// must be an order of the calls, each at one moment between its question and
// its answer, in which every answer is right.
package linear
