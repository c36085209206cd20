package sqlmark

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/leasefence/leasefence/fence"
)

// migrationKey is the advisory lock for creating tables: CREATE TABLE IF NOT EXISTS is not atomic on PostgreSQL, and
// one of two concurrent statements fails with a duplicate key in the catalogue.
const migrationKey = 0x6c656173656666 // "leaseff"

// announcing and a resource's name form the key of its announcement. No name starts with this character.
const announcing = "\x01"

type postgreSQL struct {
	basis
	columns, look, alone, share, hold, keep, trace, probe string
}

func newPostgreSQL(t table) store {
	look := `SELECT m.token, m.read_token, m.lock_name, COALESCE(a.token, 0), COALESCE(a.read_token, 0), COALESCE(a.lock_name, ''), ` +
		snapshotLevel + ` FROM ` + t.quoted + ` m LEFT JOIN ` + t.quoted + ` a ON a.resource = $2 WHERE m.resource = $1`
	readMark := readColumn + ` bigint NOT NULL DEFAULT 0 CHECK (` + readColumn + ` >= 0)`
	lock := lockColumn + ` text COLLATE "C" NOT NULL DEFAULT ''`
	write := `INSERT INTO ` + t.quoted + ` AS m (resource, token, lock_name) VALUES ($1, $2, $3) ON CONFLICT (resource) DO UPDATE SET `
	read := `INSERT INTO ` + t.quoted + ` AS m (resource, token, read_token, lock_name) VALUES ($1, 0, $2, $3)
ON CONFLICT (resource) DO UPDATE SET `
	const (
		// If a token with a name is accepted, the mark has that name from then on.
		keepName = `, lock_name = COALESCE(NULLIF(EXCLUDED.lock_name, ''), m.lock_name)`
		follows  = ` AND (m.lock_name IN ('', EXCLUDED.lock_name) OR $4)`
		// An announcement is of one lock. A claim of another lock replaces it.
		another = `m.lock_name <> EXCLUDED.lock_name`
	)
	return &postgreSQL{
		basis: basis{
			table: t,
			// Names compare byte by byte in any collation; "C" makes the index cheap. The free space keeps the row's
			// new versions on its page.
			ddl: `CREATE TABLE IF NOT EXISTS ` + t.quoted + ` (
	resource text COLLATE "C" PRIMARY KEY CHECK (octet_length(resource) BETWEEN 1 AND ` + fmt.Sprint(maxResource+1) + `),
	token bigint NOT NULL CHECK (token >= 0),
	` + readMark + `,
	` + lock + `
) WITH (fillfactor = 50)`,
			plain: `SELECT token, read_token, lock_name FROM ` + t.quoted + ` WHERE resource = $1`,
			// Raising waits for locks on the row and then compares the newest version. At repeatable read it fails if
			// that is not the version of the snapshot. A writer's statement also sets the key, which takes the lock FOR
			// UPDATE and so waits for readers too. A reader's does not: readers do not wait for each other.
			modes: modes{
				writer: statements{
					raise: write + `resource = EXCLUDED.resource, token = EXCLUDED.token` + keepName + `
WHERE m.token <= EXCLUDED.token AND m.read_token <= EXCLUDED.token` + follows,
					announce: write + `token = EXCLUDED.token, read_token = CASE WHEN ` + another + ` THEN 0 ELSE m.read_token END, ` +
						`lock_name = EXCLUDED.lock_name WHERE m.token < EXCLUDED.token OR ` + another,
				},
				reader: statements{
					raise: read + `read_token = GREATEST(m.read_token, EXCLUDED.read_token)` + keepName + `
WHERE m.token <= EXCLUDED.read_token` + follows,
					announce: read + `read_token = EXCLUDED.read_token, token = CASE WHEN ` + another + ` THEN 0 ELSE m.token END, ` +
						`lock_name = EXCLUDED.lock_name WHERE m.read_token < EXCLUDED.read_token OR ` + another,
				},
			},
		},
		columns: `ALTER TABLE ` + t.quoted + ` ADD COLUMN IF NOT EXISTS ` + readMark + `, ADD COLUMN IF NOT EXISTS ` + lock,
		// The locks wait and compare in the same way, and write less. They read the snapshot's announcement, and may
		// miss one that was made while they waited. Then the claim waits for this transaction.
		look:  look,
		alone: look + ` FOR NO KEY UPDATE OF m`,
		share: look + ` FOR SHARE OF m`,
		hold:  look + ` FOR KEY SHARE OF m`,
		// This finds and locks nothing if the read mark is lower or the row lacks the lock's name: raising the mark
		// takes a stronger lock, and upgrading a lock may deadlock.
		keep:  look + ` AND m.read_token >= $3 AND (m.lock_name <> '' OR CAST($4 AS text) = '') FOR KEY SHARE OF m`,
		trace: `UPDATE ` + t.quoted + ` SET token = token WHERE resource = $1`,
		probe: `SELECT count(*) FROM (SELECT resource, token FROM ` + t.quoted + ` LIMIT 0) probe`,
	}
}

