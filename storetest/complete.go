package storetest

import "github.com/idemmail/idemmail"

var completeRules = []rule{
	{
		name: "complete-again",
		wants: "a done record keeps its token: completing again under it is no error and keeps the newer receipt; " +
			"a Complete whose answer was lost is tried again",
		needs: needComplete,
		run: func(p *probe) {
			key, token := p.sent(1, long)
			p.ok(p.complete(key, token, 1, long), "completing again with the same receipt")
			p.done(key, 1, "completed twice")
			p.ok(p.complete(key, token, 2, long), "completing again with another receipt")
			p.done(key, 2, "completed with another receipt")
		},
	},
	{
		name: "complete-free",
		wants: "Complete of a key that nothing holds keeps the record, with its fingerprint and under its token: " +
			"the mail went, and a store that refuses the receipt lets it go again",
		needs: append([]string{"complete-again", "fingerprint"}, needComplete...),
		run: func(p *probe) {
			key := p.key()
			token := p.take(key, long)
			p.give(key, token)
			p.ok(p.complete(key, token, 1, long), "completing a key that was released")
			p.done(key, 1, "completed after its release")
			if held := p.held(key, "completed after its release"); held != nil && held.Fingerprint != mine {
				p.failf("completed after its release with fingerprint %q, the key shows %q", mine, held.Fingerprint)
			}
			p.ok(p.complete(key, token, 2, long), "completing it again")
			p.done(key, 2, "completed again")

			never := p.key()
			p.ok(p.complete(never, p.take(p.key(), long), 3, long), "completing a key that was never reserved")
			p.done(never, 3, "completed without a reservation")
		},
	},
	{
		name: "complete-foreign",
		wants: "Complete under a token that does not hold the key answers ErrLeaseLost and changes nothing: " +
			"a sender whose lease was lost must not overwrite the send that has the key now",
		needs: needComplete,
		run: func(p *probe) {
			key := p.key()
			stale := p.take(key, long)
			p.give(key, stale)
			token := p.take(key, long)
			foreign := p.take(p.key(), long)

			p.is(p.complete(key, stale, 1, long), idemmail.ErrLeaseLost, "completing with the token of an earlier reservation")
			p.is(p.complete(key, foreign, 1, long), idemmail.ErrLeaseLost, "completing with the token of another key")
			p.pending(key, "after a Complete under another token")
			p.ok(p.complete(key, token, 2, long), "completing with the token that holds the key")
			p.is(p.complete(key, stale, 1, long), idemmail.ErrLeaseLost, "completing a done key with the token of an earlier reservation")
			p.is(p.complete(key, foreign, 1, long), idemmail.ErrLeaseLost, "completing a done key with the token of another key")
			p.done(key, 2, "after a Complete under another token")
		},
	},
}
