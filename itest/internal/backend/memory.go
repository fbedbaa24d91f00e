package backend

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/idemmail/idemmail"
)

// memories has the MemStores of this process by their URLs.
var (
	memories sync.Map
	numbers  atomic.Int64
)

func startMemory(t testing.TB) *Server {
	url := fmt.Sprintf("memory:%d", numbers.Add(1))
	memories.Store(url, idemmail.NewMemStore(idemmail.MemStoreOptions{}))
	t.Cleanup(func() { memories.Delete(url) })
	return &Server{URL: url}
}

func dialMemory(url string) (Store, func(), error) {
	s, ok := memories.Load(url)
	if !ok {
		return nil, nil, fmt.Errorf("%s is not of this process", url)
	}
	return s.(*idemmail.MemStore), func() {}, nil
}
