package sqlmark

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/clip"
)

// DefaultColumn is the default column of a row's fence.
const DefaultColumn = "fence"

// Row identifies a row with its fence in a column: a 64-bit integer, NOT NULL, initially 0.
type Row struct {
	Table  string // in the form of Options.Table, required
	Key    string // a unique column, required
	ID     any    // the value of Key, required
	Column string // of the fence; default [DefaultColumn]
}

// String returns the name of the row in errors, also as the resource of a [*fence.StaleError].
func (r Row) String() string { return fmt.Sprintf("%s/%s", r.Table, clip.Quote(fmt.Sprint(r.ID))) }

// UpdateRow changes one row if t is not older than the token in the row, and stores t in the row.
func (e *Engine[T]) UpdateRow(ctx context.Context, q Conn, row Row, t fence.Token, set string, args ...any) error {
	update, lookup, err := e.rowSQL(row, set, len(args))
	if err != nil {
		return err
	}
	return e.tell(ctx, row.String(), Claimant{Token: t}, e.updateRow(ctx, q, row, t, update, lookup, args))
}

// UpdateRowOn is [Engine.UpdateRow] in a separate transaction.
func (e *Engine[T]) UpdateRowOn(ctx context.Context, db DB[T], row Row, t fence.Token, set string, args ...any) error {
	update, lookup, err := e.rowSQL(row, set, len(args))
	if err != nil {
		return err
	}
	tx, err := db.Begin(ctx)
	if err != nil {
		return fmt.Errorf("%s: update %s: begin: %w", e.pkg, row, err)
	}
	err = e.updateRow(ctx, tx, row, t, update, lookup, args)
	defer func() { _ = e.tell(ctx, row.String(), Claimant{Token: t}, err) }()
	defer func() { _ = tx.Rollback(ctx) }()
	if err != nil {
		return err
	}
	return e.commit(ctx, tx, "update "+row.String())
}

// updateRow reads the row's fence if the update has changed no row, to find out why. On MySQL an update also changes no
// row if the row has all these values already. The lookup cannot distinguish this from a row that was inserted since
// the update, so it locks the row and updateRow sends the update again.
func (e *Engine[T]) updateRow(ctx context.Context, q Conn, row Row, t fence.Token, update, lookup string, args []any) error {
	all := append(append(make([]any, 0, len(args)+3), args...), int64(t), row.ID)
	if e.dialect != PostgreSQL { // its placeholders have numbers and can refer to the token twice
		all = append(all, int64(t))
	}
	same := false
	for range 2 {
		n, err := q.Exec(ctx, update, all...)
		if err != nil {
			return fmt.Errorf("%s: update %s: %w", e.pkg, row, err)
		}
		if n > 0 {
			return nil
		}
		highest, err := e.lookUp(ctx, q, row, lookup)
		if err != nil {
			return err
		}
		if highest > t {
			return &fence.StaleError{Resource: row.String(), Token: t, Highest: highest}
		}
		if same && highest == t {
			return nil
		}
		same = highest == t && e.dialect == MySQL
	}
	return fmt.Errorf("%w: %s: the row was inserted, or its fence was lowered, during the update", NoRow.Of(e.pkg), row)
}

func (e *Engine[T]) lookUp(ctx context.Context, q Conn, row Row, lookup string) (fence.Token, error) {
	var highest int64
	err := q.QueryRow(ctx, lookup, row.ID).Scan(&highest)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return 0, fmt.Errorf("%w: %s", NoRow.Of(e.pkg), row)
	case err != nil:
		return 0, fmt.Errorf("%s: update %s: read its fence: %w", e.pkg, row, err)
	}
	return fence.Token(highest), nil
}

// rowSQL returns the update and the lookup. On MySQL the lookup sees the newest version, as an update does.
func (e *Engine[T]) rowSQL(row Row, set string, args int) (update, lookup string, err error) {
	if row.Column == "" {
		row.Column = DefaultColumn
	}
	name, err := parseTable(e.pkg, "Table", row.Table, maxIdentifier, e.dialect)
	if err != nil || !legalIdentifier(row.Key, maxIdentifier) || !legalIdentifier(row.Column, maxIdentifier) || row.ID == nil {
		return "", "", fmt.Errorf("%s: Row is table %s, key %s, column %s, want names of 1 to %d letters, digits and "+
			"underscores, the first not a digit, and an ID that is not nil", e.pkg,
			clip.Quote(row.Table), clip.Quote(row.Key), clip.Quote(row.Column), maxIdentifier)
	}
	if set == "" {
		return "", "", fmt.Errorf("%s: set is empty, want SQL such as: balance = balance - 1", e.pkg)
	}
	key, column := e.dialect.quote(row.Key), e.dialect.quote(row.Column)
	token, id, again := e.dialect.placeholder(args+1), e.dialect.placeholder(args+2), e.dialect.placeholder(args+1)
	update = fmt.Sprintf("UPDATE %s SET %s, %s = %s WHERE %s = %s AND %s <= %s",
		name.quoted, set, column, token, key, id, column, again)
	lookup = fmt.Sprintf("SELECT %s FROM %s WHERE %s = %s", column, name.quoted, key, e.dialect.placeholder(1))
	if e.dialect == MySQL {
		lookup += " FOR UPDATE"
	}
	return update, lookup, nil
}
