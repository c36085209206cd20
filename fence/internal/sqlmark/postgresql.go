package sqlmark

import (
	"context"
	"fmt"
)

// migrationLock is for creating tables: CREATE TABLE IF NOT EXISTS is not atomic on PostgreSQL, and one of two
// concurrent statements fails with a duplicate key in the catalogue. The number is "leaseff" in ASCII.
const migrationLock = `SELECT pg_advisory_xact_lock(30510766707009126)`

// announcing and a resource's name form the key of its announcement. No name starts with this character.
const announcing = "\x01"

type postgreSQL struct {
	*statements
	keep string
}

func newPostgreSQL(t table) store {
	s := newStatements(PostgreSQL, t, `SELECT m.token, m.read_token, m.lock_name,
	COALESCE(a.token, 0), COALESCE(a.read_token, 0), COALESCE(a.lock_name, ''),
	current_setting('transaction_isolation') IN ('repeatable read', 'serializable')
FROM {marks} m LEFT JOIN {marks} a ON a.resource = chr(1) || m.resource WHERE m.resource = ?`, `ON CONFLICT (resource) DO NOTHING`)
	const readMark = `read_token bigint NOT NULL DEFAULT 0 CHECK (read_token >= 0)`
	const lock = `lock_name text COLLATE "C" NOT NULL DEFAULT ''`
	s.before = migrationLock
	// Names compare byte by byte in any collation; "C" makes the index cheap. The free space keeps the row's new
	// versions on its page.
	s.ddl = `CREATE TABLE IF NOT EXISTS ` + t.quoted + ` (
	resource text COLLATE "C" PRIMARY KEY CHECK (octet_length(resource) BETWEEN 1 AND ` + fmt.Sprint(maxResource+1) + `),
	token bigint NOT NULL CHECK (token >= 0),
	` + readMark + `,
	` + lock + `
) WITH (fillfactor = 50)`
	// This does not rewrite the table. It waits for the transactions that have a lock on a mark, and later ones wait for
	// it.
	s.columns = []string{`ALTER TABLE ` + t.quoted + ` ADD COLUMN IF NOT EXISTS ` + readMark + `, ADD COLUMN IF NOT EXISTS ` + lock}
	s.flaws = `SELECT COALESCE((` + postgreSQLFlaws + ` FROM pg_class c WHERE c.oid = to_regclass('` + t.quoted + `')), '` + absent + `')`

	// The locks wait and compare the newest version. At repeatable read they fail if that is not the version of the
	// snapshot. They read the snapshot's announcement, and may miss one that was made while they waited. Then the claim
	// waits for this transaction.
	s.alone += ` FOR NO KEY UPDATE OF m`
	s.share += ` FOR SHARE OF m`
	s.last += ` FOR UPDATE OF m`
	return &postgreSQL{
		statements: s,
		// This finds and locks nothing if the read mark is lower or the row lacks the lock's name: raising the mark
		// takes a stronger lock, and upgrading a lock may deadlock.
		keep: s.look + ` AND m.read_token >= $2 AND (m.lock_name <> '' OR CAST($3 AS text) = '') FOR KEY SHARE OF m`,
	}
}

// postgreSQLFlaws returns why a table would lose marks or hide a guard. Row-level security is not a flaw: if it hides a
// mark, raising the mark fails.
const postgreSQLFlaws = `SELECT CASE
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
WHEN (SELECT count(*) FROM pg_attribute a WHERE a.attrelid = c.oid AND NOT a.attisdropped
	AND a.attname IN ('read_token', 'lock_name')) < 2 THEN '` + incomplete + `'
ELSE '' END`

// announce writes a row that no transaction keeps locked. PostgreSQL grants a shared lock on a row ahead of a
// transaction that waits to write it, and a write lock ahead of transactions that have waited longer. So without the
// announcement, transactions of older tokens could make a claim wait forever. The announcement refuses them, and the
// claim waits only for those that have begun.
//
// Readers refuse no readers, so a reader's claim must not wait for them. It does not: they have the lock of FOR KEY
// SHARE.
//
// An announcement is of one lock, the one that the resource will follow if the claim succeeds. A claim of another lock
// replaces it. It refuses nothing at a resource that follows another lock, see markState.withAnnounced: a claim of
// another lock may announce its token before the resource has a name, and be refused later.
func (p *postgreSQL) announce(ctx context.Context, q Conn, resource string, c Claimant, seen markState) error {
	c.Lock = lifted(seen.marks, c).Lock
	_, err := p.change(ctx, q, p.alone, announcing+resource, seen.announced, func(m marks) marks {
		if m.Lock != c.Lock {
			m = marks{}
		}
		return lifted(m, c)
	})
	return err
}

// lock needs no write for a reader if the read mark is high enough. Its lock FOR KEY SHARE conflicts only with the lock
// of a writer that raises the write mark: a writer that has claimed has already waited for the older readers.
//
// That lock covers all versions of the row from that of the statement's snapshot on, and waits for a writer that is
// raising the mark. But unlike the writers' locks it may return an old version: a committed update that did not change
// the key is no conflict. So lock reads the marks again under the lock. At repeatable read this is not possible, and a
// reader does not need it: there the transaction reads only writes that its snapshot shows, and if the read mark of the
// snapshot is high enough, the snapshot is newer than all older writers' transactions. The holder of a path also
// writes, so there it takes a second lock, which fails if the marks have changed since the snapshot. The claims of other
// branches wait for that lock.
func (p *postgreSQL) lock(ctx context.Context, tx Conn, resource string, c Claimant, shared bool) (s markState, err error) {
	switch {
	case !c.Read && shared:
		return p.see(ctx, tx, p.share, resource)
	case !c.Read:
		s, err = p.see(ctx, tx, p.alone, resource)
		// A lock alone leaves no version of the row: a transaction with an older snapshot that has waited for the lock
		// would then continue and read data that this transaction has overwritten.
		s.trace = s.snapshot && s.has(c)
		return s, err
	}
	s, err = p.see(ctx, tx, p.keep, resource, int64(c.Token), c.Lock)
	kept := s.has(c)
	switch {
	case err != nil:
		return s, err
	case kept && s.snapshot && c.Above:
		return p.see(ctx, tx, p.share, resource)
	case kept && s.snapshot:
		return s, nil
	}
	s, err = p.see(ctx, tx, p.look, resource)
	if err == nil && !kept && s.has(c) {
		// Another reader has raised the mark between the two statements, and nothing is locked. The mark is high enough
		// now, so the lock will not be upgraded, and needs no condition.
		if _, err = p.see(ctx, tx, p.keep, resource, 0, ""); err == nil {
			s, err = p.see(ctx, tx, p.look, resource)
		}
	}
	return s, err
}

// settle considers the snapshot only if the token is new: if the mark has changed since the snapshot, the guard itself
// has failed. But transactions in the shared form do not change the mark, and the guard may have waited for one.
func (p *postgreSQL) settle(_ context.Context, _ Conn, _ string, c Claimant, seen markState) (markState, bool, error) {
	highest := seen.Write
	if c.Read {
		highest = seen.Read
	}
	return seen, seen.snapshot && highest < c.Token, nil
}

// pin returns the number that the transaction got with the guard's lock.
func (p *postgreSQL) pin(ctx context.Context, tx Conn) (id int64, err error) {
	err = tx.QueryRow(ctx, "SELECT txid_current()").Scan(&id)
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
