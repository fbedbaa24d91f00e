package idemmail

// A kind is what a receipt says of an error besides the delivery.
type kind struct {
	category  Category
	retryable bool // where the message was not taken; an unknown outcome never is
}

// kindUnknown is the kind of an error that says nothing about itself.
var kindUnknown = kind{CategoryUnknown, true}

// kindOf returns the category of an error and whether trying again may help,
// should the message not have been taken. It reads what [ClassifyError] reads:
// of a chain the first rule that a link meets, of a joined error the branch
// that decides the delivery. A mark says nothing about the kind; a [SendError]
// whose receipt has a category does, before all else.
func kindOf(err error) (Category, bool) {
	k := readError(err).kind
	return k.category, k.retryable
}

// replyKind is the kind of an SMTP reply (RFC 5321 4.2.1, RFC 4954 4 and 6).
func replyKind(code int) kind {
	switch {
	case code == 530, code == 534, code == 535:
		return kind{CategoryAuth, false}
	case 500 <= code && code <= 599:
		return kind{CategoryProvider, false}
	default:
		return kind{CategoryProvider, true}
	}
}

// httpKind is the kind of an HTTP status (RFC 9110 15, RFC 6585 4).
func httpKind(code int) kind {
	switch {
	case code == 401, code == 403:
		return kind{CategoryAuth, false}
	case code == 408:
		return kind{CategoryTimeout, true}
	case code == 429:
		return kind{CategoryRateLimit, true}
	case 400 <= code && code <= 499:
		return kind{CategoryValidation, false}
	default:
		return kind{CategoryProvider, true}
	}
}
