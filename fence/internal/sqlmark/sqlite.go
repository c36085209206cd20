package sqlmark

import (
	"context"
	"fmt"
	"strings"
)

type sqlite struct {
	*statements
	savepoint
}

func newSQLite(t table) store {
	s := newStatements(SQLite, t, `SELECT token, read_token, lock_name, 0, 0, '', FALSE FROM {marks} WHERE resource = ?`,
		`ON CONFLICT (resource) DO NOTHING`)
	s.writesFirst = true
	const readMark = `read_token INTEGER NOT NULL DEFAULT 0`
	const lock = `lock_name TEXT NOT NULL DEFAULT ''`
	s.ddl = `CREATE TABLE IF NOT EXISTS ` + t.quoted + ` (
	resource TEXT NOT NULL PRIMARY KEY,
	token INTEGER NOT NULL,
	` + readMark + `,
	` + lock + `
) WITHOUT ROWID`
	s.columns = []string{
		`ALTER TABLE ` + t.quoted + ` ADD COLUMN ` + readMark,
		`ALTER TABLE ` + t.quoted + ` ADD COLUMN ` + lock,
	}
	schema := ""
	if t.schema != "" {
		schema = `, '` + t.schema + `'`
	}
	s.flaws = fmt.Sprintf(sqliteFlaws, t.name, schema)
	return &sqlite{s, savepoint{func(err error) bool {
		return anyText(err, func(text string) bool { return strings.Contains(text, "no such savepoint") })
	}}}
}

const sqliteFlaws = `SELECT CASE
WHEN count(*) = 0 THEN '` + absent + `'
WHEN sum(lower(name) IN ('resource', 'token')) < 2 THEN 'has no columns resource and token'
WHEN group_concat(CASE WHEN pk THEN lower(name) END) IS NOT 'resource' THEN 'has no primary key that is resource alone'
WHEN max(lower(name) = 'read_token' AND NOT (instr(upper(type), 'INT') > 0 AND "notnull" AND COALESCE(dflt_value, '') = '0'))
	THEN 'has a column read_token that is not INTEGER NOT NULL DEFAULT 0'
WHEN max(lower(name) = 'lock_name' AND NOT (upper(type) = 'TEXT' AND "notnull" AND COALESCE(dflt_value, '') = ''''''))
	THEN 'has a column lock_name that is not TEXT NOT NULL DEFAULT '''''
WHEN sum(lower(name) IN ('read_token', 'lock_name')) < 2 THEN '` + incomplete + `'
ELSE '' END FROM pragma_table_info('%s'%s)`

// lock takes the write lock for a writer. It has no shared form, since there is only one writer at a time. The write
// takes the lock even if it finds no row: as the first statement with the newest snapshot, later only if the
// transaction's snapshot is still the newest, and it fails otherwise. So BEGIN may be deferred.
//
// A reader takes no lock: if the read mark is high enough, the transaction's snapshot is newer than all older writers'
// transactions, and no later write changes it. Raising the mark fails if the snapshot is not the newest.
func (s *sqlite) lock(ctx context.Context, tx Conn, resource string, c Claimant, _ bool) (markState, error) {
	if !c.Read {
		if _, err := tx.Exec(ctx, s.trace, resource); err != nil {
			return markState{}, err
		}
	}
	return s.see(ctx, tx, s.look, resource)
}

// settle never reports an old snapshot: with an old one the guard itself fails.
func (s *sqlite) settle(_ context.Context, _ Conn, _ string, _ Claimant, seen markState) (markState, bool, error) {
	return seen, false, nil
}
