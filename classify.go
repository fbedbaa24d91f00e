package idemmail

// Delivery is what an error says about a message.
type Delivery int

const (
	DeliveryUnspecified Delivery = iota // it does not say
	NotDelivered                        // the message was not taken
	DeliveryUnknown                     // the message may have been taken
)

// ClassifyError is a placeholder.
func ClassifyError(err error) Delivery { return DeliveryUnspecified }

// NotSent is a placeholder.
func NotSent(err error) error { return err }

// MayBeSent is a placeholder.
func MayBeSent(err error) error { return err }
