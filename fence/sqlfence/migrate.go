package sqlfence

import (
	"context"
	"database/sql"
	"fmt"
)

// Migrate makes the table of the marks if it is missing, and looks whether the one that exists can serve. It is safe to
// run from many processes at once. If the table exists it needs no right to create one. Only New's options say which
// table it is; a schema has to exist.
//
// On success the table is there. The error says what is wrong with the one that is there, or is the driver's.
func (f *Fence) Migrate(ctx context.Context, db *sql.DB) error {
	if err := f.made(); err != nil {
		return err
	}
	if err := f.checkDB(db); err != nil {
		return err
	}
	err := f.retry(ctx, func() error {
		err := f.store.verify(ctx, db)
		if err == nil || !f.store.noTable(err) {
			return err
		}
		if err := f.create(ctx, db); err != nil {
			return err
		}
		return f.store.verify(ctx, db)
	})
	if err != nil {
		return fmt.Errorf("sqlfence: migrate %s: %w", f.table.quoted, err)
	}
	return nil
}

func (f *Fence) create(ctx context.Context, db *sql.DB) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if err := f.store.migrate(ctx, tx); err != nil {
		return err
	}
	return tx.Commit()
}
