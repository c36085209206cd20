package sqlmark

import (
	"context"
	"fmt"
	"slices"
)

// Results of statements.flaws for tables that Migrate creates or completes.
const (
	absent     = "is missing"
	incomplete = "is of an earlier version, without read_token or lock_name: call Migrate"
)

// Migrate creates missing tables, adds missing columns and checks that existing tables can be used.
func (e *Engine[D, T]) Migrate(ctx context.Context, db D) error {
	if err := e.fit(db); err != nil {
		return err
	}
	err := e.retry(ctx, func() error {
		for applied := 0; ; applied++ { // a process of an earlier version may have just created the table
			remedy, err := e.verify(ctx, db)
			if err == nil || remedy == nil || applied == 2 {
				return err
			}
			if err := e.within(ctx, db, func(tx Conn) error { return e.apply(ctx, tx, remedy) }); err != nil {
				return err
			}
		}
	})
	if err != nil {
		return fmt.Errorf("%s: migrate %s: %w", e.pkg, e.tables(), err)
	}
	return nil
}

// verify returns an error if the tables cannot be used, and the statements that mend that, if there are any. So without
// a fault it needs no right to change tables, and a table that cannot be used is not altered.
func (e *Engine[D, T]) verify(ctx context.Context, db D) (remedy []string, err error) {
	s := e.store.base()
	var flaw string
	err = e.within(ctx, db, func(tx Conn) error {
		if err := tx.QueryRow(ctx, s.flaws).Scan(&flaw); err != nil {
			return fmt.Errorf("read the definition of %s: %w", s.table.quoted, err)
		}
		if flaw != "" {
			return nil
		}
		if _, err := s.see(ctx, tx, s.look, ""); err != nil { // the definition may be readable where the marks are not
			return err
		}
		if e.trail == nil {
			return nil
		}
		for _, probe := range e.trail.probes {
			if err := tx.QueryRow(ctx, probe).Scan(new(int64)); err != nil {
				return err
			}
		}
		return nil
	})
	switch {
	case err == nil && flaw == absent || e.store.kind(err) == noTable:
		remedy = e.Schema()
	case err == nil && flaw == incomplete:
		remedy = s.columns
	}
	if err == nil && flaw != "" {
		err = fmt.Errorf("table %s %s; want the table of Schema", s.table.quoted, flaw)
	}
	return remedy, err
}

// apply changes the tables. Another process may have added a column already.
func (e *Engine[D, T]) apply(ctx context.Context, tx Conn, remedy []string) error {
	s := e.store.base()
	if s.before != "" {
		if _, err := tx.Exec(ctx, s.before); err != nil {
			return err
		}
	}
	for _, statement := range remedy {
		_, err := tx.Exec(ctx, statement)
		switch {
		case err == nil || e.store.kind(err) == hasColumn:
		case slices.Contains(s.columns, statement):
			return fmt.Errorf("add the columns read_token and lock_name: %w", err)
		default:
			return err
		}
	}
	return nil
}
