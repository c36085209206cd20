package pgxfence

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/leasefence/leasefence/internal/sqlmark"
)

// DefaultColumn is the column of a [Row]'s fence if the row names none.
const DefaultColumn = sqlmark.DefaultColumn // "fence"

// Row is a row that has its fence in a column of its own: a bigint, NOT NULL, 0 at first.
type Row struct {
	Table  string // as Options.Table, required
	Key    string // the column that tells the row apart, required: it must be unique
	ID     any    // its value, required
	Column string // of the fence; default [DefaultColumn]
}

// String names the row for people, and for the resource of a [*fence.StaleError].
func (r Row) String() string { return sqlmark.Row(r).String() }

// UpdateRow changes one row if the token of ctx is not older than the one in the row, and leaves the token there:
//
//	UPDATE table SET <set>, fence = token WHERE key = id AND fence <= token
//
// set is SQL, as `balance = balance - $1`, with args for its placeholders, which are numbered from 1; pgx's own kinds
// of argument, as pgx.NamedArgs or a pgx.QueryExecMode, are refused. It is one statement, atomic at every isolation
// level; another follows only if the first has changed no row. It needs no table of marks and no claim, and fences this
// row alone: a stale holder still writes the rows that its successor has not touched, and what a holder has read from
// others may be out of date. Where that matters use Do.
//
// On an error the row is unchanged, unless it is that of the connection. The error is a [*fence.StaleError] if the row
// has a newer token, matches [ErrNoRow] if there is no such row and [fence.ErrInvalidToken] if ctx carries no token.
// UpdateRow repeats nothing.
func (f *Fence) UpdateRow(ctx context.Context, q Queryer, row Row, set string, args ...any) error {
	if err := f.made(); err != nil {
		return err
	}
	t, err := f.engine.Token(ctx)
	if err != nil {
		return err
	}
	if absent(q) {
		return errors.New("pgxfence: q is nil, want a pgx.Tx, *pgxpool.Pool, *pgxpool.Conn or *pgx.Conn")
	}
	for i, arg := range args {
		switch arg.(type) {
		case pgx.QueryRewriter, pgx.QueryExecMode, pgx.QueryResultFormats, pgx.QueryResultFormatsByOID:
			// It would take the place of a value, or of all of them.
			return fmt.Errorf("pgxfence: args[%d] is a %T, want values for placeholders that are numbered", i, arg)
		}
	}
	return f.engine.UpdateRow(ctx, conn{q}, sqlmark.Row(row), t, set, args...)
}
