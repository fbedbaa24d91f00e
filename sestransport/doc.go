// Package sestransport sends mail through Amazon SES: the SendEmail operation
// of its API version 2.
//
//	client := sesv2.NewFromConfig(cfg)
//	ses, err := sestransport.New(client, sestransport.Options{
//		ConfigurationSet: "events",
//		KeyTag:           "idempotency-key",
//		Namespace:        "shop",
//	})
//	...
//	mailer, err := idemmail.New(ses, idemmail.Options{Store: store, Namespace: "shop"})
//
// # One request for one send
//
// SendEmail has no idempotency key: SES sends as many mails as it takes
// requests. So a send is one HTTP request, whatever the client's own settings:
//
//   - Each call sets a Retryer that never tries again ([aws.NopRetryer]), in
//     place of the client's, which would repeat after a lost answer, a timeout
//     and any 5xx.
//   - Each call stands before the client's HTTP client and lets one request
//     through. A second one, from middleware of yours that repeats, is refused
//     there and not sent; the outcome is that of the first, or unknown.
//   - net/http sends a POST again by itself, when a connection that was kept
//     alive is lost, if the request has an Idempotency-Key or
//     X-Idempotency-Key field and its body can be had anew (GetBody). This
//     package sets no such field and takes GetBody away, so neither that nor a
//     redirect (307, 308) repeats it; the answer to a GET that a redirect leads
//     to (301 to 303) is not taken for SES's. What net/http does repeat then is
//     only a request of which it has read nothing yet, on HTTP/2 too (a GOAWAY
//     or REFUSED_STREAM after that is an error, and the outcome unknown).
//
// An HTTP client that retries by itself ([aws.HTTPClient] is an interface)
// cannot be seen through: do not give the SES client one. Retry outside, where
// the outcome is known: around this transport and inside
// [idemmail.IdempotencyTransport], and never after an unknown outcome.
//
// # What became of it
//
// Every error is marked with [idemmail.NotSent] or [idemmail.MayBeSent], comes
// beside a receipt that says the same, and keeps its chain: errors.As finds
// [types.TooManyRequestsException], [smithy.APIError] and so on.
//
//	a MessageId came                            sent
//	the message breaks a rule of SES            failed, before any request ([FieldError])
//	no request was begun: credentials, signing,
//	  dial, DNS, TLS, the context before that   failed
//	the connection broke while it was written   failed: SES has the SHA-256 of the
//	                                            whole body in the signature
//	HTTP 4xx                                    failed, but RequestAbortedException unknown
//	HTTP 503 with SES's code ServiceUnavailable failed
//	any other 5xx, 3xx                          unknown
//	connection lost, timeout, cancellation      unknown
//	2xx without a MessageId, or not readable    unknown
//
// That no request was begun, or that it broke, counts only where the SDK's own
// client and net/http say so ([httptrace.ClientTrace]). Behind another [API] or
// HTTP client an error is read as [idemmail.ClassifyError] reads it, and is
// unknown unless it says that nothing was sent.
//
// The receipt's Code is the code of SES (MessageRejected) or, where it gives
// none, one of this package ([CodeNetwork]); Response is its status and text,
// ProviderID its MessageId. A throttled message
// (TooManyRequestsException, ThrottlingException, LimitExceededException) is
// rate_limit; credentials, signatures, AccountSuspendedException and
// SendingPausedException are auth, of which only the last is retryable; all
// other 4xx are validation. Recipients are not listed: SES takes all or none,
// and tells of each later, in its events.
//
// # Message-IDs
//
// SES replaces the Message-ID of every message. Message.MessageID, and with it
// idemmail.Options.MessageIDDomain, is therefore not sent, and does not help to
// find a mail again; KeyTag does. The receipt's MessageID is the one that SES
// makes, <MessageId>@email.amazonses.com in us-east-1 and
// <MessageId>@<region>.amazonses.com elsewhere, where the endpoint is SES's own
// for one region. AWS does not document the form; it has been this for years.
//
// # Message fields
//
// Messages go as Simple content, so that SES builds the MIME parts, and so they
// obey its rules: at most 50 recipients; ASCII addresses; 15 header fields,
// In-Reply-To and References among them, each of at most 870 bytes; no further
// field of a name that SES sets itself. References is cut to that length as
// RFC 5537 3.4.4 has it: the first one and the latest stay. A message that
// these rules do not fit goes through SendRaw. Raw content for all messages
// would lift them, for a MIME builder of our own beside the one that SES has.
//
// Tags are written name=value, both in A-Z, a-z, 0-9, _ and -, of at most 256
// bytes; Metadata becomes tags by the same rules. What does not fit is refused.
// Tracking overrides the configuration set. SES cannot schedule: a SendAt in
// the future is refused.
package sestransport
