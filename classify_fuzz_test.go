package idemmail_test

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
)

// A modelLink is a link of a chain as the contract sees it: the rule that it
// meets (0: none) and what that rule says.
type modelLink struct {
	rule int
	says idemmail.Delivery
}

// errorWraps and errorLeaves are what the random errors are built of.
var errorWraps = []struct {
	modelLink
	wrap func(error) error
}{
	{modelLink{}, func(err error) error { return fmt.Errorf("wrapped: %w", err) }},
	{modelLink{1, notDelivered}, idemmail.NotSent},
	{modelLink{1, deliveryUnknown}, idemmail.MayBeSent},
	{modelLink{1, notDelivered}, func(err error) error {
		return &idemmail.SendError{Receipt: &idemmail.Receipt{Status: idemmail.StatusFailed}, Err: err}
	}},
	{modelLink{2, notDelivered}, func(err error) error { return &httpError{404, err} }},
	{modelLink{2, deliveryUnknown}, func(err error) error { return &httpError{502, err} }},
	{modelLink{3, notDelivered}, func(err error) error { return opError("dial", err) }},
	{modelLink{}, func(err error) error { return &url.Error{Op: "Post", Err: err} }},
}

var errorLeaves = []struct {
	modelLink
	err error
}{
	{modelLink{}, errOnFire},
	{modelLink{2, notDelivered}, replyError(451)},
	{modelLink{2, deliveryUnknown}, replyError(250)},
	{modelLink{3, notDelivered}, x509.HostnameError{}},
	{modelLink{3, notDelivered}, &net.DNSError{}},
	{modelLink{4, deliveryUnknown}, io.EOF},
	{modelLink{4, deliveryUnknown}, context.Canceled},
	{modelLink{}, timeoutError{false}},
}

// buildError makes an error from data, and the chains that lead from its first
// link to each of its leaves.
func buildError(data *[]byte, depth int) ([][]modelLink, error) {
	if len(*data) == 0 || depth == 0 {
		return [][]modelLink{{{}}}, errOnFire
	}
	b := int((*data)[0])
	*data = (*data)[1:]
	switch n := b >> 2; b & 3 {
	case 0, 1:
		w := errorWraps[n%len(errorWraps)]
		chains, err := buildError(data, depth-1)
		for i := range chains {
			chains[i] = append([]modelLink{w.modelLink}, chains[i]...)
		}
		return chains, w.wrap(err)
	case 2:
		var errs []error
		var chains [][]modelLink
		for range 1 + n%3 {
			more, err := buildError(data, depth-1)
			errs, chains = append(errs, err), append(chains, more...)
		}
		return chains, errors.Join(errs...)
	default:
		l := errorLeaves[n%len(errorLeaves)]
		return [][]modelLink{{l.modelLink}}, l.err
	}
}

// classifyChains is the contract read aloud.
func classifyChains(chains [][]modelLink) idemmail.Delivery {
	said := map[idemmail.Delivery]bool{}
	for _, chain := range chains {
		verdict := deliveryUnspecified
		for rule := 4; rule >= 1; rule-- {
			if i := slices.IndexFunc(chain, func(l modelLink) bool { return l.rule == rule }); i >= 0 {
				verdict = chain[i].says
			}
		}
		said[verdict] = true
	}
	switch {
	case said[deliveryUnknown]:
		return deliveryUnknown
	case said[deliveryUnspecified]:
		return deliveryUnspecified
	default:
		return notDelivered
	}
}

func FuzzClassifyError(f *testing.F) {
	f.Add([]byte{2, 23, 4})
	f.Add([]byte{0, 10, 7, 8, 23})
	f.Add([]byte{16, 6, 4, 3, 8, 23, 24, 19})
	f.Fuzz(func(t *testing.T, data []byte) {
		chains, err := buildError(&data, 8)
		require.Equal(t, classifyChains(chains), idemmail.ClassifyError(err), "%v of %v", err, chains)
		require.Equal(t, notDelivered, idemmail.ClassifyError(idemmail.NotSent(err)))
		require.Equal(t, deliveryUnknown, idemmail.ClassifyError(idemmail.MayBeSent(err)))
	})
}