const serializationFailure = "40001"

const snapshotLevel = `current_setting('transaction_isolation') IN ('repeatable read', 'serializable')`

func (p *postgreSQL) verify(ctx context.Context, q Conn) error {
	if err := q.QueryRow(ctx, p.probe).Scan(new(int64)); err != nil {
		return err
	}
	var flaw string
	if err := q.QueryRow(ctx, flaws, p.table.quoted).Scan(&flaw); err != nil {
		return fmt.Errorf("read the table's definition: %w", err)
	}
	if flaw != "" {
		return fmt.Errorf("table %s %s: want a plain logged table as in Schema", p.table.quoted, flaw)
	}
	return nil
}

// flaws returns why a table would lose marks or hide a guard. Row-level security is not a flaw: if it hides a mark,
// raising the mark fails.
const flaws = `SELECT CASE
WHEN c.relkind <> 'r' THEN 'is a view, a foreign or a partitioned table'
WHEN c.relpersistence = 'u' THEN 'is UNLOGGED, so a crash of the server empties it'
WHEN c.relpersistence = 't' THEN 'is TEMPORARY, so each session has its own'
WHEN EXISTS (SELECT 1 FROM pg_inherits i WHERE c.oid IN (i.inhrelid, i.inhparent))
	THEN 'is a partition, or inherits or is inherited from'
WHEN EXISTS (SELECT 1 FROM pg_rewrite r WHERE r.ev_class = c.oid) THEN 'has a rule'
WHEN EXISTS (SELECT 1 FROM pg_trigger g WHERE g.tgrelid = c.oid AND NOT g.tgisinternal AND g.tgenabled <> 'D'
	AND g.tgtype & 3 = 3) THEN 'has a trigger BEFORE each row, which may change or suppress a write'
WHEN NOT EXISTS (SELECT 1 FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'resource'
	AND a.atttypid IN ('text'::regtype, 'varchar'::regtype)) THEN 'has a column resource that is not of type text'
WHEN NOT EXISTS (SELECT 1 FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'token'
	AND a.atttypid = 'bigint'::regtype AND a.attnotnull) THEN 'has a column token that is not bigint NOT NULL'
WHEN EXISTS (SELECT 1 FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'read_token'
	AND NOT (a.atttypid = 'bigint'::regtype AND a.attnotnull AND a.atthasdef))
	THEN 'has a column read_token that is not bigint NOT NULL DEFAULT 0'
WHEN EXISTS (SELECT 1 FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
	WHERE a.attrelid = c.oid AND a.attname = 'lock_name' AND NOT (a.atttypid IN ('text'::regtype, 'varchar'::regtype)
	AND a.attnotnull AND COALESCE(pg_get_expr(d.adbin, d.adrelid), '') LIKE '''''::%'))
	THEN 'has a column lock_name that is not text NOT NULL DEFAULT '''''
WHEN NOT EXISTS (SELECT 1 FROM pg_index i JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'resource'
	WHERE i.indrelid = c.oid AND i.indisunique AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL
	AND i.indnatts = 1 AND i.indkey[0] = a.attnum) THEN 'has no primary key that is resource alone'
ELSE '' END FROM pg_class c WHERE c.oid = CAST($1 AS text)::regclass`

func (p *postgreSQL) migrate(ctx context.Context, tx Conn) error { return p.define(ctx, tx, p.ddl) }

