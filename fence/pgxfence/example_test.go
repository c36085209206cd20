package pgxfence_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/pgxfence"
)

// A holder's tenure: claim once, then write. ctx is the context of its lock, which carries the token.
func Example() {
	f, err := pgxfence.New(pgxfence.Options{})
	if err != nil {
		log.Fatal(err)
	}

	tenure := func(ctx context.Context, pool *pgxpool.Pool) error {
		if err := f.Claim(ctx, pool, "accounts"); err != nil {
			return err
		}
		return f.Do(ctx, pool, "accounts", func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "UPDATE accounts SET balance = balance - 10 WHERE id = 7")
			return err
		})
	}

	// A pool connects when it has to. Without the lock nothing is sent.
	pool, err := pgxpool.New(context.Background(), "postgres:///shop")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	err = tenure(context.Background(), pool)
	fmt.Println("a token is missing:", errors.Is(err, fence.ErrInvalidToken))
	// Output:
	// a token is missing: true
}

// The check goes first in a transaction of your own.
func ExampleMarks_Check() {
	f, err := pgxfence.New(pgxfence.Options{})
	if err != nil {
		log.Fatal(err)
	}

	move := func(ctx context.Context, tx pgx.Tx) error {
		defer tx.Rollback(context.WithoutCancel(ctx)) //nolint:errcheck // After the commit it does nothing.
		if err := f.Check(ctx, tx, "accounts"); err != nil {
			return err // fence.ErrStale: the lock has gone
		}
		if _, err := tx.Exec(ctx, "UPDATE accounts SET balance = balance - 10 WHERE id = 7"); err != nil {
			return err
		}
		return tx.Commit(ctx)
	}

	for _, token := range []fence.Token{54, 41} {
		ctx := fence.NewContext(context.Background(), token) // a lock's context carries its token
		fmt.Println(move(ctx, &fakeTx{token: 54}))           // pool.BeginTx
	}
	// Output:
	// <nil>
	// fence: stale token 41 for "accounts": highest seen is 54
}
