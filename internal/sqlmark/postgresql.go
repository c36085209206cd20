package sqlmark

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/leasefence/leasefence/fence"
)

// migrationKey is the advisory lock under which tables are made: CREATE TABLE IF NOT EXISTS is not atomic on
// PostgreSQL, and one of two that run at once fails with a duplicate key in the catalogue.
const migrationKey = 0x6c656173656666 // "leaseff"

// announced is put before a resource's name to make the key of its announcement. No name begins with it.
const announced = "\x01"

type postgreSQL struct {
	ddl, upsert, announcement, alone, share, trace, mark, probe string
}

func newPostgreSQL(t table) store {
	return &postgreSQL{
		// Names compare byte by byte in any collation; "C" makes the index cheap. The free space keeps the row's new
		// versions on its page.
		ddl: `CREATE TABLE IF NOT EXISTS ` + t.quoted + ` (
	resource text COLLATE "C" PRIMARY KEY CHECK (octet_length(resource) BETWEEN 1 AND ` + fmt.Sprint(maxResource+1) + `),
	token bigint NOT NULL CHECK (token >= 0)
) WITH (fillfactor = 50)`,
		// It waits for whoever has the row, then compares the newest version; at repeatable read it fails if that is not
		// the snapshot's.
		upsert: `INSERT INTO ` + t.quoted + ` AS m (resource, token) VALUES ($1, $2)
ON CONFLICT (resource) DO UPDATE SET token = EXCLUDED.token WHERE m.token <= EXCLUDED.token`,
		announcement: `INSERT INTO ` + t.quoted + ` AS m (resource, token) VALUES ($1, $2)
ON CONFLICT (resource) DO UPDATE SET token = EXCLUDED.token WHERE m.token < EXCLUDED.token`,
		// These wait and compare in the same way, and write less.
		alone: `SELECT token, ` + snapshotLevel + ` FROM ` + t.quoted + ` WHERE resource = $1 FOR NO KEY UPDATE`,
		share: `SELECT greatest(m.token, (SELECT a.token FROM ` + t.quoted + ` a WHERE a.resource = $2)), ` + snapshotLevel +
			` FROM ` + t.quoted + ` m WHERE m.resource = $1 FOR SHARE OF m`,
		trace: `UPDATE ` + t.quoted + ` SET token = token WHERE resource = $1`,
		mark:  `SELECT token FROM ` + t.quoted + ` WHERE resource = $1`,
		probe: `SELECT count(*) FROM (SELECT resource, token FROM ` + t.quoted + ` LIMIT 0) probe`,
	}
}

const snapshotLevel = `current_setting('transaction_isolation') IN ('repeatable read', 'serializable')`

func (p *postgreSQL) schema() []string { return []string{p.ddl} }

func (p *postgreSQL) verify(ctx context.Context, q Conn) error {
	return q.QueryRow(ctx, p.probe).Scan(new(int64))
}

func (p *postgreSQL) migrate(ctx context.Context, tx Conn) error {
	if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1)", int64(migrationKey)); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, p.ddl)
	return err
}

func (p *postgreSQL) peek(ctx context.Context, q Conn, resource string) (fence.Token, error) {
	return readMark(ctx, q, p.mark, resource)
}

// announce writes a row that nobody keeps locked. PostgreSQL lets a transaction join those that share
// a row ahead of one that waits to write it, so the shared form would keep a claim waiting for as long as its
// transactions overlap. The shared form refuses a token that is older than the announcement: it is stale in any case.
func (p *postgreSQL) announce(ctx context.Context, q Conn, resource string, t fence.Token) error {
	_, err := q.Exec(ctx, p.announcement, announced+resource, int64(t))
	return err
}

func (p *postgreSQL) lock(ctx context.Context, tx Conn, resource string, t fence.Token, shared bool) (sight, error) {
	query, args := p.alone, []any{resource}
	if shared {
		query, args = p.share, []any{resource, announced + resource}
	}
	var mark int64
	var s sight
	err := tx.QueryRow(ctx, query, args...).Scan(&mark, &s.snapshot)
	s.mark = fence.Token(mark)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		// Which level it is does not show without a row. If one comes up now that the snapshot has not, raise fails.
		return sight{}, nil
	case err != nil || shared || !s.snapshot || s.mark != t:
		return s, err
	}
	// A lock alone leaves no trace: a transaction that has waited for it, with a snapshot from before, would go on and
	// read what this one has overwritten.
	_, err = tx.Exec(ctx, p.trace, resource)
	return s, err
}

// settle has to look at the snapshot only if the token is new: if the mark has moved since the snapshot, the guard
// itself has failed. But transactions of the shared form leave no trace on the mark, and may have been waited for.
func (p *postgreSQL) settle(ctx context.Context, tx Conn, resource string, t fence.Token, seen sight, _ bool) (
	mark fence.Token, late bool, err error,
) {
	if seen.mark == t {
		return t, false, nil
	}
	if seen.snapshot {
		return seen.mark, true, nil
	}
	mark, err = p.raise(ctx, tx, resource, t)
	return mark, false, err
}

// raise returns t, or the mark that is higher.
func (p *postgreSQL) raise(ctx context.Context, q Conn, resource string, t fence.Token) (fence.Token, error) {
	n, err := q.Exec(ctx, p.upsert, resource, int64(t))
	if err != nil || n != 0 {
		return t, err
	}
	mark, err := readMark(ctx, q, p.mark, resource)
	if err == nil && mark <= t {
		err = errMoved
	}
	return mark, err
}

func (p *postgreSQL) transient(err error) bool {
	switch sqlState(err) {
	case "40001", "40P01": // serialization_failure, deadlock_detected
		return true
	default:
		return false
	}
}

// undone knows the classes of errors that end a transaction in COMMIT: deferred constraints, serialization failures,
// a transaction that has failed before, a trigger's exception. Others, as that of a shutdown, leave it open.
func (p *postgreSQL) undone(err error) bool {
	state := sqlState(err)
	if len(state) == 5 && state != "40003" { // statement_completion_unknown
		switch state[:2] {
		case "23", "25", "40", "P0":
			return true
		}
	}
	// What pgx and lib/pq say when a statement has failed, fn went on, and COMMIT rolled back.
	return anyText(err, func(text string) bool {
		return text == "commit unexpectedly resulted in rollback" ||
			text == "pq: Could not complete operation in a failed transaction"
	})
}

func (p *postgreSQL) noTable(err error) bool { return sqlState(err) == "42P01" }
