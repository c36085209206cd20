package pgxfence_test

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/pgxfence"
)

// fakeDB is a database whose marks always equal the token. The test chooses the result of COMMIT.
type fakeDB struct {
	token  fence.Token
	opts   pgx.TxOptions // of the last transaction
	commit func() error
}

func (d *fakeDB) BeginTx(_ context.Context, opts pgx.TxOptions) (pgx.Tx, error) {
	d.opts = opts
	return &fakeTx{d: d}, nil
}

func (d *fakeDB) Exec(context.Context, string, ...any) (pgconn.CommandTag, error) {
	return pgconn.NewCommandTag("UPDATE 1"), nil
}

func (d *fakeDB) QueryRow(context.Context, string, ...any) pgx.Row { return fakeRow(d.token) }

type fakeRow fence.Token

func (r fakeRow) Scan(dest ...any) error {
	switch mark := dest[0].(type) {
	case *fence.Token:
		*mark = fence.Token(r)
	case *int64: // of the transaction
		*mark = int64(r)
	default:
		return errors.New("the mark is not scanned into a token")
	}
	return nil
}

// fakeTx has only the methods that Do calls; the others panic.
type fakeTx struct {
	pgx.Tx
	d *fakeDB
}

func (tx *fakeTx) Exec(ctx context.Context, query string, args ...any) (pgconn.CommandTag, error) {
	return tx.d.Exec(ctx, query, args...)
}

func (tx *fakeTx) QueryRow(ctx context.Context, query string, args ...any) pgx.Row {
	return tx.d.QueryRow(ctx, query, args...)
}

func (tx *fakeTx) Commit(context.Context) error {
	if tx.d.commit == nil {
		return nil
	}
	return tx.d.commit()
}

func (tx *fakeTx) Rollback(context.Context) error { return nil }

// untouched is a database that must not be used: its methods panic.
type untouched struct{ pgxfence.DB }
