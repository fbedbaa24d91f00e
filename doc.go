// Package idemmail sends a mail once under an idempotency key, whatever the
// queue, the worker and the network do.
//
// [IdempotencyTransport] wraps any [Transport] (SES, SMTP, an HTTP provider).
// It reserves the message's key in a [Store] before the send, keeps the receipt
// after it, frees the key where the message surely was not taken, keeps it
// where nobody can know, and answers every later send under that key with the
// first one's receipt:
//
//	guarded, err := idemmail.New(transport, idemmail.Options{
//		Store:     redisstore.New(client, redisstore.Options{}),
//		Namespace: "orders-production",
//	})
//	if err != nil {
//		return err
//	}
//	receipt, err := guarded.Send(ctx, &idemmail.Message{
//		From:           mail.Address{Address: "shop@example.com"},
//		To:             []mail.Address{{Address: "ada@example.org"}},
//		Subject:        "Your order 1042",
//		Text:           "Thank you.",
//		IdempotencyKey: "order/1042/confirmation",
//	})
//
// # What is promised
//
// By default: at least once, with deduplication. A message goes once, but for
// one case: a process that dies after the provider took the message and before
// the receipt was kept leaves a reservation that ends with its lease, and a
// later attempt then sends again. Receipts, reminders and anything else that
// must arrive are served best by this.
//
// With [Options.AtMostOnce] a reservation never becomes free by itself. What a
// dead process leaves behind is answered with [ErrAbandoned] and waits for an
// operator ([Guard.Unsettled], [Guard.Resolve], [Guard.Forget]): nothing goes
// twice, and a mail may not go until somebody has looked. This is for mail
// where a second copy does harm: payment instructions, one-time codes.
//
// An outcome can be unknown: the connection broke after the last byte of the
// mail, and no answer came. Then the key is kept, the error matches
// [ErrDeliveryUnknown], and no retry sends it again. Only the provider knows;
// the same four methods settle it.
//
// # The life of a key
//
// A key is free, then pending for [Options.Lease] while its message is being
// sent (renewed where the store is a [Renewer]), then done with a receipt for
// [Options.TTL], then free again. A definite failure frees it at once. A
// message is told from another under the same key by its [Fingerprint].
//
// # Stores
//
// [MemStore] serves one process and forgets on a restart. The packages
// redisstore and mongostore, and the module sqlstore, serve many. Package
// storetest tests stores written by others; package mailtest has a scripted
// transport for tests, and a simulator of crashes.
package idemmail
