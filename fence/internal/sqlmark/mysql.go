package sqlmark

import (
	"context"
	"fmt"

	"github.com/leasefence/leasefence/fence"
)

type mySQL struct {
	*statements
	savepoint
}

func newMySQL(t table) store {
	s := newStatements(MySQL, t, `SELECT token, read_token, lock_name, 0, 0, '', FALSE FROM {marks} WHERE resource = ?`,
		`ON DUPLICATE KEY UPDATE token = token`)
	const readMark = `read_token BIGINT NOT NULL DEFAULT 0`
	lock := `lock_name VARBINARY(` + fmt.Sprint(fence.MaxLock) + `) NOT NULL DEFAULT ''`
	// The type is binary, because the usual collations treat "A" as "a" and "a " as "a".
	s.ddl = `CREATE TABLE IF NOT EXISTS ` + t.quoted + ` (
	resource VARBINARY(` + fmt.Sprint(maxResource) + `) NOT NULL PRIMARY KEY,
	token BIGINT NOT NULL,
	writes BIGINT NOT NULL DEFAULT 0,
	` + readMark + `,
	` + lock + `
) ENGINE = InnoDB`
	// These wait for the transactions that have used the table, and later ones wait for them.
	s.columns = []string{
		`ALTER TABLE ` + t.quoted + ` ADD COLUMN ` + readMark,
		`ALTER TABLE ` + t.quoted + ` ADD COLUMN ` + lock,
	}
	schema := `DATABASE()`
	if t.schema != "" {
		schema = `'` + t.schema + `'`
	}
	s.flaws = fmt.Sprintf(mysqlFlaws, schema, t.name)

	// A locking read sees the newest version at every level and does not open the transaction's snapshot.
	s.alone += ` FOR UPDATE`
	s.share += ` LOCK IN SHARE MODE`
	s.last = s.alone
	s.peek = s.share // at read uncommitted a plain read sees marks that are never committed
	// In a cluster with several writable nodes a lock is local to its node. The nodes compare the changed rows of
	// transactions at COMMIT. An UPDATE to the same value changes no row.
	s.trace = `UPDATE ` + t.quoted + ` SET writes = writes + 1 WHERE resource = ?`
	return &mySQL{s, savepoint{func(err error) bool { return mysqlNumber(err) == 1305 }}} // ER_SP_DOES_NOT_EXIST
}

// mysqlFlaws returns why a table would accept stale writes: without transactions, with case-insensitive names, or
// without the defaults of later columns. Servers show an empty default in three ways. MariaDB compares the names of
// tables there without their case, also where the tables marks and Marks are two.
var mysqlFlaws = `SELECT CASE
WHEN COUNT(*) = 0 THEN '` + absent + `'
WHEN MAX(t.ENGINE) <> 'InnoDB' THEN CONCAT('has engine ', MAX(t.ENGINE), ', not InnoDB')
WHEN NOT MAX(c.COLUMN_NAME = 'resource' AND c.DATA_TYPE = 'varbinary' AND c.COLUMN_KEY = 'PRI') OR SUM(c.COLUMN_KEY = 'PRI') > 1
	THEN 'has no column resource that is VARBINARY and, alone, the primary key'
WHEN SUM(c.COLUMN_NAME IN ('token', 'writes') AND c.DATA_TYPE = 'bigint') < 2 THEN 'has no columns token and writes that are BIGINT'
WHEN MAX(c.COLUMN_NAME = 'read_token' AND NOT (c.DATA_TYPE = 'bigint' AND c.IS_NULLABLE = 'NO' AND COALESCE(c.COLUMN_DEFAULT, '') = '0'))
	THEN 'has a column read_token that is not BIGINT NOT NULL DEFAULT 0'
WHEN MAX(c.COLUMN_NAME = 'lock_name' AND NOT (c.DATA_TYPE = 'varbinary' AND c.CHARACTER_OCTET_LENGTH >= ` + fmt.Sprint(fence.MaxLock) + `
	AND c.IS_NULLABLE = 'NO' AND COALESCE(c.COLUMN_DEFAULT, 'NULL') IN ('', '''''', '0x')))
	THEN 'has a column lock_name that is not VARBINARY(` + fmt.Sprint(fence.MaxLock) + `) NOT NULL DEFAULT '''''
WHEN SUM(c.COLUMN_NAME IN ('read_token', 'lock_name')) < 2 THEN '` + incomplete + `'
ELSE '' END FROM information_schema.TABLES t
JOIN information_schema.COLUMNS c ON c.TABLE_SCHEMA = t.TABLE_SCHEMA AND c.TABLE_NAME = t.TABLE_NAME
	AND CAST(c.TABLE_SCHEMA AS BINARY) = t.TABLE_SCHEMA AND CAST(c.TABLE_NAME AS BINARY) = t.TABLE_NAME
WHERE t.TABLE_SCHEMA = %s AND t.TABLE_NAME = '%s'`

// lock takes a shared lock for a reader. In a cluster that is local to its node: a newer claim on another node does not
// wait for it, and rolls the transaction back when this node applies it. But the holder of a path also writes, and
// COMMIT compares only written rows. So there it writes the rows of the nodes above, and a writer has no shared form.
func (m *mySQL) lock(ctx context.Context, tx Conn, resource string, c Claimant, shared bool) (markState, error) {
	query := m.alone
	if shared || c.Read {
		query = m.share
	}
	if shared || c.Above {
		clustered, err := m.clustered(ctx, tx)
		if err != nil {
			return markState{}, err
		}
		if clustered {
			query = m.alone
		}
	}
	seen, err := m.see(ctx, tx, query, resource)
	seen.trace = query == m.alone
	return seen, err
}

// clustered reports whether the server is part of a cluster with several writable nodes, Galera or MySQL's group
// replication. It queries every time, because each connection may be to another server. The queries do not open the
// transaction's snapshot.
func (m *mySQL) clustered(ctx context.Context, tx Conn) (bool, error) {
	for _, query := range []string{"SELECT @@GLOBAL.wsrep_on", "SELECT COALESCE(@@GLOBAL.group_replication_group_name, '') <> ''"} {
		var on bool
		err := tx.QueryRow(ctx, query).Scan(&on)
		if mysqlNumber(err) == 1193 { // ER_UNKNOWN_SYSTEM_VARIABLE
			continue
		}
		if err != nil || on {
			return on, err
		}
	}
	return false, nil
}

// settle compares the marks with a plain read. At repeatable read a plain read reads the snapshot, and opens it if there
// is none. So settle reads only after the transaction has its final lock, and before it writes. If the read mark of the
// snapshot is high enough, the snapshot is newer than all older writers' transactions. For a new token, settle does not
// detect an old snapshot if only data have changed since.
func (m *mySQL) settle(ctx context.Context, tx Conn, resource string, c Claimant, seen markState) (markState, bool, error) {
	if !seen.has(c) && !seen.trace {
		var err error
		if seen, err = m.see(ctx, tx, m.alone, resource); err != nil || seen.Refuse(resource, c) != nil {
			return seen, false, err
		}
	}
	if seen.marks == (marks{}) { // a missing row cannot be locked
		return seen, false, nil
	}
	shown, err := m.see(ctx, tx, m.look, resource)
	late := shown.Write != seen.Write || shown.Lock != seen.Lock || c.Read && shown.Read < min(seen.Read, c.Token)
	return seen, late, err
}
