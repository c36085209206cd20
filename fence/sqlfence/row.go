package sqlfence

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/leasefence/leasefence/fence"
)

// DefaultColumn is the column of a [Row]'s fence if the row names none.
const DefaultColumn = "fence"

// Row is a row that has its fence in a column of its own: a 64-bit integer, NOT NULL, 0 at first.
type Row struct {
	Table  string // as Options.Table, required
	Key    string // the column that tells the row apart, required: it must be unique
	ID     any    // its value, required
	Column string // of the fence; default [DefaultColumn]
}

// String names the row for people, and for the resource of a [*fence.StaleError].
func (r Row) String() string { return fmt.Sprintf("%s/%s", r.Table, excerpt(fmt.Sprint(r.ID))) }

// UpdateRow changes one row if the token of ctx is not older than the one in the row, and leaves the token there:
//
//	UPDATE table SET <set>, fence = token WHERE key = id AND fence <= token
//
// set is SQL, as `balance = balance - $1`, with args for its placeholders, which are numbered from 1. It is one
// statement, atomic at every isolation level; another follows only if the first has changed no row. It needs no table
// of marks and no claim, and fences this row alone: a stale holder still writes the rows that its successor has not
// touched, and what a holder has read from others may be out of date. Where that matters use Do.
//
// On an error the row is unchanged, unless it is that of the connection. The error is a [*fence.StaleError] if the row
// has a newer token, matches [ErrNoRow] if there is no such row and [fence.ErrInvalidToken] if ctx carries no token.
// UpdateRow repeats nothing.
func (f *Fence) UpdateRow(ctx context.Context, q Queryer, row Row, set string, args ...any) error {
	if err := f.made(); err != nil {
		return err
	}
	t, err := token(ctx)
	if err != nil {
		return err
	}
	if err := f.checkQueryer(q); err != nil {
		return err
	}
	update, lookup, err := f.rowSQL(row, set, len(args))
	if err != nil {
		return err
	}
	all := append(append(make([]any, 0, len(args)+3), args...), int64(t), row.ID)
	if f.dialect != PostgreSQL { // which has numbers to refer to the token again
		all = append(all, int64(t))
	}
	result, err := q.ExecContext(ctx, update, all...)
	if err != nil {
		return fmt.Errorf("sqlfence: update %s: %w", row, err)
	}
	n, err := result.RowsAffected()
	if err != nil {
		return fmt.Errorf("sqlfence: update %s: count rows: %w", row, err)
	}
	if n > 0 {
		return nil
	}
	return f.whyNoRow(ctx, q, row, lookup, t)
}

func (f *Fence) whyNoRow(ctx context.Context, q Queryer, row Row, lookup string, t fence.Token) error {
	var highest fence.Token
	err := q.QueryRowContext(ctx, lookup, row.ID).Scan(&highest)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return fmt.Errorf("%w: %s", ErrNoRow, row)
	case err != nil:
		return fmt.Errorf("sqlfence: update %s: read its fence: %w", row, err)
	case highest > t:
		return &fence.StaleError{Resource: row.String(), Token: t, Highest: highest}
	case highest == t && f.dialect == MySQL:
		// MySQL counts rows that have changed, and this one had all these values already.
		return nil
	default:
		return fmt.Errorf("%w: %s: it has come up, or its fence has moved back, since the update", ErrNoRow, row)
	}
}

// rowSQL returns the update and the lookup, which sees the newest version on MySQL, as an update does.
func (f *Fence) rowSQL(row Row, set string, args int) (update, lookup string, err error) {
	if row.Column == "" {
		row.Column = DefaultColumn
	}
	name, err := parseTable(row.Table, f.dialect)
	if err != nil || !legalIdentifier(row.Key) || !legalIdentifier(row.Column) || row.ID == nil {
		return "", "", fmt.Errorf("sqlfence: Row is table %s, key %s, column %s, want names of 1 to %d letters, digits and "+
			"underscores, the first not a digit, and an ID that is not nil",
			excerpt(row.Table), excerpt(row.Key), excerpt(row.Column), maxIdentifier)
	}
	if set == "" {
		return "", "", errors.New("sqlfence: set is empty, want SQL as in: balance = balance - 1")
	}
	key, column := f.dialect.quote(row.Key), f.dialect.quote(row.Column)
	token, id, again := f.dialect.placeholder(args+1), f.dialect.placeholder(args+2), f.dialect.placeholder(args+1)
	update = fmt.Sprintf("UPDATE %s SET %s, %s = %s WHERE %s = %s AND %s <= %s",
		name.quoted, set, column, token, key, id, column, again)
	lookup = fmt.Sprintf("SELECT %s FROM %s WHERE %s = %s", column, name.quoted, key, f.dialect.placeholder(1))
	if f.dialect == MySQL {
		lookup += " LOCK IN SHARE MODE"
	}
	return update, lookup, nil
}

// checkQueryer also finds the nil pointers that an interface hides.
func (f *Fence) checkQueryer(q Queryer) error {
	switch q := q.(type) {
	case nil:
		return errors.New("sqlfence: q is nil, want a *sql.Tx, *sql.DB or *sql.Conn")
	case *sql.DB:
		return f.checkDB(q)
	case *sql.Tx:
		if q == nil {
			return errors.New("sqlfence: q is a nil *sql.Tx, want one that has begun")
		}
	case *sql.Conn:
		if q == nil {
			return errors.New("sqlfence: q is a nil *sql.Conn, want one that is open")
		}
	}
	return nil
}
