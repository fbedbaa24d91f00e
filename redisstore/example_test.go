package redisstore_test

import (
	"context"
	"log"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/redisstore"
)

func Example() {
	client := redis.NewClient(&redis.Options{
		Addr:                  "localhost:6379",
		ContextTimeoutEnabled: true,
	})
	defer client.Close()
	store := redisstore.New(client, redisstore.Options{})

	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := store.Check(ctx); err != nil {
		log.Fatal(err) // too old, evicts keys, lacks a right
	}

	transport, err := idemmail.New(
		idemmail.TransportFunc(func(context.Context, *idemmail.Message) (*idemmail.Receipt, error) {
			return nil, nil // your mailer
		}),
		idemmail.Options{Store: store, Namespace: "orders"},
	)
	if err != nil {
		log.Fatal(err)
	}
	_, err = transport.Send(ctx, &idemmail.Message{IdempotencyKey: "order/1042/confirmation"})
	if err != nil {
		log.Print(err)
	}
}
