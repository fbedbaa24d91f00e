package storetest

import (
	"fmt"
	"time"

	"github.com/idemmail/idemmail"
)

// The calls of a BatchStore. Another number of answers than of requests ends
// the rule.

func (p *probe) reserveMany(reqs []idemmail.ReserveRequest) []idemmail.ReserveResult {
	return answered(p, "ReserveMany", len(reqs), p.batch().ReserveMany(p.ctx, reqs))
}

func (p *probe) completeMany(reqs []idemmail.CompleteRequest) []error {
	return answered(p, "CompleteMany", len(reqs), p.batch().CompleteMany(p.ctx, reqs))
}

func (p *probe) releaseMany(reqs []idemmail.ReleaseRequest) []error {
	return answered(p, "ReleaseMany", len(reqs), p.batch().ReleaseMany(p.ctx, reqs))
}

func (p *probe) renewMany(reqs []idemmail.RenewRequest) []error {
	return answered(p, "RenewMany", len(reqs), p.batch().RenewMany(p.ctx, reqs))
}

func answered[T any](p *probe, method string, requests int, answers []T) []T {
	if len(answers) != requests {
		p.stopf("%s must answer one result per request; it answered %d for %d", method, len(answers), requests)
	}
	return answers
}

// reserveRequests asks for each key under a fingerprint of its own.
func reserveRequests(keys []string, lease time.Duration) []idemmail.ReserveRequest {
	reqs := make([]idemmail.ReserveRequest, len(keys))
	for i, key := range keys {
		reqs[i] = idemmail.ReserveRequest{Key: key, Fingerprint: printOf(i), Lease: lease}
	}
	return reqs
}

func printOf(i int) string { return fmt.Sprint("1:item ", i) }

// takeMany reserves keys that must be free; it answers the tokens.
func (p *probe) takeMany(keys []string) []string {
	tokens := make([]string, len(keys))
	for i, res := range p.reserveMany(reserveRequests(keys, long)) {
		if res.Err != nil {
			p.stopf("ReserveMany, request %d: %w", i, res.Err)
		}
		if res.Held != nil || res.Token == "" {
			p.stopf("ReserveMany, request %d: the key %q must be found free; it was answered the token %q and %s", i, keys[i], res.Token, show(res.Held))
		}
		tokens[i] = res.Token
	}
	return tokens
}

// completed is a request whose receipt has the request's number.
func completed(i int, key, token string) idemmail.CompleteRequest {
	rec := record(i)
	rec.Fingerprint = printOf(i)
	return idemmail.CompleteRequest{Key: key, Token: token, Record: rec, TTL: long}
}

// lost notes a result other than ErrLeaseLost where lost says so, and an error
// elsewhere.
func (p *probe) lost(method string, results []error, lost func(i int) bool) {
	for i, err := range results {
		if lost(i) {
			p.is(err, idemmail.ErrLeaseLost, "%s, request %d, whose token does not hold the key,", method, i)
		} else {
			p.ok(err, "%s, request %d", method, i)
		}
	}
}

// third reports whether i is one of the requests that are to fail.
func third(i int) bool { return i%3 == 1 }
