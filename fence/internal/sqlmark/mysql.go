package sqlmark

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/leasefence/leasefence/fence"
)

type mySQL struct {
	basis
	alone, share, trace, probe string
	columns                    []string // ALTER TABLE, one for each column of a later version
}

func newMySQL(t table) store {
	const readMark = readColumn + ` BIGINT NOT NULL DEFAULT 0`
	lock := lockColumn + ` VARBINARY(` + fmt.Sprint(fence.MaxLock) + `) NOT NULL DEFAULT ''`
	// MySQL makes the assignments in order, and the second sees the result of the first: the new name, if the claimant
	// is accepted.
	const follows = `(lock_name = '' OR lock_name = ? OR ?)`
	name := `lock_name = IF(token <= ? AND read_token <= ? AND ` + follows + ` AND ?, ?, lock_name), `
	look := `SELECT token, read_token, lock_name FROM ` + t.quoted + ` WHERE resource = ?`
	return &mySQL{
		basis: basis{
			table: t,
			// The type is binary, because the usual collations treat "A" as "a" and "a " as "a".
			ddl: `CREATE TABLE IF NOT EXISTS ` + t.quoted + ` (
	resource VARBINARY(` + fmt.Sprint(maxResource) + `) NOT NULL PRIMARY KEY,
	token BIGINT NOT NULL,
	writes BIGINT NOT NULL DEFAULT 0,
	` + readMark + `,
	` + lock + `
) ENGINE = InnoDB`,
			plain: look,
			modes: modes{
				writer: statements{raise: `INSERT INTO ` + t.quoted + ` (resource, token, lock_name) VALUES (?, ?, ?) ` +
					`ON DUPLICATE KEY UPDATE ` + name + `token = IF(read_token <= ? AND ` + follows + `, GREATEST(token, ?), token)`},
				reader: statements{raise: `INSERT INTO ` + t.quoted + ` (resource, token, read_token, lock_name) VALUES (?, 0, ?, ?) ` +
					`ON DUPLICATE KEY UPDATE ` + name + `read_token = IF(token <= ? AND ` + follows + `, GREATEST(read_token, ?), read_token)`},
			},
		},
		columns: []string{
			`ALTER TABLE ` + t.quoted + ` ADD COLUMN ` + readMark,
			`ALTER TABLE ` + t.quoted + ` ADD COLUMN ` + lock,
		},
		// An UPDATE reports 0 rows for an equal token too, so its count decides nothing. A locking read sees the newest
		// version at every level and does not open the transaction's snapshot.
		alone: look + ` FOR UPDATE`,
		share: look + ` LOCK IN SHARE MODE`,
		// In a cluster with several writable nodes a lock is local to its node. The nodes compare the changed rows of
		// transactions at COMMIT. An UPDATE to the same value changes no row.
		trace: `UPDATE ` + t.quoted + ` SET writes = writes + 1 WHERE resource = ?`,
		probe: `SELECT COUNT(token) + COUNT(writes) FROM ` + t.quoted + ` WHERE resource = ''`,
	}
}

func (m *mySQL) verify(ctx context.Context, q Conn) error {
	if err := q.QueryRow(ctx, m.probe).Scan(new(int64)); err != nil {
		return err
	}
	// A table without transactions or with case-insensitive names would accept stale writes.
	var engine, kind, key string
	err := q.QueryRow(ctx, `SELECT t.ENGINE, c.DATA_TYPE, c.COLUMN_KEY FROM information_schema.TABLES t
JOIN information_schema.COLUMNS c ON c.TABLE_SCHEMA = t.TABLE_SCHEMA AND c.TABLE_NAME = t.TABLE_NAME
WHERE t.TABLE_SCHEMA = COALESCE(NULLIF(?, ''), DATABASE()) AND t.TABLE_NAME = ? AND c.COLUMN_NAME = 'resource'`,
		m.table.schema, m.table.name).Scan(&engine, &kind, &key)
	if err != nil {
		return fmt.Errorf("read the table's definition: %w", err)
	}
	if !strings.EqualFold(engine, "InnoDB") || !strings.EqualFold(kind, "varbinary") || key != "PRI" {
		return fmt.Errorf("table %s has engine %s and a resource column of type %s with key %q: "+
			"want InnoDB, varbinary and PRI", m.table.quoted, engine, kind, key)
	}
	return m.checkColumns(ctx, q, "BIGINT", fmt.Sprintf("VARBINARY(%d)", fence.MaxLock), mysqlFlaws, m.table.schema, m.table.name)
}

