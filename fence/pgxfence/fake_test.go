package pgxfence_test

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/pgxfence"
)

// fakeTx is a transaction that finds this token as the mark. It has only the methods that the example calls.
type fakeTx struct {
	pgx.Tx
	token fence.Token
}

func (*fakeTx) Exec(context.Context, string, ...any) (pgconn.CommandTag, error) {
	return pgconn.NewCommandTag("UPDATE 1"), nil
}

func (tx *fakeTx) QueryRow(context.Context, string, ...any) pgx.Row { return fakeRow(tx.token) }
func (*fakeTx) Commit(context.Context) error                        { return nil }
func (*fakeTx) Rollback(context.Context) error                      { return nil }

type fakeRow fence.Token

func (r fakeRow) Scan(dest ...any) error {
	*dest[0].(*fence.Token) = fence.Token(r)
	return nil
}

// untouched is a database that must not be used: its methods panic.
type untouched struct{ pgxfence.DB }
