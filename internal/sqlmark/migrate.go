package sqlmark

import (
	"context"
	"fmt"
)

// Migrate makes the tables that are missing, and looks whether those that exist can serve.
func (e *Engine[T]) Migrate(ctx context.Context, db DB[T]) error {
	err := e.retry(ctx, func() error {
		err := e.verify(ctx, db)
		if err == nil || !e.store.noTable(err) {
			return err
		}
		if err := e.create(ctx, db); err != nil {
			return err
		}
		return e.verify(ctx, db)
	})
	if err != nil {
		return fmt.Errorf("%s: migrate %s: %w", e.pkg, e.tables(), err)
	}
	return nil
}

func (e *Engine[T]) create(ctx context.Context, db DB[T]) error {
	tx, err := db.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(ctx) }()
	if err := e.store.migrate(ctx, tx); err != nil { // from here on it is alone, where that matters
		return err
	}
	if e.trail != nil {
		for _, statement := range e.trail.ddl {
			if _, err := tx.Exec(ctx, statement); err != nil {
				return err
			}
		}
	}
	return tx.Commit(ctx)
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