// mysqlFlaws counts the columns of later versions that have another type or default. Servers show an empty default in
// three ways.
const mysqlFlaws = `SELECT
COUNT(CASE WHEN COLUMN_NAME = 'read_token' AND NOT (DATA_TYPE = 'bigint' AND COALESCE(COLUMN_DEFAULT, '') = '0') THEN 1 END),
COUNT(CASE WHEN COLUMN_NAME = 'lock_name' AND NOT (DATA_TYPE = 'varbinary' AND CHARACTER_OCTET_LENGTH >= 2304
	AND COALESCE(COLUMN_DEFAULT, 'NULL') IN ('', '''''', '0x')) THEN 1 END)
FROM (SELECT COLUMN_NAME, DATA_TYPE, CHARACTER_OCTET_LENGTH, IF(IS_NULLABLE = 'NO', COLUMN_DEFAULT, NULL) COLUMN_DEFAULT
	FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = COALESCE(NULLIF(?, ''), DATABASE()) AND TABLE_NAME = ?) c`

// extend waits for the transactions that have used the table, and later ones wait for it.
func (m *mySQL) extend(ctx context.Context, tx Conn) error {
	return addColumns(ctx, tx, m.columns, func(err error) bool { return mysqlNumber(err) == 1060 }) // ER_DUP_FIELDNAME
}

// peek locks, because at read uncommitted a plain read sees marks that are never committed.
func (m *mySQL) peek(ctx context.Context, q Conn, resource string) (markState, error) {
	seen, err := readMarks(ctx, q, m.share, resource)
	return markState{marks: seen}, err
}

// announce does nothing: later transactions queue behind a claim that waits for a lock.
func (m *mySQL) announce(context.Context, Conn, string, Claimant) error { return nil }

// raise reads the marks back with a lock, which sees the newest version at every level.
func (m *mySQL) raise(ctx context.Context, tx Conn, resource string, c Claimant) (marks, error) {
	t, unbound := int64(c.Token), c.unbound()
	readMark := t // readers do not refuse each other
	if c.read {
		readMark = math.MaxInt64
	}
	args := []any{resource, t, c.lock, t, readMark, c.lock, unbound, c.lock != "", c.lock, t, c.lock, unbound, t}
	if _, err := tx.Exec(ctx, m.of(c).raise, args...); err != nil {
		return marks{}, err
	}
	now, err := readMarks(ctx, tx, m.alone, resource)
	if err == nil && !now.has(c) && refuse(resource, c, now) == nil {
		err = errUndone
	}
	return now, err
}

func (m *mySQL) lock(ctx context.Context, tx Conn, resource string, _ Claimant, shared bool) (markState, error) {
	query := m.alone
	if shared {
		clustered, err := m.clustered(ctx, tx)
		if err != nil {
			return markState{}, err
		}
		if shared = !clustered; shared {
			query = m.share
		}
	}
	seen, err := readMarks(ctx, tx, query, resource)
	return markState{marks: seen, trace: !shared}, err
}

