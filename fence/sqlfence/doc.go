// Package sqlfence keeps a holder that has lost its lock from writing to an SQL database: PostgreSQL, MySQL, MariaDB or
// SQLite. It uses database/sql with any driver. For pgx without database/sql see package pgxfence.
//
// # Scope
//
// [Marks] keeps a mark for each resource, in a table of the same database: the highest token that was accepted. The
// transaction that writes compares the mark and locks it. A resource is whatever one lock protects; its name, 1 to 255
// bytes of UTF-8 without control characters, is the key of the mark. The verbs are those of package fence. A holder
// calls [Marks.Claim] once, before its first read. It writes with [Marks.Do], or with [Marks.Check] as the first
// statement of its own transaction. [Marks.DoShared] and [Marks.CheckShared] let transactions of one holder run
// concurrently. [Marks.UpdateRow] fences single rows by a column of theirs, without a mark. For the holders of read
// locks see Readers below.
//
// The token is the one in the context, see [fence.FromContext]. A lock's context carries its token. Create the table
// with [Marks.Migrate], or apply [Marks.Schema] with your own migration tool.
//
// # Locks
//
// A resource follows one lock, see package fence. The mark keeps the lock's name, so this costs no statement.
// [Options].AllowUnnamed lets tokens without a name in, and [Marks.Move] makes a resource follow another lock.
// [Marks.UpdateRow] does not know locks, since a row keeps only a token.
//
// # Guarantee
//
// Once Claim has returned for a token, no transaction that passed the check with an older token commits. Claim waits
// until those that are under way have ended, and later ones are refused with [fence.ErrStale]. So no older token
// changes what the holder reads from then on. This needs no clock and holds at every isolation level:
//
//	PostgreSQL  read committed              the guard waits for the mark's row and compares its newest version
//	            repeatable read and above   a mark that moved since the snapshot is a serialization failure
//	MySQL,      all                         the guard is a locking read, which sees the newest version, and comes
//	MariaDB                                 before the snapshot of the transaction
//	SQLite      all there are               the guard is a write: the transaction has the one write lock
//
// On PostgreSQL at repeatable read, a transaction does not pass if its snapshot may be older than the last write under
// an older token: Do begins again, and Check returns [ErrUnclaimed]. On MySQL, Check compares the mark with the
// snapshot and returns ErrUnclaimed if the transaction had read before the claim.
//
// A cluster with several writable nodes, Galera or MySQL's group replication, compares the changed rows of transactions
// at COMMIT, and the guard therefore writes the mark. There an older transaction that is under way when Claim returns
// cannot commit and is rolled back as after a deadlock. The shared forms equal the plain ones there. Replication that
// detects no conflicts, such as a ring of asynchronous replicas, cannot be fenced.
//
// Marks sends every statement through a *sql.DB in a transaction, except UpdateRow on PostgreSQL and SQLite. So
// autocommit=0 in a DSN is allowed, and so is a proxy that sends statements outside of transactions to a replica. Marks
// uses no state of a session: PgBouncer may pool by transaction. The driver's way to send statements must suit it, as
// default_query_exec_mode=exec in the DSN of pgx does.
//
// # Readers
//
// The holder of a read lock calls [Marks.ClaimRead] once, before its first read. It reads with [Marks.CheckRead] as the
// first statement of its own transaction. Its token is that of [fence.ReadFromContext], and no verb that writes takes
// it. There are two marks for each resource, see package fence.
//
// Once ClaimRead has returned for a token, no transaction of an older writer commits: ClaimRead waits until those that
// are under way have ended. So no older writer changes what the reader reads from then on. Until a transaction that
// passed CheckRead ends, no newer writer changes what it reads either:
//
//	PostgreSQL  a newer claim waits for the transaction, which has the lock FOR KEY SHARE. A claim of a reader does not.
//	            From repeatable read on, the transaction may pass just after such a claim, whose writes it does not see
//	MySQL,      a newer claim waits for the transaction, also that of a reader; later transactions wait behind the claim
//	MariaDB
//	SQLite      the transaction does not see newer writes, since it has its snapshot; or, without WAL, they wait for it
//
// In a Galera cluster and MySQL's group replication, a newer claim on another node does not wait. When the reader's
// node applies it, the reader's transaction is rolled back as after a deadlock. Before that it reads what was there
// before the claim.
//
// A reader changes the marks and locks them. So it needs a connection to the primary and the right to change the table,
// and on PostgreSQL a transaction that is not read-only. After a claim, CheckRead costs one statement, on MySQL and on
// PostgreSQL at read committed two. The verbs of writers send as many statements as without readers.
//
// A program with a version of this package that does not know readers can share the table with this version. But
// readers do not refuse its writers. So update all writers to this version before the first reader claims.
//
// # Tables of earlier versions
//
// A mark of an earlier version follows no lock until the first token with a name comes. A program with an earlier
// version can share the table. It compares only the tokens, whatever their locks, and never accepts a token below a
// mark.
//
// Before there were readers, the table had no column read_token, and before resources followed locks none lock_name.
// Migrate adds them. Your own migration tool adds them with
//
//	ALTER TABLE leasefence_marks ADD COLUMN read_token BIGINT NOT NULL DEFAULT 0
//	ALTER TABLE leasefence_marks ADD COLUMN lock_name TEXT NOT NULL DEFAULT ''
//
// The type of lock_name is text COLLATE "C" on PostgreSQL, VARBINARY(2304) on MySQL and TEXT on SQLite. On PostgreSQL
// and MySQL the statements wait for open transactions that have passed a check, and later ones wait for them.
//
// # Trees
//
// The holder of a tree's lock calls [Marks.ClaimPath] with the path once, before its first read, and writes with
// [Marks.CheckPath] as the first statement of its own transaction. At each node of the path there are the two marks of
// a resource. The holder is a writer at the path's end and like a reader above: it raises the read marks there, and is
// refused by the write marks. So it refuses older holders of nodes above and below, is refused by newer ones, and does
// not affect other branches. Once ClaimPath has returned, no transaction of an older holder of these nodes commits.
//
// A claim costs up to three transactions for each node, and one if it is repeated. CheckPath costs about two statements
// for each node, and on MySQL up to five.
//
// # No guarantee
//
//   - Writes without a check are not refused.
//   - Readers do not protect rows of UpdateRow, since they raise no mark there.
//   - Check and CheckRead must be the first statement of the transaction. Data that was read earlier may have been
//     overwritten since, and the server does not detect this at every level.
//   - ROLLBACK TO a savepoint also ends a check that was made after the savepoint: the mark is no longer held.
//   - The guard ends with its transaction, and later statements are committed without it. On MySQL, DDL, TRUNCATE and
//     LOCK TABLES commit, and a deadlock rolls back. The function of Do must run none of these and must return the
//     errors of its statements. If it succeeds before the context ends, Do detects the end of the transaction:
//     ErrUnknown. After a Check nothing detects it.
//   - On SQLite, connections that share a cache must not set PRAGMA read_uncommitted: they would take a mark, or data,
//     for committed that is rolled back later.
//   - On MySQL and MariaDB completion_type must be NO_CHAIN, its default, and MariaDB's sql_mode must not have
//     EMPTY_STRING_IS_NULL: otherwise calls fail with an error of the driver.
//   - database/sql has no context for COMMIT and ROLLBACK, and the driver for MySQL then waits for as long as a silent
//     network does: Do may outlast its context. Set readTimeout in the DSN.
//   - Without synchronous replication a promoted replica may lack the last commits and marks. So may a server that
//     loses power and does not flush its log at each commit. It accepts older tokens until the present holder has
//     claimed again.
//   - Never delete a mark and never restore only its table: older tokens would be accepted again. After a restore of
//     the whole database, claim again.
//   - On PostgreSQL at repeatable read and above, Check may not see the writes of a transaction with the same token
//     that it has waited for, if that was in the shared form or at a lower level. Do sees them: it takes its snapshot
//     in a second transaction, after a first one that only waits.
//   - On PostgreSQL a newer Check without a Claim waits as long as transactions in the shared form overlap. A Claim
//     first announces its token in a separate row. The announcement only refuses older tokens, so the claim waits only
//     for transactions that have begun. It stays if the claim fails. The same holds for CheckRead and ClaimRead. A Move
//     cannot announce that the resource will follow another lock, since it may fail: it waits as long as transactions
//     of the previous lock in the shared form overlap.
//
// # Audit trail
//
// With [Options].Log the fence also records tenures and refusals, in two tables beside the marks. [Marks.History] reads
// them, and so can any SQL client:
//
//	fencing_token_log          key, token, holder, ttl_ms, granted_at, released_at, release_cause
//	fencing_token_log_refused  id, key, token (the one offered), highest (the one stored), holder, refused_at
//
// key is the resource. The transaction that raises the mark writes the row of the tenure, so there is a row for exactly
// the accepted tokens, and gives the tenure before, if it has no end, the cause "superseded". After a mark was lowered
// by hand, a tenure may stay without an end. The holder of a path has a tenure at the path's end. [Marks.Release]
// records another cause: "explicit", "expired" or "revoked". Do commits the row of a refusal with the guard that
// refused, and Claim in a separate transaction. After a Check the caller rolls its transaction back and then calls
// [Marks.LogRefusal]. The times are the database's, in UTC. holder, up to 255 bytes with ? for characters of four
// bytes, and ttl_ms come from the token's context (package fence/audit); a token from the network has neither. Every
// process must set the same Log: a claim by a process without Log is not in the trail.
//
// The trail has no readers: neither their tenures nor their refusals, and a reader does not end a writer's tenure
// there. The refusal of a writer by a reader's mark is in the trail, with that mark as highest. Refusals of other
// locks' tokens are not.
//
// The rows affect no decision. Old rows may be deleted, unlike marks. A claim costs up to three more statements, a
// write none.
//
// # Failures
//
//	what happens                                   result
//	holder paused, successor has claimed           its transactions are refused: fence.ErrStale
//	holder paused inside a transaction             the successor's Claim waits until it has ended: bound both
//	reader paused, a newer writer has claimed      its transactions are refused: fence.ErrStale
//	reader that has not claimed meets another      may deadlock on MySQL, "database is locked" on SQLite: begin again
//	token of another lock, or without its name     refused: fence.ErrOtherLock; see fence.ForLock and Move
//	deadlock or serialization failure              Do begins again, within Options.Attempts: the function runs again
//	fn fails or panics, context ends before COMMIT rolled back; nothing is written
//	connection lost at COMMIT                      ErrUnknown: it may be committed; read it back inside Do
//	fn ends the transaction, and succeeds
//	before the context ends                        ErrUnknown: it may be committed in part and unfenced
//	lock wait timeout of the server                rolled back, its error is returned; not repeated
//	table missing, or of an earlier version        ErrNoTable, with the remedy
//	no token of the verb's kind in the context,
//	or its era too high                            fence.ErrInvalidToken; nothing is sent; see Options.MaxEra
//	dialect does not fit the driver                an error, before anything is sent, if the driver is known
package sqlfence
