package sqlmark

import (
	"context"
	"database/sql"
	"errors"

	"github.com/leasefence/leasefence/fence"
)

// Conn runs statements: on a pool, a connection or in a transaction.
type Conn interface {
	// Exec returns how many rows the statement has changed.
	Exec(ctx context.Context, query string, args ...any) (int64, error)

	// QueryRow returns the first row. If there is none, the error of its Scan matches [sql.ErrNoRows].
	QueryRow(ctx context.Context, query string, args ...any) Scanner
}

// Scanner is a row, or the error that came in place of it.
type Scanner interface {
	Scan(dest ...any) error
}

// Tx is a transaction.
type Tx interface {
	Conn
	Commit(ctx context.Context) error

	// Rollback does nothing after Commit or Rollback. It has to work when ctx has ended.
	Rollback(ctx context.Context) error
}

// DB begins transactions of the face's type, at the level that the face has been told. Statements that it runs itself
// are each committed by themselves.
type DB[T Tx] interface {
	Conn
	Begin(ctx context.Context) (T, error)
}

// readMark runs a query for a mark. It returns 0 if there is no row.
func readMark(ctx context.Context, q Conn, query, resource string) (fence.Token, error) {
	var mark int64
	err := q.QueryRow(ctx, query, resource).Scan(&mark)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, nil
	}
	return fence.Token(mark), err
}
