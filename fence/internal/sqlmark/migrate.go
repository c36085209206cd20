package sqlmark

import (
	"context"
	"errors"
	"fmt"
)

// errIncomplete reports a table that an earlier version has created.
var errIncomplete = errors.New("the table is of an earlier version, without " + readColumn + " or " + lockColumn + ": call Migrate")

// Migrate creates missing tables, adds missing columns and checks that existing tables can be used.
func (e *Engine[T]) Migrate(ctx context.Context, db DB[T]) error {
	err := e.retry(ctx, func() error {
		verify := func(tx T) error { return e.verify(ctx, tx) }
		for range 2 { // a process of an earlier version may have just created the table
			err := within(ctx, db, verify)
			remedy := e.create
			switch {
			case errors.Is(err, errIncomplete):
				remedy = e.extend
			case err == nil || !e.store.noTable(err):
				return err
			}
			if err := within(ctx, db, func(tx T) error { return remedy(ctx, tx) }); err != nil {
				return err
			}
		}
		return within(ctx, db, verify)
	})
	if err != nil {
		return fmt.Errorf("%s: migrate %s: %w", e.pkg, e.tables(), err)
	}
	return nil
}

func (e *Engine[T]) extend(ctx context.Context, tx T) error {
	if err := e.store.extend(ctx, tx); err != nil {
		return fmt.Errorf("add the columns %s and %s: %w", readColumn, lockColumn, err)
	}
	return nil
}

func (e *Engine[T]) create(ctx context.Context, tx T) error {
	if err := e.store.migrate(ctx, tx); err != nil { // on PostgreSQL this takes the migration lock
		return err
	}
	if e.trail != nil {
		for _, statement := range e.trail.ddl {
			if _, err := tx.Exec(ctx, statement); err != nil {
				return err
			}
		}
	}
	return nil
}

func (e *Engine[T]) verify(ctx context.Context, q Conn) error {
	if err := e.store.verify(ctx, q); err != nil {
		return err
	}
	if e.trail != nil {
		for _, probe := range e.trail.probes {
			if err := q.QueryRow(ctx, probe).Scan(new(int64)); err != nil {
				return err
			}
		}
	}
	// Last, so that a table that cannot be used is not altered.
	err := e.store.complete(ctx, q)
	if err != nil && e.store.noColumn(err) {
		return fmt.Errorf("%w: %w", errIncomplete, err)
	}
	return err
}
