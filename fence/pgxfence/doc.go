// Package pgxfence keeps a holder that has lost its lock from writing to PostgreSQL, through github.com/jackc/pgx/v5
// itself: its pools, its transactions, its batches and COPY. For database/sql, also with pgx as its driver, there is
// package sqlfence.
//
// # Scope
//
// A [Fence] keeps one mark for each resource, the highest token it has seen, in a table of the database that it
// protects, and compares and locks it in the transaction that writes. A resource is whatever one lock protects: its
// name is the key of the mark. The verbs are those of package fence: [Fence.Claim] once a tenure, before its first
// read, and with every write [Fence.Do], or [Fence.Check] first in a transaction of the caller's own.
// [Fence.DoShared] and [Fence.CheckShared] are for transactions of one holder that are to run side by side.
// [Fence.UpdateRow] fences single rows, each by a column of its own, without a mark.
//
// The table, its statements and what the errors match are those of sqlfence for PostgreSQL: programs that use the one
// and programs that use the other may share a table, and a token that one has accepted is a mark for the other.
//
// The token is the one that the context carries, see [fence.FromContext]: a lock's context carries its token.
// [Fence.Migrate] makes the table, or apply [Fence.Schema] with the tool of your own.
//
// # Shapes
//
//	a pool                      f.Do(ctx, pool, "accounts", fn), and f.Claim(ctx, pool, "accounts") before it
//	a connection                the same with a *pgx.Conn or *pgxpool.Conn, which must not be in a transaction
//	a transaction of your own   tx, err := pool.BeginTx(ctx, opts); f.Check(ctx, tx, "accounts"), before all else
//	a batch, COPY               tx.SendBatch and tx.CopyFrom, in fn or after Check
//	a savepoint                 tx.Begin in fn or after Check; a guard inside a savepoint ends with its ROLLBACK TO
//	PgBouncer, pooling by       everything above: the fence keeps no session and no temporary state; choose an exec mode
//	transaction                 on the connection that your PgBouncer can bear, as pgx.QueryExecModeSimpleProtocol
//
// A pgx.Tx is no [DB]: a function given to Do inside another transaction would be committed by that one, or not.
//
// # Guarantee
//
// Once Claim has returned for a token, no transaction that passed the check with an older one commits: those that were
// under way have ended, for Claim waits for them, and later ones are refused with [fence.ErrStale]. So what the holder
// reads from then on is changed by nobody with an older token. This needs no clock and holds at every isolation level,
// in every exec mode of pgx:
//
//	read committed              the guard waits for the mark's row and compares its newest version
//	repeatable read and above   a mark that moved since the snapshot is a serialization failure
//
// At repeatable read and above, a transaction whose snapshot may be older than the last write under an older token is
// not let pass: Do begins again, Check returns [ErrUnclaimed].
//
// # No guarantee
//
//   - Only what passes the check is fenced. A write without it is not refused by anybody.
//   - Check has to be the first statement of its transaction. What was read earlier may have been overwritten by then,
//     and not at every level does the server notice.
//   - A replica that is promoted may lack the last commits, and the mark with them, unless replication is synchronous.
//     So may a server that does not flush its log at each commit and loses power.
//   - Never delete a mark and never restore the table alone: older tokens would be accepted again. After a restore of
//     the whole database, claim again.
//   - A newer Check without a Claim waits for as long as transactions in the shared form overlap. A Claim waits only
//     for those that have begun.
//
// # Audit trail
//
// With [Options].Log the fence keeps account of who held what when and who was refused, in the tables that package sqlfence
// describes: [Fence.History] reads them, [Fence.Release] records an end, [Fence.LogRefusal] a refusal by Check.
//
// # Failures
//
//	what happens                                   what becomes of it
//	holder paused, successor has claimed           its transactions are refused: fence.ErrStale
//	holder paused inside a transaction             the successor's Claim waits until it has ended: bound both
//	deadlock or serialization failure              Do begins again, within Options.Attempts: the function runs again
//	fn fails or panics, context ends before COMMIT rolled back; nothing is written
//	a statement failed and fn went on              COMMIT rolls back: pgx.ErrTxCommitRollback; nothing is written
//	connection lost before COMMIT was sent         its error; nothing is written; not repeated
//	connection lost or context ends in COMMIT      ErrUnknown: it may be committed or not; Do does not repeat it
//	fn commits or rolls back                       ErrUnknown
//	lock_timeout, statement_timeout of the server  rolled back, its error is returned; not repeated
//	table missing                                  ErrNoTable, with what to do
//	no token in the context                        fence.ErrInvalidToken; nothing is sent
package pgxfence
