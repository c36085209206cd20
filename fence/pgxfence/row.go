package pgxfence

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/leasefence/leasefence/fence/internal/sqlmark"
)

// DefaultColumn is the default column of a [Row]'s fence.
const DefaultColumn = sqlmark.DefaultColumn // "fence"

// Row identifies a row with its fence in a column: a bigint, NOT NULL, initially 0.
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
// set is SQL such as `balance = balance - $1`, with args for its placeholders, which are numbered from 1. Special
// arguments of pgx, such as pgx.NamedArgs or a pgx.QueryExecMode, are refused. The update is one statement and atomic
// at every isolation level. Other statements follow only if it has changed no row. UpdateRow needs no table of marks
// and no claim, and fences this row only: a stale holder can still write rows that its successor has not written, and
// its reads of other rows may be out of date. Readers raise no mark of a row, so they do not protect it. A row keeps no
// name of a lock, so the tokens of another lock are accepted. Use Do if that matters.
//
// On an error the row is unchanged, except if the error is the connection's or the context's. An update whose answer
// was lost may still take effect later, after a read that did not show it. So run it in a transaction of Do, or make it
// idempotent. The error is a [*fence.StaleError] if the row has a newer token. It matches [ErrNoRow] if there is no
// such row, and [fence.ErrInvalidToken] if ctx carries no token. UpdateRow does not repeat an update that has changed
// the row.
func (m *Marks) UpdateRow(ctx context.Context, q Queryer, row Row, set string, args ...any) error {
	return m.made().UpdateRow(ctx, conn{q}, fitRow(q, args), sqlmark.Row(row), set, args...)
}

// fitRow returns an error for arguments of UpdateRow that pgx cannot use, or uses in another way.
func fitRow(q Queryer, args []any) error {
	if absent(q) {
		return errors.New("pgxfence: q is nil or released, want a pgx.Tx, *pgxpool.Pool, *pgxpool.Conn or *pgx.Conn")
	}
	for i, arg := range args {
		switch arg.(type) {
		case pgx.QueryRewriter, pgx.QueryExecMode, pgx.QueryResultFormats, pgx.QueryResultFormatsByOID:
			// pgx would use it instead of a value, or instead of all values.
			return fmt.Errorf("pgxfence: args[%d] is a %T, want values for placeholders that are numbered", i, arg)
		}
	}
	return nil
}
