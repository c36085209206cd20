// Package pgxfence keeps a holder that has lost its lock from writing to PostgreSQL. It uses github.com/jackc/pgx/v5
// directly: its pools, transactions, batches and COPY. For database/sql, also with pgx as its driver, see package
// sqlfence.
//
// # Scope
//
// The verbs, the table, the statements and the errors are those of sqlfence for PostgreSQL. Programs with sqlfence and
// programs with pgxfence can share a table and its marks. The documentation of sqlfence describes what both do alike:
// resources and their marks, the lock that a resource follows, readers, trees, the audit trail and tables of earlier
// versions. In short, a holder calls [Marks.Claim] once, before its first read, and writes with [Marks.Do], or with
// [Marks.Check] as the first statement of its own transaction.
//
// The token is the one in the context, see [fence.FromContext]. A lock's context carries its token. Create the table
// with [Marks.Migrate], or apply [Marks.Schema] with your own migration tool.
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
// # No guarantee
//
// Writes without a check are not refused. A check must be the first statement of its transaction, and ends with it. For
// the rest of the list, which is that of PostgreSQL, see package sqlfence.
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
//	fn commits or rolls back, and succeeds
//	before the context ends                        ErrUnknown
//	lock_timeout, statement_timeout of the server  rolled back, its error is returned; not repeated
//	table missing, or of an earlier version        ErrNoTable, with the remedy
//	no token of the verb's kind in the context,
//	or its era too high                            fence.ErrInvalidToken; nothing is sent; see Options.MaxEra
package pgxfence
