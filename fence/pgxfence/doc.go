// Package pgxfence keeps a holder that has lost its lock from writing to PostgreSQL. It uses github.com/jackc/pgx/v5
// directly: its pools, transactions, batches and COPY. For database/sql, also with pgx as its driver, see package
// sqlfence.
//
// # Scope
//
// [Marks] keeps a mark for each resource, in a table of the same database: the highest token that was accepted. The
// transaction that writes compares the mark and locks it. A resource is whatever one lock protects; its name is the key
// of the mark. The verbs are those of package fence. A holder calls [Marks.Claim] once, before its first read. It
// writes with [Marks.Do], or with [Marks.Check] as the first statement of its own transaction. [Marks.DoShared] and
// [Marks.CheckShared] let transactions of one holder run concurrently. [Marks.UpdateRow] fences single rows by a column
// of theirs, without a mark. For the holders of read locks see Readers below.
//
// The table, the statements and the errors are those of sqlfence for PostgreSQL. Programs with sqlfence and programs
// with pgxfence can share a table and its marks.
//
// The token is the one in the context, see [fence.FromContext]. A lock's context carries its token. Create the table
// with [Marks.Migrate], or apply [Marks.Schema] with your own migration tool.
//
// # Locks
//
// Tokens order the grants of one lock only, and a lock does not exclude the holder of another one. So a resource
// follows one lock: that of the first accepted token that comes with a lock's name. The contexts of locks and elections
// carry the name, see [fence.WithLock]. Tokens of other locks are refused with a [*fence.OtherLockError], whatever
// their numbers. Tokens without a name are refused too, unless [Options].AllowUnnamed is set. Where locks are nested,
// or were granted as one, choose the token with [fence.ForLock]. [Marks.Move] makes a resource follow another lock.
//
// The mark keeps the name, so this costs no statement. [Marks.UpdateRow] does not know locks, since a row keeps only a
// token.
//
// # Shapes
//
//	a pool                      marks.Do(ctx, pool, "accounts", fn), and marks.Claim(ctx, pool, "accounts") before it
//	a connection                the same with a *pgx.Conn or *pgxpool.Conn, which must not be in a transaction
//	your own transaction        tx, err := pool.BeginTx(ctx, opts); then marks.Check(ctx, tx, "accounts") first
//	a batch, COPY               tx.SendBatch and tx.CopyFrom, in fn or after Check
//	a savepoint                 tx.Begin in fn or after Check; a guard inside a savepoint ends with its ROLLBACK TO
//	PgBouncer, pooling by       everything above: the fence uses no session state; choose an exec mode that your
//	transaction                 PgBouncer supports, such as pgx.QueryExecModeSimpleProtocol
//
// A pgx.Tx is not a [DB]: the outer transaction would decide whether the writes of Do are committed.
//
// # Guarantee
//
// Once Claim has returned for a token, no transaction that passed the check with an older token commits. Claim waits
// until those that are under way have ended, and later ones are refused with [fence.ErrStale]. So no older token
// changes what the holder reads from then on. This needs no clock and holds at every isolation level, in every exec
// mode of pgx:
//
//	read committed              the guard waits for the mark's row and compares its newest version
//	repeatable read and above   a mark that moved since the snapshot is a serialization failure
//
// At repeatable read and above, a transaction does not pass if its snapshot may be older than the last write under an
// older token: Do begins again, and Check returns [ErrUnclaimed].
//
// # Readers
//
// The holder of a read lock calls [Marks.ClaimRead] once, before its first read. It reads with [Marks.CheckRead] as the
// first statement of its own transaction. Its token is that of [fence.ReadFromContext], and no verb that writes takes
// it. There are two marks for each resource, see package fence. A reader raises the read mark, which refuses older
// writers, and is refused by the write mark. Readers do not refuse each other.
//
// Once ClaimRead has returned for a token, no transaction of an older writer commits: ClaimRead waits until those that
// are under way have ended. So no older writer changes what the reader reads from then on. Until a transaction that
// passed CheckRead ends, no newer writer changes what it reads either: the transaction has the lock FOR KEY SHARE, and
// a newer claim waits for it. A claim of a reader does not. From repeatable read on, the transaction may pass just
// after a newer claim, whose writes it does not see.
//
// A reader changes the marks and locks them. So it needs a connection to the primary, the right to change the table,
// and a transaction that is not read-only. After a claim, CheckRead costs one statement, at read committed two. The
// verbs of writers send as many statements as without readers.
//
// Package sqlfence says what to do before the first reader claims, and which columns tables of earlier versions lack.
//
// # Trees
//
// The holder of a tree's lock calls [Marks.ClaimPath] with the path once, before its first read, and writes with
// [Marks.CheckPath] as the first statement of its own transaction. At each node of the path there are the two marks of
// a resource. The holder is a writer at the path's end and like a reader above: it raises the read marks there, and is
// refused by the write marks. So it refuses older holders of nodes above and below, is refused by newer ones, and does
// not affect other branches. Once ClaimPath has returned, no transaction of an older holder of these nodes commits.
//
// A claim costs up to three transactions for each node, and one if it is repeated. CheckPath costs up to two
// statements for each node.
//
// # No guarantee
//
//   - Writes without a check are not refused.
//   - Readers do not protect rows of UpdateRow, since they raise no mark there.
//   - Check and CheckRead must be the first statement of the transaction. Data that was read earlier may have been
//     overwritten since, and the server does not detect this at every level.
//   - Without synchronous replication a promoted replica may lack the last commits and marks. So may a server that
//     loses power and does not flush its log at each commit.
//   - Never delete a mark and never restore only its table: older tokens would be accepted again. After a restore of
//     the whole database, claim again.
//   - At repeatable read and above, Check may not see the writes of a transaction with the same token that it has
//     waited for, if that was in the shared form or at a lower level. Do sees them: it takes its snapshot in a second
//     transaction, after a first one that only waits.
//   - A newer Check without a Claim waits as long as transactions in the shared form overlap. A Claim first announces
//     its token in a separate row. The announcement only refuses older tokens, so the claim waits only for transactions
//     that have begun. It stays if the claim fails. The same holds for CheckRead and ClaimRead. A Move cannot announce
//     that the resource will follow another lock, since it may fail: it waits as long as transactions of the previous
//     lock in the shared form overlap.
//
// # Audit trail
//
// With [Options].Log the fence records tenures and refusals in the tables that package sqlfence describes.
// [Marks.History] reads them, [Marks.Release] records the end of a tenure, and [Marks.LogRefusal] a refusal by Check.
//
// # Failures
//
//	what happens                                   result
//	holder paused, successor has claimed           its transactions are refused: fence.ErrStale
//	holder paused inside a transaction             the successor's Claim waits until it has ended: bound both
//	reader paused, a newer writer has claimed      its transactions are refused: fence.ErrStale
//	token of another lock, or without its name     refused: fence.ErrOtherLock; see fence.ForLock and Move
//	deadlock or serialization failure              Do begins again, within Options.Attempts: the function runs again
//	fn fails or panics, context ends before COMMIT rolled back; nothing is written
//	fn ignores the error of a statement            COMMIT rolls back: pgx.ErrTxCommitRollback; nothing is written
//	connection lost before COMMIT was sent         its error; nothing is written; not repeated
//	connection lost or context ends in COMMIT      ErrUnknown: it may be committed; read it back inside Do
//	fn commits or rolls back                       ErrUnknown
//	lock_timeout, statement_timeout of the server  rolled back, its error is returned; not repeated
//	table missing, or of an earlier version        ErrNoTable, with the remedy
//	no token of the verb's kind in the context,
//	or its era too high                            fence.ErrInvalidToken; nothing is sent; see Options.MaxEra
package pgxfence
