package sqlmark

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/internal/admission"
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

// UpdateRow changes one row if the token of ctx is not older than the token in the row, and stores it in the row. fit is
// an error if q cannot be used.
func (e *Engine[D, T]) UpdateRow(ctx context.Context, q Conn, fit error, row Row, set string, args ...any) error {
	u, err := e.rowUpdate(ctx, fit, row, set, args)
	if err != nil {
		return err
	}
	return e.tell(ctx, row.String(), Claimant{Token: u.token}, e.updateRow(ctx, q, u))
}

// UpdateRowOn is [Engine.UpdateRow] in a separate transaction.
func (e *Engine[D, T]) UpdateRowOn(ctx context.Context, db D, row Row, set string, args ...any) error {
	u, err := e.rowUpdate(ctx, e.fit(db), row, set, args)
	if err != nil {
		return err
	}
	tx, err := e.lib.Begin(ctx, db, false)
	if err != nil {
		return fmt.Errorf("%s: update %s: begin: %w", e.Package, row, err)
	}
	err = e.updateRow(ctx, e.lib.Conn(tx), u)
	defer func() { _ = e.tell(ctx, row.String(), Claimant{Token: u.token}, err) }()
	defer func() { _ = e.lib.Rollback(ctx, tx) }()
	if err != nil {
		return err
	}
	return e.commit(ctx, tx, "update "+row.String())
}

// rowUpdate is a checked call of UpdateRow.
type rowUpdate struct {
	row            Row
	token          fence.Token
	update, lookup string
	args           []any
}

// rowUpdate checks a call before anything is sent. On MySQL its lookup sees the newest version, as an update does.
func (e *Engine[D, T]) rowUpdate(ctx context.Context, fit error, row Row, set string, args []any) (*rowUpdate, error) {
	if err := e.made(); err != nil {
		return nil, err
	}
	t, err := admission.Token(ctx, false, e.MaxEra)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", e.Package, err)
	}
	if fit != nil {
		return nil, fit
	}
	row.Column = cmp.Or(row.Column, DefaultColumn)
	name, err := parseTable(e.Package, "Table", row.Table, maxIdentifier, e.Dialect)
	if err != nil || !legalIdentifier(row.Key, maxIdentifier) || !legalIdentifier(row.Column, maxIdentifier) || row.ID == nil {
		return nil, fmt.Errorf("%s: Row is table %s, key %s, column %s, want names of 1 to %d letters, digits and "+
			"underscores, the first not a digit, and an ID that is not nil", e.Package,
			clip.Quote(row.Table), clip.Quote(row.Key), clip.Quote(row.Column), maxIdentifier)
	}
	if set == "" {
		return nil, fmt.Errorf("%s: set is empty, want SQL such as: balance = balance - 1", e.Package)
	}
	key, column := e.Dialect.quote(row.Key), e.Dialect.quote(row.Column)
	arg := func(n int) string { return e.Dialect.placeholder(len(args) + n) }
	u := &rowUpdate{
		row: row, token: t,
		// The end of the line and the empty comment end a comment in set, which would hide the condition.
		update: fmt.Sprintf("UPDATE %s SET %s\n/**/, %s = %s WHERE %s = %s AND %s <= %s",
			name.quoted, set, column, arg(1), key, arg(2), column, arg(3)),
		lookup: fmt.Sprintf("SELECT %s FROM %s WHERE %s = %s", column, name.quoted, key, e.Dialect.placeholder(1)),
		args:   slices.Concat(args, []any{int64(t), row.ID, int64(t)}),
	}
	switch e.Dialect {
	case MySQL:
		u.lookup += " FOR UPDATE"
	case SQLite:
		// Its drivers ignore arguments that are left over. With one too many this compares another one, and is false.
		u.update += " AND ? = '" + e.Package + "'"
		u.args = append(u.args, e.Package)
	}
	return u, nil
}

// updateRow reads the row's fence if the update has changed no row, to find out why. On MySQL an update also changes no
// row if the row has all these values already. The lookup cannot distinguish this from a row that was inserted since
// the update, so it locks the row and updateRow sends the update again.
func (e *Engine[D, T]) updateRow(ctx context.Context, q Conn, u *rowUpdate) error {
	same := false
	for range 2 {
		n, err := q.Exec(ctx, u.update, u.args...)
		if err != nil {
			return fmt.Errorf("%s: update %s: %w", e.Package, u.row, err)
		}
		if n > 0 {
			return nil
		}
		var highest fence.Token
		err = q.QueryRow(ctx, u.lookup, u.row.ID).Scan(&highest)
		switch {
		case errors.Is(err, sql.ErrNoRows):
			return fmt.Errorf("%s: %w: %s", e.Package, ErrNoRow, u.row)
		case err != nil:
			return fmt.Errorf("%s: update %s: read its fence: %w", e.Package, u.row, err)
		case highest > u.token:
			return &fence.StaleError{Resource: u.row.String(), Token: u.token, Highest: highest}
		case same && highest == u.token:
			return nil
		}
		same = highest == u.token && e.Dialect == MySQL
	}
	return fmt.Errorf("%s: %w: %s: the row was inserted, or its fence was lowered, during the update; "+
		"or args has more values than set has placeholders", e.Package, ErrNoRow, u.row)
}
