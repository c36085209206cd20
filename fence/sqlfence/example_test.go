package sqlfence_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/sqlfence"
)

// A holder's tenure: claim once, then write. ctx is the context of its lock, which carries the token.
func Example() {
	f, err := sqlfence.New(sqlfence.PostgreSQL, sqlfence.Options{})
	if err != nil {
		log.Fatal(err)
	}

	tenure := func(ctx context.Context, db *sql.DB) error {
		if err := f.Claim(ctx, db, "accounts"); err != nil {
			return err
		}
		return f.Do(ctx, db, "accounts", func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "UPDATE accounts SET balance = balance - 10 WHERE id = 7")
			return err
		})
	}

	// Without the lock nothing is sent.
	db := sql.OpenDB(&fakeServer{})
	defer db.Close() //nolint:errcheck // A fake.
	err = tenure(context.Background(), db)
	fmt.Println("a token is missing:", errors.Is(err, fence.ErrInvalidToken))
	// Output:
	// a token is missing: true
}

// The check goes first in a transaction of your own.
func ExampleMarks_Check() {
	db := sql.OpenDB(&fakeServer{token: 54})
	defer db.Close()                                  //nolint:errcheck // A fake.
	ctx := fence.NewContext(context.Background(), 54) // a lock's context carries its token
	f, err := sqlfence.New(sqlfence.PostgreSQL, sqlfence.Options{})
	if err != nil {
		log.Fatal(err)
	}

	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer tx.Rollback() //nolint:errcheck // After the commit it does nothing.
	if err := f.Check(ctx, tx, "accounts"); err != nil {
		log.Print(err) // fence.ErrStale: the lock has gone
		return
	}
	if _, err := tx.ExecContext(ctx, "UPDATE accounts SET balance = balance - 10 WHERE id = 7"); err != nil {
		log.Print(err)
		return
	}
	fmt.Println(tx.Commit())
	// Output:
	// <nil>
}

// A reader's tenure: claim once, then read under the check. ctx is the context of its read lock.
func ExampleMarks_CheckRead() {
	db := sql.OpenDB(&fakeServer{token: 54})
	defer db.Close()                                      //nolint:errcheck // A fake.
	ctx := fence.NewReadContext(context.Background(), 54) // a read lock's context carries its token
	f, err := sqlfence.New(sqlfence.PostgreSQL, sqlfence.Options{})
	if err != nil {
		log.Fatal(err)
	}

	if err := f.ClaimRead(ctx, db, "accounts"); err != nil {
		log.Print(err) // fence.ErrStale: the lock has gone
		return
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer tx.Rollback() //nolint:errcheck // After the commit it does nothing.
	if err := f.CheckRead(ctx, tx, "accounts"); err != nil {
		log.Print(err)
		return
	}
	// What it reads now does not change until COMMIT.
	fmt.Println(tx.Commit())
	// Output:
	// <nil>
}

// The statements for a migration tool of your own.
func ExampleMarks_Schema() {
	f, err := sqlfence.New(sqlfence.SQLite, sqlfence.Options{})
	if err != nil {
		log.Fatal(err)
	}
	for _, statement := range f.Schema() {
		fmt.Println(statement)
	}
	// Output:
	// CREATE TABLE IF NOT EXISTS "leasefence_marks" (
	// 	resource TEXT NOT NULL PRIMARY KEY,
	// 	token INTEGER NOT NULL,
	// 	read_token INTEGER NOT NULL DEFAULT 0,
	// 	lock_name TEXT NOT NULL DEFAULT ''
	// ) WITHOUT ROWID
}
