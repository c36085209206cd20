package sqlmark

import (
	"context"
	"strings"

	"github.com/leasefence/leasefence/fence"
)

type sqlite struct {
	ddl, upsert, equal, mark, probe string
}

func newSQLite(t table) store {
	return &sqlite{
		ddl: `CREATE TABLE IF NOT EXISTS ` + t.quoted + ` (
	resource TEXT NOT NULL PRIMARY KEY,
	token INTEGER NOT NULL
) WITHOUT ROWID`,
		upsert: `INSERT INTO ` + t.quoted + ` (resource, token) VALUES (?, ?)
ON CONFLICT (resource) DO UPDATE SET token = excluded.token WHERE token <= excluded.token`,
		// This is a write even if it finds no row. As the first statement it takes the write lock with the newest snapshot.
		// Later it takes the lock only if the transaction's snapshot is still the newest, and fails otherwise. So BEGIN may be
		// deferred.
		equal: `UPDATE ` + t.quoted + ` SET token = token WHERE resource = ? AND token = ?`,
		mark:  `SELECT token FROM ` + t.quoted + ` WHERE resource = ?`,
		probe: `SELECT count(*) FROM (SELECT resource, token FROM ` + t.quoted + ` LIMIT 0)`,
	}
}

func (s *sqlite) schema() []string { return []string{s.ddl} }

func (s *sqlite) verify(ctx context.Context, q Conn) error {
	return q.QueryRow(ctx, s.probe).Scan(new(int64))
}

func (s *sqlite) migrate(ctx context.Context, tx Conn) error {
	_, err := tx.Exec(ctx, s.ddl)
	return err
}

func (s *sqlite) peek(ctx context.Context, q Conn, resource string) (markState, error) {
	mark, err := readMark(ctx, q, s.mark, resource)
	return markState{mark: mark}, err
}

func (s *sqlite) announce(context.Context, Conn, string, fence.Token) error { return nil }

// raise returns t, or a higher mark.
func (s *sqlite) raise(ctx context.Context, q Conn, resource string, t fence.Token) (fence.Token, error) {
	changed, err := s.exec(ctx, q, s.upsert, resource, t)
	if err != nil || changed {
		return t, err
	}
	mark, err := readMark(ctx, q, s.mark, resource)
	if err == nil && mark < t {
		err = errMoved
	}
	return mark, err
}

// lock has no shared form, since there is only one writer at a time.
func (s *sqlite) lock(ctx context.Context, tx Conn, resource string, t fence.Token, _ bool) (markState, error) {
	equal, err := s.exec(ctx, tx, s.equal, resource, t)
	if err != nil || equal {
		return markState{mark: t}, err
	}
	mark, err := readMark(ctx, tx, s.mark, resource)
	return markState{mark: mark}, err
}

// settle never reports an old snapshot: with one the guard itself has failed.
func (s *sqlite) settle(ctx context.Context, tx Conn, resource string, t fence.Token, seen markState, _ bool) (
	mark fence.Token, late bool, err error,
) {
	if seen.mark == t {
		return t, false, nil
	}
	mark, err = s.raise(ctx, tx, resource, t)
	return mark, false, err
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
