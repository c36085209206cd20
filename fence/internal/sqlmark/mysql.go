package sqlmark

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/leasefence/leasefence/fence"
)

type mySQL struct {
	table                                           table
	ddl, greatest, alone, share, trace, mark, probe string
}

func newMySQL(t table) store {
	return &mySQL{
		table: t,
		// The type is binary, because the usual collations treat "A" as "a" and "a " as "a".
		ddl: `CREATE TABLE IF NOT EXISTS ` + t.quoted + ` (
	resource VARBINARY(` + fmt.Sprint(maxResource) + `) NOT NULL PRIMARY KEY,
	token BIGINT NOT NULL,
	writes BIGINT NOT NULL DEFAULT 0
) ENGINE = InnoDB`,
		greatest: `INSERT INTO ` + t.quoted + ` (resource, token) VALUES (?, ?) ` +
			`ON DUPLICATE KEY UPDATE token = GREATEST(token, ?)`,
		// An UPDATE reports 0 rows for an equal token too, so its count decides nothing. A locking read sees the newest version
		// at every level and does not open the transaction's snapshot.
		alone: `SELECT token FROM ` + t.quoted + ` WHERE resource = ? FOR UPDATE`,
		share: `SELECT token FROM ` + t.quoted + ` WHERE resource = ? LOCK IN SHARE MODE`,
		// In a cluster with several writable nodes a lock is local to its node. The nodes compare the changed rows of
		// transactions at COMMIT. An UPDATE to the same value changes no row.
		trace: `UPDATE ` + t.quoted + ` SET writes = writes + 1 WHERE resource = ?`,
		mark:  `SELECT token FROM ` + t.quoted + ` WHERE resource = ?`,
		probe: `SELECT COUNT(token) + COUNT(writes) FROM ` + t.quoted + ` WHERE resource = ''`,
	}
}

func (m *mySQL) schema() []string { return []string{m.ddl} }

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
	return nil
}

func (m *mySQL) migrate(ctx context.Context, tx Conn) error {
	_, err := tx.Exec(ctx, m.ddl)
	return err
}

// peek locks, because at read uncommitted a plain read sees marks that are never committed.
func (m *mySQL) peek(ctx context.Context, q Conn, resource string) (markState, error) {
	mark, err := readMark(ctx, q, m.share, resource)
	return markState{mark: mark}, err
}

func (m *mySQL) announce(context.Context, Conn, string, fence.Token) error { return nil }

// raise reads the mark back with a lock, which sees the newest version at every level.
func (m *mySQL) raise(ctx context.Context, tx Conn, resource string, t fence.Token) (fence.Token, error) {
	if _, err := tx.Exec(ctx, m.greatest, resource, int64(t), int64(t)); err != nil {
		return 0, err
	}
	highest, err := readMark(ctx, tx, m.alone, resource)
	if err == nil && highest < t {
		err = errUndone
	}
	return highest, err
}

func (m *mySQL) lock(ctx context.Context, tx Conn, resource string, _ fence.Token, shared bool) (markState, error) {
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
	highest, err := readMark(ctx, tx, query, resource)
	return markState{mark: highest, trace: !shared}, err
}

// clustered reports whether the server is part of a cluster with several writable nodes, Galera or MySQL's group replication,
// which has no shared form. It queries every time, because each connection may be to another server. The queries do not open
// the transaction's snapshot.
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

// settle compares the mark with a plain read. At repeatable read that reads the snapshot, and opens it if there is none. So
// settle reads only after the transaction has its final lock. For a new token, it does not detect an older snapshot if only
// data have changed since.
func (m *mySQL) settle(ctx context.Context, tx Conn, resource string, t fence.Token, seen markState, shared bool) (
	mark fence.Token, late bool, err error,
) {
	mark = seen.mark
	if mark < t && shared {
		if mark, err = readMark(ctx, tx, m.alone, resource); err != nil || mark > t {
			return mark, false, err
		}
	}
	if mark != 0 { // a missing row cannot be locked
		var shown fence.Token
		if shown, err = readMark(ctx, tx, m.mark, resource); err != nil || shown != mark {
			return mark, err == nil, err
		}
	}
	if mark == t {
		return mark, false, m.leave(ctx, tx, resource, seen)
	}
	mark, err = m.raise(ctx, tx, resource, t)
	return mark, false, err
}

// leave writes the mark's row if the transaction has an exclusive lock. It comes after the plain read of settle, which would
// otherwise read the transaction's own version of the row.
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

func (m *mySQL) noTable(err error) bool { return mysqlNumber(err) == 1146 }
