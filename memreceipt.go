package idemmail

import (
	"encoding/binary"
	"time"
)

// A packedReceipt is a receipt, but for Replayed, in one string that no one
// can change: half the memory of a Receipt, one allocation to make and, but
// for the lists, one to read, since the strings of the receipt are parts of
// it. It never leaves the process, so its format may change at will.
type packedReceipt string

// packReceipt returns the packed form of r, which is never empty.
func packReceipt(r *Receipt) packedReceipt {
	var buf [1024]byte // on the stack; larger receipts move off it
	b := buf[:0]
	b = packString(b, string(r.Status))
	b = packString(b, r.Transport)
	b = packString(b, r.MessageID)
	b = packString(b, r.ProviderID)
	b = packString(b, r.Response)
	b = packLength(b, len(r.Accepted), r.Accepted == nil)
	for _, address := range r.Accepted {
		b = packString(b, address)
	}
	b = packLength(b, len(r.Rejected), r.Rejected == nil)
	for _, rejection := range r.Rejected {
		b = packString(b, rejection.Address)
		b = packString(b, rejection.Reason)
		b = binary.AppendUvarint(b, uint64(rejection.Code))
	}
	b = binary.AppendUvarint(b, uint64(r.At.Unix()))
	b = binary.AppendUvarint(b, uint64(r.At.Nanosecond()))
	b = packString(b, r.Code)
	b = packString(b, string(r.Category))
	if r.Retryable {
		b = append(b, 1)
	} else {
		b = append(b, 0)
	}
	b = packString(b, r.Detail)
	return packedReceipt(b)
}

// unpack returns the receipt as it was packed, its time in UTC.
func (p packedReceipt) unpack() *Receipt {
	r := &Receipt{}
	r.Status = Status(p.takeString())
	r.Transport = p.takeString()
	r.MessageID = p.takeString()
	r.ProviderID = p.takeString()
	r.Response = p.takeString()
	if n, ok := p.takeLength(); ok {
		r.Accepted = make([]string, n)
		for i := range r.Accepted {
			r.Accepted[i] = p.takeString()
		}
	}
	if n, ok := p.takeLength(); ok {
		r.Rejected = make([]Rejection, n)
		for i := range r.Rejected {
			r.Rejected[i].Address = p.takeString()
			r.Rejected[i].Reason = p.takeString()
			r.Rejected[i].Code = int(p.takeNumber())
		}
	}
	seconds := int64(p.takeNumber())
	r.At = time.Unix(seconds, int64(p.takeNumber())).UTC()
	r.Code = p.takeString()
	r.Category = Category(p.takeString())
	r.Retryable = p.takeNumber() == 1
	r.Detail = p.takeString()
	return r
}

func packString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// packLength keeps a list that is nil apart from one that is empty.
func packLength(b []byte, n int, isNil bool) []byte {
	if isNil {
		return append(b, 0)
	}
	return binary.AppendUvarint(b, uint64(n)+1)
}

func (p *packedReceipt) takeString() string {
	n := p.takeNumber()
	s := string((*p)[:n])
	*p = (*p)[n:]
	return s
}

// takeLength reports false for a list that is nil.
func (p *packedReceipt) takeLength() (n uint64, ok bool) {
	n = p.takeNumber()
	return n - 1, n > 0
}

// takeNumber reads what binary.AppendUvarint wrote.
func (p *packedReceipt) takeNumber() uint64 {
	var n uint64
	for i, shift := 0, 0; ; i, shift = i+1, shift+7 {
		c := (*p)[i]
		n |= uint64(c&0x7f) << shift
		if c < 0x80 {
			*p = (*p)[i+1:]
			return n
		}
	}
}
