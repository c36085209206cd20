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

// Tx is a transaction.
type Tx interface {
	Conn
	Commit(ctx context.Context) error

	// Rollback does nothing after Commit or Rollback. It must work when ctx has ended.
	Rollback(ctx context.Context) error
}

// DB begins transactions of the adapter's type. The engine sends every statement in a transaction. With autocommit=0 in
// a DSN a lone statement is never committed and leaves its locks and its snapshot on the connection. A proxy may send a
// lone SELECT to a replica that lags.
type DB[T Tx] interface {
	// Begin begins a transaction at the level in the adapter's options.
	Begin(ctx context.Context) (T, error)

	// BeginNewest begins a transaction whose writes see all earlier commits and do not fail because of them.
	BeginNewest(ctx context.Context) (T, error)
}

// within runs fn in a transaction of BeginNewest and commits.
func within[T Tx](ctx context.Context, db DB[T], fn func(tx T) error) error {
	tx, err := db.BeginNewest(ctx)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	// After COMMIT this does nothing. If it fails, the driver closes the connection and the server rolls back.
	defer func() { _ = tx.Rollback(ctx) }()
	if err := fn(tx); err != nil {
		return err
	}
	return tx.Commit(ctx)
}
