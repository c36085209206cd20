package sqlmark

import (
	"context"
	"fmt"
)

// Conn runs statements: on a pool, a connection or in a transaction.
type Conn interface {
	// Exec returns the number of rows that the statement has changed.
	Exec(ctx context.Context, query string, args ...any) (int64, error)

	// QueryRow returns the first row. If there is none, the error of its Scan matches sql.ErrNoRows.
	QueryRow(ctx context.Context, query string, args ...any) Scanner
}

// Scanner is a row or an error.
type Scanner interface {
	Scan(dest ...any) error
}

// Library is a client library with pools of type D and transactions of type T. The engine sends every statement in a
// transaction. With autocommit=0 in a DSN a lone statement is never committed and leaves its locks and its snapshot on
// the connection. A proxy may send a lone SELECT to a replica that lags.
type Library[D, T any] interface {
	// FitDB and FitTx return an error for a pool or a transaction that cannot be used. They send nothing.
	FitDB(db D) error
	FitTx(tx T) error

	// Begin begins a transaction at the level in the adapter's options. With newest its writes see all earlier commits
	// and do not fail because of them.
	Begin(ctx context.Context, db D, newest bool) (T, error)

	Conn(tx T) Conn

	// Rows calls scan for each row of a query and stops at the first error.
	Rows(ctx context.Context, tx T, scan func(Scanner) error, query string, args ...any) error

	Commit(ctx context.Context, tx T) error

	// Rollback does nothing after Commit or Rollback. It must work when ctx has ended.
	Rollback(ctx context.Context, tx T) error

	// Ended reports whether an error is that of a transaction that has already ended.
	Ended(err error) bool

	// Unsent reports whether an error of Commit came before anything was sent to the server.
	Unsent(err error) bool
}

// within runs fn in a separate transaction that sees the newest commits, and commits.
func (e *Engine[D, T]) within(ctx context.Context, db D, fn func(tx Conn) error) error {
	return e.inside(ctx, db, func(tx T) error { return fn(e.lib.Conn(tx)) })
}

// inside is within for those who need the library's transaction.
func (e *Engine[D, T]) inside(ctx context.Context, db D, fn func(tx T) error) error {
	tx, err := e.lib.Begin(ctx, db, true)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	// After COMMIT this does nothing. If it fails, the driver closes the connection and the server rolls back.
	defer func() { _ = e.lib.Rollback(ctx, tx) }()
	if err := fn(tx); err != nil {
		return err
	}
	return e.lib.Commit(ctx, tx)
}
