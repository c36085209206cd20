package sqlmark

import (
	"context"
	"fmt"
	"strings"

	"github.com/leasefence/leasefence/fence"
)

type mySQL struct {
	table                             table
	ddl, greatest, alone, share, mark string
}

func newMySQL(t table) store {
	return &mySQL{
		table: t,
		// Binary, since the usual collations take "A" for "a" and "a " for "a".
		ddl: `CREATE TABLE IF NOT EXISTS ` + t.quoted + ` (
	resource VARBINARY(` + fmt.Sprint(maxResource) + `) NOT NULL PRIMARY KEY,
	token BIGINT NOT NULL
) ENGINE = InnoDB`,
		greatest: `INSERT INTO ` + t.quoted + ` (resource, token) VALUES (?, ?) ` +
			`ON DUPLICATE KEY UPDATE token = GREATEST(token, ?)`,
		// The number of rows that an UPDATE reports is no verdict here: it is 0 for an equal token too. A locking read
		// sees the newest version at every level and does not open the transaction's snapshot.
		alone: `SELECT token FROM ` + t.quoted + ` WHERE resource = ? FOR UPDATE`,
		share: `SELECT token FROM ` + t.quoted + ` WHERE resource = ? LOCK IN SHARE MODE`,
		mark:  `SELECT token FROM ` + t.quoted + ` WHERE resource = ?`,
	}
}

func (m *mySQL) schema() []string { return []string{m.ddl} }

func (m *mySQL) verify(ctx context.Context, q Conn) error {
	if err := q.QueryRow(ctx, `SELECT COUNT(token) FROM `+m.table.quoted+` WHERE resource = ''`).
		Scan(new(int64)); err != nil {
		return err
	}
	// A table without transactions or with case-blind names would let stale writes pass.
	var engine, kind, key string
	err := q.QueryRow(ctx, `SELECT t.ENGINE, c.DATA_TYPE, c.COLUMN_KEY FROM information_schema.TABLES t
JOIN information_schema.COLUMNS c ON c.TABLE_SCHEMA = t.TABLE_SCHEMA AND c.TABLE_NAME = t.TABLE_NAME
WHERE t.TABLE_SCHEMA = COALESCE(NULLIF(?, ''), DATABASE()) AND t.TABLE_NAME = ? AND c.COLUMN_NAME = 'resource'`,
		m.table.schema, m.table.name).Scan(&engine, &kind, &key)
	if err != nil {
		return fmt.Errorf("look at the table's definition: %w", err)
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

// peek locks, for the level of db may be read uncommitted, where a plain read sees a mark that never will be.
func (m *mySQL) peek(ctx context.Context, q Conn, resource string) (fence.Token, error) {
	return readMark(ctx, q, m.share, resource)
}

func (m *mySQL) announce(context.Context, Conn, string, fence.Token) error { return nil }

// raise needs no transaction around the two statements: after the first the mark is t or higher for good.
func (m *mySQL) raise(ctx context.Context, q Conn, resource string, t fence.Token) (fence.Token, error) {
	if _, err := q.Exec(ctx, m.greatest, resource, int64(t), int64(t)); err != nil {
		return 0, err
	}
	return m.raised(ctx, q, m.mark, resource, t)
}

func (m *mySQL) lock(ctx context.Context, tx Conn, resource string, _ fence.Token, shared bool) (sight, error) {
	query := m.alone
	if shared {
		query = m.share
	}
	highest, err := readMark(ctx, tx, query, resource)
	return sight{mark: highest}, err
}

// settle compares the mark with what a plain read shows: the snapshot at repeatable read, which that opens if there is
// none yet. So it reads only when the transaction has the lock that it will keep. A transaction that had a snapshot
// before, and whose token is new, is not told from others if only the data have changed since.
func (m *mySQL) settle(ctx context.Context, tx Conn, resource string, t fence.Token, seen sight, shared bool) (
	mark fence.Token, late bool, err error,
) {
	mark = seen.mark
	if mark < t && shared {
		if mark, err = readMark(ctx, tx, m.alone, resource); err != nil || mark > t {
			return mark, false, err
		}
	}
	if mark != 0 { // a row that is not there cannot be locked
		var shown fence.Token
		if shown, err = readMark(ctx, tx, m.mark, resource); err != nil || shown != mark {
			return mark, err == nil, err
		}
	}
	if mark == t {
		return mark, false, nil
	}
	if _, err := tx.Exec(ctx, m.greatest, resource, int64(t), int64(t)); err != nil {
		return 0, false, err
	}
	mark, err = m.raised(ctx, tx, m.alone, resource, t)
	return mark, false, err
}

// raised reads the mark after it was raised to t.
func (m *mySQL) raised(ctx context.Context, q Conn, query, resource string, t fence.Token) (fence.Token, error) {
	highest, err := readMark(ctx, q, query, resource)
	if err == nil && highest < t {
		err = errMoved
	}
	return highest, err
}

func (m *mySQL) transient(err error) bool {
	switch mysqlNumber(err) {
	case 1213, 1020: // ER_LOCK_DEADLOCK, also Galera's conflicts; ER_CHECKREAD, MariaDB's innodb_snapshot_isolation
		return true
	default:
		return false
	}
}

func (m *mySQL) undone(err error) bool { return m.transient(err) }

func (m *mySQL) noTable(err error) bool { return mysqlNumber(err) == 1146 }
