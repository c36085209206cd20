package sqlmark

import (
	"context"
	"fmt"
	"strings"

	"github.com/leasefence/leasefence/fence"
)

type sqlite struct {
	table                                   table
	ddl, column, equal, plain, probe, flaws string
	modes
}

func newSQLite(t table) store {
	const readMark = readColumn + ` INTEGER NOT NULL DEFAULT 0`
	info := `pragma_table_info('` + t.name + `')`
	if t.schema != "" {
		info = `pragma_table_info('` + t.name + `', '` + t.schema + `')`
	}
	return &sqlite{
		table: t,
		ddl: `CREATE TABLE IF NOT EXISTS ` + t.quoted + ` (
	resource TEXT NOT NULL PRIMARY KEY,
	token INTEGER NOT NULL,
	` + readMark + `
) WITHOUT ROWID`,
		column: `ALTER TABLE ` + t.quoted + ` ADD COLUMN ` + readMark,
		modes: modes{
			writer: statements{raise: `INSERT INTO ` + t.quoted + ` (resource, token) VALUES (?, ?)
ON CONFLICT (resource) DO UPDATE SET token = excluded.token WHERE max(token, read_token) <= excluded.token`},
			reader: statements{raise: `INSERT INTO ` + t.quoted + ` (resource, token, read_token) VALUES (?, 0, ?)
ON CONFLICT (resource) DO UPDATE SET read_token = max(read_token, excluded.read_token) WHERE token <= excluded.read_token`},
		},
		// This is a write even if it finds no row. As the first statement it takes the write lock with the newest snapshot.
		// Later it takes the lock only if the transaction's snapshot is still the newest, and fails otherwise. So BEGIN may be
		// deferred.
		equal: `UPDATE ` + t.quoted + ` SET token = token WHERE resource = ? AND token = ? AND read_token <= token`,
		plain: `SELECT token, read_token FROM ` + t.quoted + ` WHERE resource = ?`,
		probe: `SELECT count(*) FROM (SELECT resource, token FROM ` + t.quoted + ` LIMIT 0)`,
		flaws: `SELECT count(*) FROM ` + info + ` WHERE lower(name) = 'read_token'
AND NOT (instr(upper(type), 'INT') > 0 AND "notnull" AND COALESCE(dflt_value, '') = '0')`,
	}
}

func (s *sqlite) schema() []string { return []string{s.ddl} }

func (s *sqlite) verify(ctx context.Context, q Conn) error {
	if err := q.QueryRow(ctx, s.probe).Scan(new(int64)); err != nil {
		return err
	}
	var flaws int
	if err := q.QueryRow(ctx, s.flaws).Scan(&flaws); err != nil {
		return fmt.Errorf("read the table's definition: %w", err)
	}
	if flaws != 0 {
		return fmt.Errorf("table %s has a column read_token that is not INTEGER NOT NULL DEFAULT 0", s.table.quoted)
	}
	return nil
}

func (s *sqlite) migrate(ctx context.Context, tx Conn) error {
	_, err := tx.Exec(ctx, s.ddl)
	return err
}

func (s *sqlite) complete(ctx context.Context, q Conn) error {
	_, err := readMarks(ctx, q, s.plain, "")
	return err
}

func (s *sqlite) extend(ctx context.Context, tx Conn) error {
	_, err := tx.Exec(ctx, s.column)
	if anyText(err, func(text string) bool { return strings.Contains(text, "duplicate column name") }) {
		return nil // another process was first
	}
	return err
}

func (s *sqlite) peek(ctx context.Context, q Conn, resource string) (markState, error) {
	seen, err := readMarks(ctx, q, s.plain, resource)
	return markState{marks: seen}, err
}

func (s *sqlite) announce(context.Context, Conn, string, claimant) error { return nil }

// raise returns the claimant's own mark, or both if one refuses it.
func (s *sqlite) raise(ctx context.Context, q Conn, resource string, c claimant) (marks, error) {
	changed, err := s.exec(ctx, q, s.of(c).raise, resource, c.Token)
	if err != nil || changed {
		return c.own(), err
	}
	now, err := readMarks(ctx, q, s.plain, resource)
	if err == nil && refuse(resource, c, now) == nil {
		err = errMoved
	}
	return now, err
}

// lock has no shared form, since there is only one writer at a time.
func (s *sqlite) lock(ctx context.Context, tx Conn, resource string, t fence.Token, _ bool) (markState, error) {
	equal, err := s.exec(ctx, tx, s.equal, resource, t)
	if err != nil || equal {
		return markState{marks: marks{write: t}}, err
	}
	return s.peek(ctx, tx, resource)
}

// settle never reports an old snapshot: with one the guard itself has failed.
func (s *sqlite) settle(ctx context.Context, tx Conn, resource string, t fence.Token, seen markState, _ bool) (
	m marks, late bool, err error,
) {
	if seen.write == t {
		return seen.marks, false, nil
	}
	m, err = s.raise(ctx, tx, resource, writer(t))
	return m, false, err
}

// lockRead takes no lock if the read mark is r or higher: then the transaction's snapshot is newer than all older writers'
// transactions, and no later write changes it. Raising the mark fails if the snapshot is not the newest.
func (s *sqlite) lockRead(ctx context.Context, tx Conn, resource string, r claimant) (markState, bool, error) {
	seen, err := s.peek(ctx, tx, resource)
	if err != nil || seen.read >= r.Token || refuse(resource, r, seen.marks) != nil {
		return seen, false, err
	}
	seen.marks, err = s.raise(ctx, tx, resource, r)
	return seen, false, err
}

// exec reports whether the statement has found a row to write.
func (s *sqlite) exec(ctx context.Context, q Conn, query, resource string, t fence.Token) (bool, error) {
	n, err := q.Exec(ctx, query, resource, int64(t))
	return err == nil && n != 0, err
}

func (s *sqlite) pin(ctx context.Context, tx Conn, _ string, _ markState) (int64, error) {
	_, err := tx.Exec(ctx, setGuard)
	return 0, err
}

func (s *sqlite) pinned(ctx context.Context, tx Conn, _ int64) (bool, error) {
	_, err := tx.Exec(ctx, releaseGuard)
	if anyText(err, func(text string) bool { return strings.Contains(text, "no such savepoint") }) {
		return false, nil
	}
	return true, err
}

func (s *sqlite) transient(err error) bool {
	const busy, locked = 5, 6 // SQLITE_BUSY, SQLITE_LOCKED; the higher bits tell their kinds apart
	if code := sqliteCode(err); code != 0 {
		return code == busy || code == locked
	}
	return anyText(err, func(text string) bool {
		return strings.HasPrefix(text, "database is locked") || strings.HasPrefix(text, "database table is locked")
	})
}

func (s *sqlite) undone(err error) bool {
	const constraint = 19 // SQLITE_CONSTRAINT, a deferred one
	return sqliteCode(err) == constraint || s.transient(err)
}

func (s *sqlite) noTable(err error) bool {
	return anyText(err, func(text string) bool { return strings.Contains(text, "no such table") })
}

func (s *sqlite) noColumn(err error) bool {
	return anyText(err, func(text string) bool { return strings.Contains(text, "no such column") })
}
