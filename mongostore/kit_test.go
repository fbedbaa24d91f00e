package mongostore_test

import (
	"testing"
	"time"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/mongostore"
	"github.com/idemmail/idemmail/storetest"
)

func TestStoreContract(t *testing.T) {
	srv := server(t)
	t.Run("the server's clock is moved", func(t *testing.T) {
		var stores []*mongostore.Store
		storetest.Run(t, storetest.Config{
			Open: func() (idemmail.Store, error) {
				s := newStore(collection(t, srv.URI))
				stores = append(stores, s)
				return s, nil
			},
			Advance: func(d time.Duration) {
				for _, s := range stores {
					s.Advance(d)
				}
			},
		})
	})
	t.Run("real time", func(t *testing.T) {
		coll := collection(t, srv.URI)
		storetest.Run(t, storetest.Config{Open: func() (idemmail.Store, error) { return newStore(coll), nil }})
	})
}
