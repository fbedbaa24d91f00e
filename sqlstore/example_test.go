package sqlstore_test

import (
	"context"
	"database/sql"
	"fmt"
	"net/mail"
	"os"
	"path/filepath"
	"time"

	_ "modernc.org/sqlite"

	"github.com/idemmail/idemmail"
	"github.com/idemmail/idemmail/sqlstore"
)

// provider stands for a transport that sends.
var provider = idemmail.TransportFunc(func(_ context.Context, m *idemmail.Message) (*idemmail.Receipt, error) {
	fmt.Println("sending", m.Subject)
	return &idemmail.Receipt{Status: idemmail.StatusSent, ProviderID: "4F2A"}, nil
})

// Keys in a file survive the process: the second transport might be in another.
func Example() {
	dir, err := os.MkdirTemp("", "idemmail-")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	for range 2 {
		if err := sendOnce(filepath.Join(dir, "keys.db")); err != nil {
			fmt.Println(err)
		}
	}
	// Output:
	// sending Your order 1042
	// sent 4F2A false
	// sent 4F2A true
}

func sendOnce(file string) error {
	ctx := context.Background()
	db, err := sql.Open("sqlite", "file:"+file+"?_pragma=journal_mode(WAL)&_pragma=busy_timeout(5000)")
	if err != nil {
		return err
	}
	defer db.Close()
	store, err := sqlstore.New(db, sqlstore.Options{Dialect: sqlstore.SQLite})
	if err != nil {
		return err
	}
	if err := store.EnsureSchema(ctx); err != nil {
		return err
	}
	mailer, err := idemmail.New(provider, idemmail.Options{Store: store, Namespace: "orders"})
	if err != nil {
		return err
	}
	receipt, err := mailer.Send(ctx, &idemmail.Message{
		From:           mail.Address{Address: "shop@example.com"},
		To:             []mail.Address{{Address: "ann@example.org"}},
		Subject:        "Your order 1042",
		IdempotencyKey: "order/1042/confirmation",
	})
	if err != nil {
		return err
	}
	fmt.Println(receipt.Status, receipt.ProviderID, receipt.Replayed)
	return nil
}

// The order and the reservation of its mail are committed together, or not at
// all; then the mail goes.
func ExampleStore_ReserveTx() {
	confirm := func(ctx context.Context, db *sql.DB, store *sqlstore.Store, mailer idemmail.Transport, order string, m *idemmail.Message) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		if _, err := tx.ExecContext(ctx, "INSERT INTO orders (id) VALUES (?)", order); err != nil {
			return err
		}
		key := "orders:" + m.IdempotencyKey // with the transport's namespace
		token, held, err := store.ReserveTx(ctx, tx, key, idemmail.Fingerprint(m), time.Minute)
		if err != nil {
			return err
		}
		if held != nil {
			return fmt.Errorf("order %s is being confirmed, or was", order)
		}
		if err := tx.Commit(); err != nil {
			return err
		}
		_, err = mailer.Send(sqlstore.WithReservation(ctx, key, token), m)
		return err
	}
	_ = confirm
}

// A job that runs every hour keeps the table small.
func ExampleStore_DeleteExpired() {
	clean := func(ctx context.Context, store *sqlstore.Store) error {
		n, err := store.DeleteExpired(ctx, 100_000)
		fmt.Println("deleted", n)
		return err
	}
	_ = clean
}
