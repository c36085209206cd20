package sqlmark

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/leasefence/leasefence/fence"
)

// migrationKey is the advisory lock for creating tables: CREATE TABLE IF NOT EXISTS is not atomic on PostgreSQL, and one of two
// concurrent statements fails with a duplicate key in the catalogue.
const migrationKey = 0x6c656173656666 // "leaseff"

// announcing and a resource's name form the key of its announcement. No name starts with this character.
const announcing = "\x01"

type postgreSQL struct {
	table                                                             table
	ddl, upsert, announcement, look, alone, share, trace, mark, probe string
}

func newPostgreSQL(t table) store {
	look := `SELECT m.token, COALESCE((SELECT a.token FROM ` + t.quoted + ` a WHERE a.resource = $2), 0), ` + snapshotLevel +
		` FROM ` + t.quoted + ` m WHERE m.resource = $1`
	return &postgreSQL{
		table: t,
		// Names compare byte by byte in any collation; "C" makes the index cheap. The free space keeps the row's new
		// versions on its page.
		ddl: `CREATE TABLE IF NOT EXISTS ` + t.quoted + ` (
	resource text COLLATE "C" PRIMARY KEY CHECK (octet_length(resource) BETWEEN 1 AND ` + fmt.Sprint(maxResource+1) + `),
	token bigint NOT NULL CHECK (token >= 0)
) WITH (fillfactor = 50)`,
		// It waits for a lock on the row and then compares the newest version. At repeatable read it fails if that is not the
		// version of the snapshot.
		upsert: `INSERT INTO ` + t.quoted + ` AS m (resource, token) VALUES ($1, $2)
ON CONFLICT (resource) DO UPDATE SET token = EXCLUDED.token WHERE m.token <= EXCLUDED.token`,
		announcement: `INSERT INTO ` + t.quoted + ` AS m (resource, token) VALUES ($1, $2)
ON CONFLICT (resource) DO UPDATE SET token = EXCLUDED.token WHERE m.token < EXCLUDED.token`,
		// The locks wait and compare in the same way, and write less. They read the announcement of the snapshot and may miss
		// that of a claim that came while they waited. Then the claim waits for this transaction.
		look:  look,
		alone: look + ` FOR NO KEY UPDATE OF m`,
		share: look + ` FOR SHARE OF m`,
		trace: `UPDATE ` + t.quoted + ` SET token = token WHERE resource = $1`,
		mark:  `SELECT token FROM ` + t.quoted + ` WHERE resource = $1`,
		probe: `SELECT count(*) FROM (SELECT resource, token FROM ` + t.quoted + ` LIMIT 0) probe`,
	}
}

const serializationFailure = "40001"

const snapshotLevel = `current_setting('transaction_isolation') IN ('repeatable read', 'serializable')`

func (p *postgreSQL) schema() []string { return []string{p.ddl} }

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

// flaws returns why a table would lose marks or hide a guard. Row-level security is not a flaw: if it hides a mark, raising the
// mark fails.
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
WHEN NOT EXISTS (SELECT 1 FROM pg_index i JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'resource'
	WHERE i.indrelid = c.oid AND i.indisunique AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL
	AND i.indnatts = 1 AND i.indkey[0] = a.attnum) THEN 'has no primary key that is resource alone'
ELSE '' END FROM pg_class c WHERE c.oid = CAST($1 AS text)::regclass`

func (p *postgreSQL) migrate(ctx context.Context, tx Conn) error {
	if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1)", int64(migrationKey)); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, p.ddl)
	return err
}

func (p *postgreSQL) peek(ctx context.Context, q Conn, resource string) (markState, error) {
	return p.see(ctx, q, p.look, resource)
}

// see reads the mark, its announcement and the isolation level. If the mark has no row, the query returns none of them.
func (p *postgreSQL) see(ctx context.Context, q Conn, query, resource string) (markState, error) {
	var mark, announced int64
	var s markState
	err := q.QueryRow(ctx, query, resource, announcing+resource).Scan(&mark, &announced, &s.snapshot)
	if errors.Is(err, sql.ErrNoRows) {
		return markState{}, nil
	}
	s.mark, s.announced = fence.Token(mark), fence.Token(announced)
	return s, err
}

// announce writes a row that no transaction keeps locked. PostgreSQL grants a shared lock on a row ahead of a transaction that
// waits to write it, and a write lock ahead of transactions that have waited longer. So without the announcement, transactions
// of older tokens could make a claim wait forever. The announcement refuses them, and the claim waits only for those that have
// begun.
func (p *postgreSQL) announce(ctx context.Context, q Conn, resource string, t fence.Token) error {
	_, err := q.Exec(ctx, p.announcement, announcing+resource, int64(t))
	return err
}

func (p *postgreSQL) lock(ctx context.Context, tx Conn, resource string, t fence.Token, shared bool) (markState, error) {
	query := p.alone
	if shared {
		query = p.share
	}
	// If the mark's row is inserted after the snapshot, raise fails.
	s, err := p.see(ctx, tx, query, resource)
	s.trace = s.snapshot && !shared && s.mark == t
	return s, err
}

// leave changes the mark's row. A lock alone leaves no new version: a transaction with an older snapshot that has waited for the
// lock would then continue and read data that this transaction has overwritten.
func (p *postgreSQL) leave(ctx context.Context, tx Conn, resource string, seen markState) error {
	if !seen.trace {
		return nil
	}
	_, err := tx.Exec(ctx, p.trace, resource)
	return err
}

// settle considers the snapshot only if the token is new: if the mark has changed since the snapshot, the guard itself has
// failed. But transactions in the shared form do not change the mark, and the guard may have waited for one.
func (p *postgreSQL) settle(ctx context.Context, tx Conn, resource string, t fence.Token, seen markState, _ bool) (
	mark fence.Token, late bool, err error,
) {
	if seen.mark == t {
		return t, false, p.leave(ctx, tx, resource, seen)
	}
	if seen.snapshot {
		return seen.mark, true, nil
	}
	mark, err = p.raise(ctx, tx, resource, t)
	return mark, false, err
}

// raise returns t, or a higher mark.
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

// undone recognises the classes of errors after which COMMIT has rolled back: deferred constraints, serialization failures, a
// transaction that has failed before, a trigger's exception. After others, such as a shutdown, the outcome is unknown.
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

func (p *postgreSQL) noTable(err error) bool { return sqlState(err) == "42P01" }
