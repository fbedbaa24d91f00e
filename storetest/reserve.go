package storetest

import "github.com/idemmail/idemmail"

var reserveRules = []rule{
	{
		name: "token-or-record",
		wants: "Reserve answers exactly one of a token and a record: a token for the one who has the key, " +
			"a record for everyone else; with both, or neither, nobody can tell who sends",
		needs: needReserve,
		run: func(p *probe) {
			key := p.key()
			if token, held := p.ask(key, mine, long); token == "" || held != nil {
				p.failf("a free key: it answered the token %q and %s", token, show(held))
			}
			if token, held := p.ask(key, other, long); token != "" || held == nil {
				p.failf("a held key: it answered the token %q and %s", token, show(held))
			}
		},
	},
	{
		name: "held-pending",
		wants: "the record of a reserved key is pending and has no receipt; " +
			"the sender tells by it that the first send has not ended",
		needs: needReserve,
		run: func(p *probe) {
			key := p.key()
			p.take(key, long)
			for range 2 { // asking changes nothing
				held := p.held(key, "while it is reserved")
				if held != nil && (held.State != idemmail.StatePending || held.Receipt != nil) {
					p.failf("Reserve answered %s", show(held))
				}
			}
		},
	},
	{
		name: "tokens-unguessable",
		wants: "a token cannot be guessed: it has 16 bytes or more from a source like crypto/rand; " +
			"who can guess it can settle another's send",
		needs: needReserve,
		run: func(p *probe) {
			const (
				count      = 200
				leastBytes = 16
				leastApart = 8 // bytes in which tokens in a row differ, on average; 16 digits at random differ in 14 of 16
			)
			var last string
			var apart, pairs int
			for range count {
				token := p.take(p.key(), long)
				if len(token) < leastBytes {
					p.stopf("token %q has %d bytes", token, len(token))
				}
				if len(token) == len(last) {
					pairs++
					for i := range len(token) {
						if token[i] != last[i] {
							apart++
						}
					}
				}
				last = token
			}
			if apart < leastApart*pairs {
				p.failf("tokens in a row are alike but for %.1f bytes: who has one can guess the next (%q)", float64(apart)/float64(pairs), last)
			}
		},
	},
}