// extend does not rewrite the table. It waits for the transactions that have a lock on a mark, and later ones wait for
// it.
func (p *postgreSQL) extend(ctx context.Context, tx Conn) error { return p.define(ctx, tx, p.columns) }

func (p *postgreSQL) define(ctx context.Context, tx Conn, ddl string) error {
	if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1)", int64(migrationKey)); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, ddl)
	return err
}

func (p *postgreSQL) peek(ctx context.Context, q Conn, resource string) (markState, error) {
	return p.see(ctx, q, p.look, resource)
}

// see reads the marks, their announcement and the isolation level. If the marks have no row, the query returns none of
// them.
func (p *postgreSQL) see(ctx context.Context, q Conn, query, resource string, args ...any) (markState, error) {
	var write, read, announcedWrite, announcedRead int64
	var lock, announcedLock string
	var s markState
	err := q.QueryRow(ctx, query, append([]any{resource, announcing + resource}, args...)...).
		Scan(&write, &read, &lock, &announcedWrite, &announcedRead, &announcedLock, &s.snapshot)
	if errors.Is(err, sql.ErrNoRows) {
		return markState{}, nil
	}
	s.marks = marks{fence.Token(write), fence.Token(read), lock}
	s.announced = marks{fence.Token(announcedWrite), fence.Token(announcedRead), announcedLock}
	return s, err
}

// announce writes a row that no transaction keeps locked. PostgreSQL grants a shared lock on a row ahead of a
// transaction that waits to write it, and a write lock ahead of transactions that have waited longer. So without the
// announcement, transactions of older tokens could make a claim wait forever. The announcement refuses them, and the
// claim waits only for those that have begun.
//
// Readers refuse no readers, so a reader's claim must not wait for them. It does not: they have the lock of FOR KEY
// SHARE.
//
// The announcement has the name of the lock that the resource will follow if the claim succeeds. It refuses nothing at
// a resource that follows another lock, see highest: a claim of another lock may announce its token before the resource
// has a name, and be refused later.
func (p *postgreSQL) announce(ctx context.Context, q Conn, resource string, c Claimant) error {
	_, err := q.Exec(ctx, p.of(c).announce, announcing+resource, int64(c.Token), c.lock)
	return err
}

func (p *postgreSQL) lock(ctx context.Context, tx Conn, resource string, c Claimant, shared bool) (markState, error) {
	query := p.alone
	if shared {
		query = p.share
	}
	// If the mark's row is inserted after the snapshot, raise fails.
	s, err := p.see(ctx, tx, query, resource)
	s.trace = s.snapshot && !shared && s.has(c)
	return s, err
}

// leave writes a new version of the mark's row. A lock alone leaves none: a transaction with an older snapshot that has
// waited for the lock would then continue and read data that this transaction has overwritten.
func (p *postgreSQL) leave(ctx context.Context, tx Conn, resource string, seen markState) error {
	if !seen.trace {
		return nil
	}
	_, err := tx.Exec(ctx, p.trace, resource)
	return err
}

// settle considers the snapshot only if the token is new: if the mark has changed since the snapshot, the guard itself
// has failed. But transactions in the shared form do not change the mark, and the guard may have waited for one.
func (p *postgreSQL) settle(ctx context.Context, tx Conn, resource string, c Claimant, seen markState, _ bool) (
	m marks, late bool, err error,
) {
	if seen.has(c) {
		return seen.marks, false, p.leave(ctx, tx, resource, seen)
	}
	if seen.snapshot && seen.write < c.Token {
		return seen.marks, true, nil
	}
	m, err = p.raise(ctx, tx, resource, c)
	return m, false, err
}

// raise returns only the claimant's own mark, or all marks if they refuse it.
func (p *postgreSQL) raise(ctx context.Context, q Conn, resource string, c Claimant) (marks, error) {
	n, err := q.Exec(ctx, p.of(c).raise, resource, int64(c.Token), c.lock, c.unbound())
	if err != nil || n != 0 {
		return c.own(), err
	}
	m, err := readMarks(ctx, q, p.plain, resource)
	if err == nil && refuse(resource, c, m) == nil {
		err = errMoved
	}
	return m, err
}

