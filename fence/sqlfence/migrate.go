package sqlfence

import (
	"context"
	"database/sql"
)

// Migrate creates the tables that are missing, adds the columns that tables of earlier versions lack, and checks that
// existing tables can be used. Many processes may call it concurrently, also while programs of an earlier version use
// the tables. If there is nothing to add it needs no right to create or alter tables. The schema must exist.
//
// On success the tables exist. Migrate refuses a table that would lose marks: on PostgreSQL an UNLOGGED, TEMPORARY or
// partitioned table, or one with a trigger before its rows, and everywhere one whose columns differ from those of
// [Marks.Schema] in what matters. The error names the fault of the existing table or is the driver's.
func (m *Marks) Migrate(ctx context.Context, db *sql.DB) error {
	if err := m.made(); err != nil {
		return err
	}
	if err := m.checkDB(db); err != nil {
		return err
	}
	return m.engine.Migrate(ctx, m.database(db))
}
