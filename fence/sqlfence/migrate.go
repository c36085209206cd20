package sqlfence

import (
	"context"
	"database/sql"
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
	return f.engine.Migrate(ctx, newDatabase(db, nil))
}
