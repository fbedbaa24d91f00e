package idemmail

import (
	"encoding/binary"
	"time"
)

// A packedReceipt is a receipt, but for Replayed, in one string that no one
// can change: half the memory of a Receipt, one allocation to make and, but
// for the lists, one to read, since the strings of the receipt are parts of
// it. Numbers and the lengths of strings come first, so that reading need not
// touch the text behind them. It never leaves the process, so its format may
// change at will.
type packedReceipt string

// packReceipt returns the packed form of r, which is never empty.
func packReceipt(r *Receipt) packedReceipt {
	var room [2][512]byte // on the stack; what is larger moves off it
	numbers, text := room[0][:4], room[1][:0]
	numbers, text = packString(numbers, text, string(r.Status))
	numbers, text = packString(numbers, text, r.Transport)
	numbers, text = packString(numbers, text, r.MessageID)
	numbers, text = packString(numbers, text, r.ProviderID)
	numbers, text = packString(numbers, text, r.Response)
	numbers = packLength(numbers, len(r.Accepted), r.Accepted == nil)
	for _, address := range r.Accepted {
		numbers, text = packString(numbers, text, address)
	}
	numbers = packLength(numbers, len(r.Rejected), r.Rejected == nil)
	for _, rejection := range r.Rejected {
		numbers, text = packString(numbers, text, rejection.Address)
		numbers, text = packString(numbers, text, rejection.Reason)
		numbers = binary.AppendUvarint(numbers, uint64(rejection.Code))
	}
	numbers = binary.AppendUvarint(numbers, uint64(r.At.Unix()))
	numbers = binary.AppendUvarint(numbers, uint64(r.At.Nanosecond()))
	numbers, text = packString(numbers, text, r.Code)
	numbers, text = packString(numbers, text, string(r.Category))
	if r.Retryable {
		numbers = binary.AppendUvarint(numbers, 1)
	} else {
		numbers = binary.AppendUvarint(numbers, 0)
	}
	numbers, text = packString(numbers, text, r.Detail)
	binary.LittleEndian.PutUint32(numbers, uint32(len(numbers)))
	return packedReceipt(append(numbers, text...))
}

// unpack returns the receipt as it was packed, its time in UTC.
func (p packedReceipt) unpack() *Receipt {
	end := int(p[0]) | int(p[1])<<8 | int(p[2])<<16 | int(p[3])<<24
	u := receiptUnpacker{numbers: string(p[4:end]), text: string(p[end:])}
	r := &Receipt{}
	r.Status = Status(u.string())
	r.Transport = u.string()
	r.MessageID = u.string()
	r.ProviderID = u.string()
	r.Response = u.string()
	if n, ok := u.length(); ok {
		r.Accepted = make([]string, n)
		for i := range r.Accepted {
			r.Accepted[i] = u.string()
		}
	}
	if n, ok := u.length(); ok {
		r.Rejected = make([]Rejection, n)
		for i := range r.Rejected {
			r.Rejected[i].Address = u.string()
			r.Rejected[i].Reason = u.string()
			r.Rejected[i].Code = int(u.number())
		}
	}
	seconds := int64(u.number())
	r.At = time.Unix(seconds, int64(u.number())).UTC()
	r.Code = u.string()
	r.Category = Category(u.string())
	r.Retryable = u.number() == 1
	r.Detail = u.string()
	return r
}

func packString(numbers, text []byte, s string) ([]byte, []byte) {
	return binary.AppendUvarint(numbers, uint64(len(s))), append(text, s...)
}

// packLength keeps a list that is nil apart from one that is empty.
func packLength(numbers []byte, n int, isNil bool) []byte {
	if isNil {
		return append(numbers, 0)
	}
	return binary.AppendUvarint(numbers, uint64(n)+1)
}

type receiptUnpacker struct{ numbers, text string }

// number reads what binary.AppendUvarint wrote.
func (u *receiptUnpacker) number() uint64 {
	var n uint64
	for i, shift := 0, 0; ; i, shift = i+1, shift+7 {
		c := u.numbers[i]
		n |= uint64(c&0x7f) << shift
		if c < 0x80 {
			u.numbers = u.numbers[i+1:]
			return n
		}
	}
}

func (u *receiptUnpacker) string() string {
	n := u.number()
	s := u.text[:n]
	u.text = u.text[n:]
	return s
}

// length reports false for a list that is nil.
func (u *receiptUnpacker) length() (n uint64, ok bool) {
	n = u.number()
	return n - 1, n > 0
}
