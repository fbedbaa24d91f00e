package storetest

import "strings"

// oddKeys are keys that are the same to a store which folds, cuts, expands or
// normalises them, or which mean something to it. base, which is random, is in
// each.
func oddKeys(base string) []string {
	const maxKey = 64 + 1 + 512 // a namespace, its colon and a key, each as long as may be
	fill := strings.Repeat("k", maxKey-len(base)-1)
	keys := []string{
		// alike but for case, accents, width, spaces or their end
		base, base + "a", base + "A", base + "aa", base + "ab", base + "a ", base + " a", base + "a\u00a0",
		base + "e\u0301", base + "\u00e9", base + "e", base + "\u017f", base + "s", base + "\u212a", base + "k",
		base + "ß", base + "ss", base + "ı", base + "i", base + "\uff41", base + "a\u200b", base + "a\ufeff",
		// as long as may be, and alike but for the last byte
		base + fill + "1", base + fill + "2", base + strings.Repeat("👩", len(fill)/4), base + strings.Repeat("é", len(fill)/2),
	}
	for _, odd := range []string{
		"$", "$set", ".", "..", "{", "}", "{}", "{a}", "*", "?", "[", "[a-z]", "]", "^", "!", "~",
		"%", "%s", "%00", "_", "\\", "\\\\", "\\*", "'", "''", `"`, "`", ";", "--", "/", "//", "|", "&", "<", ">", "#", "@", ",", "=", "+", ":", "::",
		"👩‍👩‍👧", "日本", "\u202e", "\u2028", "\ufffd", "\U0010ffff", "null", "0", "00",
	} {
		keys = append(keys, base+odd, odd+base, base+odd+"x")
	}
	return keys
}

var keyRules = []rule{
	{
		name: "keys",
		wants: "keys are kept apart exactly: by case, by every byte and to their full length, and no character means anything; " +
			"where two keys are one, the second mail never goes, and its sender gets another's receipt",
		needs: append([]string{"fingerprint"}, needComplete...),
		run: func(p *probe) {
			keys := oddKeys(p.prefix)
			tokens := make([]string, len(keys))
			for i, key := range keys {
				token, err := p.try(key, key, long)
				if err != nil {
					p.failf("%w", err)
				}
				tokens[i] = token
			}
			for i, key := range keys {
				if tokens[i] == "" {
					continue
				}
				rec := record(i)
				rec.Fingerprint = key
				p.ok(p.store.Complete(p.ctx, key, tokens[i], rec, long), "completing the key %q", key)
			}
			for i, key := range keys {
				if tokens[i] == "" {
					continue
				}
				if held := p.held(key, "completed"); held != nil && (held.Fingerprint != key || numberOf(held.Receipt) != i) {
					p.failf("the key %q, completed with receipt %d, shows %s", key, i, show(held))
				}
			}
		},
	},
	{
		name:  "keys-released",
		wants: "Release frees its own key alone, whatever characters it has",
		needs: append([]string{"keys"}, needReserve...),
		run: func(p *probe) {
			keys := oddKeys(p.prefix)
			for _, pattern := range []string{"kep?", "kep_", "k%", "k*", "[k]ept", "KEPT", "kept", "kep", "kept*"} {
				keys = append(keys, p.prefix+"/"+pattern)
			}
			tokens := make([]string, len(keys))
			for i, key := range keys {
				tokens[i] = p.take(key, long)
			}
			for i, key := range keys {
				if i%2 == 0 {
					p.ok(p.store.Release(p.ctx, key, tokens[i]), "releasing the key %q", key)
				}
			}
			for i, key := range keys {
				token, held := p.ask(key, other, long)
				switch {
				case i%2 == 0 && (held != nil || token == ""):
					p.failf("the key %q, which was released, is held by %s", key, show(held))
				case i%2 != 0 && held == nil:
					p.failf("the key %q, which was never released, was free", key)
				}
			}
		},
	},
}
