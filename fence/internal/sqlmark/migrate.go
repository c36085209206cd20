package sqlmark

import (
	"context"
	"fmt"
)

// Migrate creates missing tables and checks that existing ones can be used.
func (e *Engine[T]) Migrate(ctx context.Context, db DB[T]) error {
	err := e.retry(ctx, func() error {
		verify := func(tx T) error { return e.verify(ctx, tx) }
		err := within(ctx, db, verify)
		if err == nil || !e.store.noTable(err) {
			return err
		}
		if err := within(ctx, db, func(tx T) error { return e.create(ctx, tx) }); err != nil {
			return err
		}
		return within(ctx, db, verify)
	})
	if err != nil {
		return fmt.Errorf("%s: migrate %s: %w", e.pkg, e.tables(), err)
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
	if err := e.store.verify(ctx, q); err != nil || e.trail == nil {
		return err
	}
	for _, probe := range e.trail.probes {
		if err := q.QueryRow(ctx, probe).Scan(new(int64)); err != nil {
			return err
		}
	}
	return nil
}