// lockRead needs no write if the read mark is r or higher. Its lock FOR KEY SHARE conflicts only with the lock of a
// writer that raises the write mark: a writer that has claimed has already waited for the older readers.
//
// The lock covers all versions of the row from that of the statement's snapshot on, and waits for a writer that is
// raising the mark. But unlike the writers' locks it may return an old version: a committed update that did not change
// the key is no conflict. So lockRead reads the marks again under the lock. At repeatable read this is not possible,
// and not needed: there the transaction reads only writes that its snapshot shows, and if the read mark of the snapshot
// is high enough, the snapshot is newer than all older writers' transactions.
func (p *postgreSQL) lockRead(ctx context.Context, tx Conn, resource string, r Claimant) (markState, bool, error) {
	seen, err := p.see(ctx, tx, p.keep, resource, int64(r.Token), r.lock)
	if err == nil && seen.has(r) && !seen.snapshot {
		seen, err = p.peek(ctx, tx, resource)
	}
	if err != nil || seen.has(r) {
		return seen, false, err
	}
	seen, err = p.peek(ctx, tx, resource)
	late := seen.snapshot && seen.read < r.Token
	if err != nil || late || refuse(resource, r, seen.highest(r)) != nil {
		return seen, late, err
	}
	m, err := p.raise(ctx, tx, resource, r)
	return markState{marks: m}, false, err
}

// lockPath takes the lock of a reader on the marks above the end. At repeatable read that lock may return an old
// version, see lockRead, and the transaction of a path also writes. So there lockPath takes a second lock, which fails
// if the marks have changed since the snapshot. The claims of other branches wait for that lock.
func (p *postgreSQL) lockPath(ctx context.Context, tx Conn, nodes Path) (seen []markState, late bool, err error) {
	for _, n := range nodes {
		query := p.alone
		if n.read {
			query = p.hold
		}
		s, err := p.see(ctx, tx, query, n.resource)
		switch {
		case err != nil:
		case !n.read:
			s.trace = s.snapshot && s.has(n.Claimant)
			err = p.leave(ctx, tx, n.resource, s)
		case s.snapshot:
			s, err = p.see(ctx, tx, p.share, n.resource)
		default:
			s, err = p.peek(ctx, tx, n.resource)
		}
		if err != nil {
			return nil, false, err
		}
		seen = append(seen, s)
	}
	return seen, false, nil
}

// pin returns the number that the transaction got with the guard's lock.
func (p *postgreSQL) pin(ctx context.Context, tx Conn, resource string, seen markState) (int64, error) {
	if err := p.leave(ctx, tx, resource, seen); err != nil {
		return 0, err
	}
	var id int64
	err := tx.QueryRow(ctx, "SELECT txid_current()").Scan(&id)
	return id, err
}

func (p *postgreSQL) pinned(ctx context.Context, tx Conn, pin int64) (bool, error) {
	var now int64
	err := tx.QueryRow(ctx, "SELECT coalesce(txid_current_if_assigned(), 0)").Scan(&now)
	if sqlState(err) == "25P02" { // in_failed_sql_transaction: COMMIT returns the error
		return true, nil
	}
	return now == pin, err
}

func (p *postgreSQL) transient(err error) bool {
	switch sqlState(err) {
	case serializationFailure, "40P01": // deadlock_detected
		return true
	default:
		return false
	}
}

// undone recognises the classes of errors after which COMMIT has rolled back: deferred constraints, serialization
// failures, a transaction that has failed before, a trigger's exception. After others, such as a shutdown, the outcome
// is unknown.
func (p *postgreSQL) undone(err error) bool {
	state := sqlState(err)
	if len(state) == 5 && state != "40003" { // statement_completion_unknown
		switch state[:2] {
		case "23", "25", "40", "P0":
			return true
		}
	}
	// The texts of pgx and lib/pq after a statement has failed, fn has ignored it, and COMMIT has rolled back.
	return anyText(err, func(text string) bool {
		return text == "commit unexpectedly resulted in rollback" ||
			text == "pq: Could not complete operation in a failed transaction"
	})
}

func (p *postgreSQL) noTable(err error) bool  { return sqlState(err) == "42P01" }
func (p *postgreSQL) noColumn(err error) bool { return sqlState(err) == "42703" }