// clustered reports whether the server is part of a cluster with several writable nodes, Galera or MySQL's group
// replication, which has no shared form. It queries every time, because each connection may be to another server. The
// queries do not open the transaction's snapshot.
func (m *mySQL) clustered(ctx context.Context, tx Conn) (bool, error) {
	for _, query := range []string{"SELECT @@GLOBAL.wsrep_on", "SELECT @@GLOBAL.group_replication_group_name <> ''"} {
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

// settle compares the mark with a plain read. At repeatable read a plain read reads the snapshot, and opens it if there
// is none. So settle reads only after the transaction has its final lock. For a new token, it does not detect an old
// snapshot if only data have changed since.
func (m *mySQL) settle(ctx context.Context, tx Conn, resource string, c Claimant, seen markState, shared bool) (
	now marks, late bool, err error,
) {
	now = seen.marks
	if !now.has(c) && shared {
		if now, err = readMarks(ctx, tx, m.alone, resource); err != nil || refuse(resource, c, now) != nil {
			return now, false, err
		}
	}
	if now != (marks{}) { // a missing row cannot be locked
		shown, err := readMarks(ctx, tx, m.plain, resource)
		if err != nil || shown.write != now.write || shown.lock != now.lock {
			return now, err == nil, err
		}
	}
	if now.has(c) {
		return now, false, m.leave(ctx, tx, resource, seen)
	}
	now, err = m.raise(ctx, tx, resource, c)
	return now, false, err
}

// lockRead compares the marks with a plain read as settle does. If the read mark of the snapshot is r or higher, the
// snapshot is newer than all older writers' transactions. In a cluster a shared lock is local to its node: a newer
// claim on another node does not wait for it, and rolls the transaction back when this node applies it.
func (m *mySQL) lockRead(ctx context.Context, tx Conn, resource string, r Claimant) (seen markState, late bool, err error) {
	seen.marks, err = readMarks(ctx, tx, m.share, resource)
	claimed := seen.has(r)
	if err == nil && !claimed {
		seen.marks, err = readMarks(ctx, tx, m.alone, resource)
	}
	if err != nil || refuse(resource, r, seen.marks) != nil {
		return seen, false, err
	}
	if seen.marks != (marks{}) { // a missing row cannot be locked
		shown, err := readMarks(ctx, tx, m.plain, resource)
		if err != nil || shown.write != seen.write || shown.lock != seen.lock || shown.read < min(seen.read, r.Token) {
			return seen, err == nil, err
		}
	}
	if !claimed {
		seen.marks, err = m.raise(ctx, tx, resource, r)
	}
	return seen, false, err
}

// lockPath takes all locks before the plain reads, which open the snapshot. In a cluster it locks all rows exclusively
// and writes them, as lock does: a claim on another server does not wait for a shared lock, and COMMIT compares only
// written rows.
func (m *mySQL) lockPath(ctx context.Context, tx Conn, nodes Path) (seen []markState, late bool, err error) {
	clustered, err := m.clustered(ctx, tx)
	if err != nil {
		return nil, false, err
	}
	for _, n := range nodes {
		query, alone := m.share, clustered || !n.read
		if alone {
			query = m.alone
		}
		now, err := readMarks(ctx, tx, query, n.resource)
		if err != nil {
			return nil, false, err
		}
		seen = append(seen, markState{marks: now, trace: alone})
	}
	for _, n := range nodes {
		shown, err := readMarks(ctx, tx, m.plain, n.resource)
		if err != nil {
			return nil, false, err
		}
		late = late || !shown.has(n.Claimant)
	}
	for i, n := range nodes {
		if err := m.leave(ctx, tx, n.resource, seen[i]); err != nil {
			return nil, false, err
		}
	}
	return seen, late, nil
}

// leave writes the mark's row if the transaction has an exclusive lock. It comes after the plain read of settle, which
// would otherwise read the version that leave has written.
func (m *mySQL) leave(ctx context.Context, tx Conn, resource string, seen markState) error {
	if !seen.trace {
		return nil
	}
	_, err := tx.Exec(ctx, m.trace, resource)
	return err
}

func (m *mySQL) pin(ctx context.Context, tx Conn, resource string, seen markState) (int64, error) {
	if err := m.leave(ctx, tx, resource, seen); err != nil {
		return 0, err
	}
	_, err := tx.Exec(ctx, setGuard)
	return 0, err
}

func (m *mySQL) pinned(ctx context.Context, tx Conn, _ int64) (bool, error) {
	_, err := tx.Exec(ctx, releaseGuard)
	if mysqlNumber(err) == 1305 { // ER_SP_DOES_NOT_EXIST
		return false, nil
	}
	return true, err
}

// errUndone reports that a row does not have the value that the transaction has just written and locked.
var errUndone = errors.New("the transaction was rolled back between two statements, as by a conflict in a cluster")

func (m *mySQL) transient(err error) bool {
	if errors.Is(err, errUndone) {
		return true
	}
	switch mysqlNumber(err) {
	case 1213, // ER_LOCK_DEADLOCK, also Galera's conflicts
		1020, // ER_CHECKREAD, MariaDB's innodb_snapshot_isolation
		3101: // ER_TRANSACTION_ROLLBACK_DURING_COMMIT, the conflicts of group replication
		return true
	default:
		return false
	}
}

func (m *mySQL) undone(err error) bool { return m.transient(err) }

func (m *mySQL) noTable(err error) bool  { return mysqlNumber(err) == 1146 }
func (m *mySQL) noColumn(err error) bool { return mysqlNumber(err) == 1054 }
