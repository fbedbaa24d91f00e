package redisstore_test

import (
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/redisstore"
	"github.com/idemmail/idemmail/storetest"
)

// open has the kit test stores that share a client.
func open(client redis.UniversalClient) func() (idemmail.Store, error) {
	return func() (idemmail.Store, error) { return redisstore.New(client, redisstore.Options{}), nil }
}

func TestContract(t *testing.T) {
	m := miniredis.RunT(t) // whose TIME passes by itself, and whose keys end by FastForward
	storetest.Run(t, storetest.Config{Open: open(newClient(t, m.Addr())), Advance: m.FastForward})
}

// testContract lets real time pass.
func testContract(t *testing.T, client redis.UniversalClient) {
	storetest.Run(t, storetest.Config{Open: open(client)})
}
