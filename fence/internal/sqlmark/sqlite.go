package sqlmark

import (
	"context"
	"slices"
	"strings"
)

type sqlite struct {
	basis
	equal, probe, flaws string
	columns             []string // ALTER TABLE, one for each column of a later version
}

func newSQLite(t table) store {
	const readMark = readColumn + ` INTEGER NOT NULL DEFAULT 0`
	const lock = lockColumn + ` TEXT NOT NULL DEFAULT ''`
	const keepName = `, lock_name = COALESCE(NULLIF(excluded.lock_name, ''), lock_name)`
	const follows = ` AND (lock_name IN ('', excluded.lock_name) OR ?)`
	info := `pragma_table_info('` + t.name + `')`
	if t.schema != "" {
		info = `pragma_table_info('` + t.name + `', '` + t.schema + `')`
	}
	return &sqlite{
		basis: basis{
			table: t,
			ddl: `CREATE TABLE IF NOT EXISTS ` + t.quoted + ` (
	resource TEXT NOT NULL PRIMARY KEY,
	token INTEGER NOT NULL,
	` + readMark + `,
	` + lock + `
) WITHOUT ROWID`,
			plain: `SELECT token, read_token, lock_name FROM ` + t.quoted + ` WHERE resource = ?`,
			modes: modes{
				writer: statements{raise: `INSERT INTO ` + t.quoted + ` (resource, token, lock_name) VALUES (?, ?, ?)
ON CONFLICT (resource) DO UPDATE SET token = excluded.token` + keepName + `
WHERE max(token, read_token) <= excluded.token` + follows},
				reader: statements{raise: `INSERT INTO ` + t.quoted + ` (resource, token, read_token, lock_name) VALUES (?, 0, ?, ?)
ON CONFLICT (resource) DO UPDATE SET read_token = max(read_token, excluded.read_token)` + keepName + `
WHERE token <= excluded.read_token` + follows},
			},
		},
		columns: []string{
			`ALTER TABLE ` + t.quoted + ` ADD COLUMN ` + readMark,
			`ALTER TABLE ` + t.quoted + ` ADD COLUMN ` + lock,
		},
		// This is a write even if it finds no row. As the first statement it takes the write lock with the newest
		// snapshot. Later it takes the lock only if the transaction's snapshot is still the newest, and fails
		// otherwise. So BEGIN may be deferred.
		equal: `UPDATE ` + t.quoted + ` SET token = token WHERE resource = ? AND token = ? AND read_token <= token ` +
			`AND (lock_name = ? OR ?)`,
		probe: `SELECT count(*) FROM (SELECT resource, token FROM ` + t.quoted + ` LIMIT 0)`,
		flaws: `SELECT count(CASE WHEN lower(name) = 'read_token'
	AND NOT (instr(upper(type), 'INT') > 0 AND "notnull" AND COALESCE(dflt_value, '') = '0') THEN 1 END),
count(CASE WHEN lower(name) = 'lock_name'
	AND NOT (upper(type) = 'TEXT' AND "notnull" AND COALESCE(dflt_value, '') = '''''') THEN 1 END) FROM ` + info,
	}
}

func (s *sqlite) verify(ctx context.Context, q Conn) error {
	if err := q.QueryRow(ctx, s.probe).Scan(new(int64)); err != nil {
		return err
	}
	return s.checkColumns(ctx, q, "INTEGER", "TEXT", s.flaws)
}

func (s *sqlite) extend(ctx context.Context, tx Conn) error {
	return addColumns(ctx, tx, s.columns, func(err error) bool {
		return anyText(err, func(text string) bool { return strings.Contains(text, "duplicate column name") })
	})
}

func (s *sqlite) peek(ctx context.Context, q Conn, resource string) (markState, error) {
	seen, err := readMarks(ctx, q, s.plain, resource)
	return markState{marks: seen}, err
}

func (s *sqlite) announce(context.Context, Conn, string, Claimant) error { return nil }

// raise returns only the claimant's own mark, or all marks if they refuse it.
func (s *sqlite) raise(ctx context.Context, q Conn, resource string, c Claimant) (marks, error) {
	changed, err := s.exec(ctx, q, s.of(c).raise, resource, c)
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
func (s *sqlite) lock(ctx context.Context, tx Conn, resource string, c Claimant, _ bool) (markState, error) {
	equal, err := s.exec(ctx, tx, s.equal, resource, c)
	if err != nil || equal {
		return markState{marks: c.own()}, err
	}
	return s.peek(ctx, tx, resource)
}

// settle never reports an old snapshot: with an old one the guard itself fails.
func (s *sqlite) settle(ctx context.Context, tx Conn, resource string, c Claimant, seen markState, _ bool) (
	m marks, late bool, err error,
) {
	if seen.has(c) {
		return seen.marks, false, nil
	}
	m, err = s.raise(ctx, tx, resource, c)
	return m, false, err
}

// lockRead takes no lock if the read mark is r or higher: then the transaction's snapshot is newer than all older
// writers' transactions, and no later write changes it. Raising the mark fails if the snapshot is not the newest.
func (s *sqlite) lockRead(ctx context.Context, tx Conn, resource string, r Claimant) (markState, bool, error) {
	seen, err := s.peek(ctx, tx, resource)
	if err != nil || seen.has(r) || refuse(resource, r, seen.marks) != nil {
		return seen, false, err
	}
	seen.marks, err = s.raise(ctx, tx, resource, r)
	return seen, false, err
}

// lockPath begins at the path's end, whose guard takes the write lock.
func (s *sqlite) lockPath(ctx context.Context, tx Conn, nodes Path) (seen []markState, late bool, err error) {
	seen = make([]markState, len(nodes))
	for i, n := range slices.Backward(nodes) {
		if n.read {
			seen[i], err = s.peek(ctx, tx, n.resource)
		} else {
			seen[i], err = s.lock(ctx, tx, n.resource, n.Claimant, false)
		}
		if err != nil {
			return nil, false, err
		}
	}
	return seen, false, nil
}

// exec reports whether the statement has found a row to write.
func (s *sqlite) exec(ctx context.Context, q Conn, query, resource string, c Claimant) (bool, error) {
	n, err := q.Exec(ctx, query, resource, int64(c.Token), c.lock, c.unbound())
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
