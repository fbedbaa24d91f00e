package storetest

import "github.com/idemmail/idemmail"

var releaseRules = []rule{
	{
		name: "release-nothing",
		wants: "Release of a key that nothing holds is no error: " +
			"a Release whose answer was lost is tried again",
		needs: needReserve,
		run: func(p *probe) {
			key := p.key()
			token := p.take(key, long)
			p.give(key, token)
			p.ok(p.store.Release(p.ctx, key, token), "releasing twice")
			p.ok(p.store.Release(p.ctx, p.key(), token), "releasing a key that was never reserved")
			p.free(key, "released twice")
		},
	},
	{
		name: "release-foreign",
		wants: "Release under a token that does not hold the key answers ErrLeaseLost and leaves the key: " +
			"freeing it by its name alone frees the send that has it now",
		needs: needReserve,
		run: func(p *probe) {
			key := p.key()
			stale := p.take(key, long)
			p.give(key, stale)
			p.take(key, long)
			foreign := p.take(p.key(), long)
			p.is(p.store.Release(p.ctx, key, stale), idemmail.ErrLeaseLost, "releasing with the token of an earlier reservation")
			p.pending(key, "after a Release with the token of an earlier reservation")
			p.is(p.store.Release(p.ctx, key, foreign), idemmail.ErrLeaseLost, "releasing with the token of another key")
			p.pending(key, "after a Release with the token of another key")
		},
	},
	{
		name: "release-done",
		wants: "Release of a done key answers ErrLeaseLost and leaves it, whatever the token: " +
			"a receipt that a stale Release can delete lets the mail go again",
		needs: append([]string{"release-foreign"}, needComplete...),
		run: func(p *probe) {
			key := p.key()
			stale := p.take(key, long)
			p.give(key, stale)
			token := p.take(key, long)
			p.settle(key, token, 1, long)
			p.is(p.store.Release(p.ctx, key, token), idemmail.ErrLeaseLost, "releasing a done key with its own token")
			p.done(key, 1, "after a Release with its own token")
			p.is(p.store.Release(p.ctx, key, stale), idemmail.ErrLeaseLost, "releasing a done key with an earlier token")
			p.done(key, 1, "after a Release with an earlier token")
		},
	},
}
