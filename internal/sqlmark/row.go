package sqlmark

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/leasefence/leasefence/fence"
)

// DefaultColumn is the column of a row's fence if the row names none.
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

// UpdateRow changes one row if t is not older than the token in the row, and leaves t there.
func (e *Engine[T]) UpdateRow(ctx context.Context, q Conn, row Row, t fence.Token, set string, args ...any) error {
	update, lookup, err := e.rowSQL(row, set, len(args))
	if err != nil {
		return err
	}
	all := append(append(make([]any, 0, len(args)+3), args...), int64(t), row.ID)
	if e.dialect != PostgreSQL { // which has numbers to refer to the token again
		all = append(all, int64(t))
	}
	n, err := q.Exec(ctx, update, all...)
	if err != nil {
		return fmt.Errorf("%s: update %s: %w", e.pkg, row, err)
	}
	if n > 0 {
		return nil
	}
	return e.whyNoRow(ctx, q, row, lookup, t)
}

func (e *Engine[T]) whyNoRow(ctx context.Context, q Conn, row Row, lookup string, t fence.Token) error {
	var mark int64
	err := q.QueryRow(ctx, lookup, row.ID).Scan(&mark)
	highest := fence.Token(mark)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return fmt.Errorf("%w: %s", NoRow.Of(e.pkg), row)
	case err != nil:
		return fmt.Errorf("%s: update %s: read its fence: %w", e.pkg, row, err)
	case highest > t:
		return &fence.StaleError{Resource: row.String(), Token: t, Highest: highest}
	case highest == t && e.dialect == MySQL:
		// MySQL counts rows that have changed, and this one had all these values already.
		return nil
	default:
		return fmt.Errorf("%w: %s: it has come up, or its fence has moved back, since the update", NoRow.Of(e.pkg), row)
	}
}

// rowSQL returns the update and the lookup, which sees the newest version on MySQL, as an update does.
func (e *Engine[T]) rowSQL(row Row, set string, args int) (update, lookup string, err error) {
	if row.Column == "" {
		row.Column = DefaultColumn
	}
	name, err := parseTable(e.pkg, "Table", row.Table, maxIdentifier, e.dialect)
	if err != nil || !legalIdentifier(row.Key, maxIdentifier) || !legalIdentifier(row.Column, maxIdentifier) || row.ID == nil {
		return "", "", fmt.Errorf("%s: Row is table %s, key %s, column %s, want names of 1 to %d letters, digits and "+
			"underscores, the first not a digit, and an ID that is not nil", e.pkg,
			excerpt(row.Table), excerpt(row.Key), excerpt(row.Column), maxIdentifier)
	}
	if set == "" {
		return "", "", fmt.Errorf("%s: set is empty, want SQL as in: balance = balance - 1", e.pkg)
	}
	key, column := e.dialect.quote(row.Key), e.dialect.quote(row.Column)
	token, id, again := e.dialect.placeholder(args+1), e.dialect.placeholder(args+2), e.dialect.placeholder(args+1)
	update = fmt.Sprintf("UPDATE %s SET %s, %s = %s WHERE %s = %s AND %s <= %s",
		name.quoted, set, column, token, key, id, column, again)
	lookup = fmt.Sprintf("SELECT %s FROM %s WHERE %s = %s", column, name.quoted, key, e.dialect.placeholder(1))
	if e.dialect == MySQL {
		lookup += " LOCK IN SHARE MODE"
	}
	return update, lookup, nil
}
