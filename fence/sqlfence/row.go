package sqlfence

import (
	"context"
	"database/sql"

	"github.com/leasefence/leasefence/fence/internal/sqlmark"
)

// DefaultColumn is the default column of a [Row]'s fence.
const DefaultColumn = sqlmark.DefaultColumn // "fence"

// Row identifies a row with its fence in a column: a 64-bit integer, NOT NULL, initially 0.
type Row struct {
	Table  string // in the form of Options.Table, required
	Key    string // a unique column, required
	ID     any    // the value of Key, required
	Column string // of the fence; default [DefaultColumn]
}

// String returns the name of the row in errors, also as the resource of a [*fence.StaleError].
func (r Row) String() string { return sqlmark.Row(r).String() }

// UpdateRow changes one row if the token of ctx is not older than the row's, and stores the token in the row:
//
//	UPDATE table SET <set>, fence = token WHERE key = id AND fence <= token
//
// set is SQL such as `balance = balance - $1`, with args for its placeholders, which are numbered from 1. The update is
// one statement and atomic at every isolation level. Other statements follow only if it has changed no row. With a
// *sql.DB on MySQL they run in a transaction. UpdateRow needs no table of marks and no claim, and fences this row only:
// a stale holder can still write rows that its successor has not written, and its reads of other rows may be out of
// date. Readers raise no mark of a row, so they do not protect it. A row keeps no name of a lock, so the tokens of
// another lock are accepted. Use Do if that matters.
//
// On an error the row is unchanged, except if the error is the connection's or the context's, or matches [ErrUnknown],
// which means that the answer to COMMIT was lost. An update whose answer was lost may still take effect later, after a
// read that did not show it. So run it in a transaction of Do, or make it idempotent. The error is a
// [*fence.StaleError] if the row has a newer token. It matches [ErrNoRow] if there is no such row, and
// [fence.ErrInvalidToken] if ctx carries no token. UpdateRow does not repeat an update that has changed the row.
func (m *Marks) UpdateRow(ctx context.Context, q Queryer, row Row, set string, args ...any) error {
	e := m.made()
	if db, ok := q.(*sql.DB); ok && e.Dialect() == sqlmark.MySQL {
		// With autocommit=0 a lone statement would never be committed. Also, the lookup must keep its lock on the row.
		return e.UpdateRowOn(ctx, db, sqlmark.Row(row), set, args...)
	}
	return e.UpdateRow(ctx, conn{q}, fit(q, Dialect(e.Dialect())), sqlmark.Row(row), set, args...)
}
