package idemmail

// What the tests of classify.go, kind.go and fingerprint.go see of them.
var (
	KindOf          = kindOf
	SameFingerprint = sameFingerprint
)
