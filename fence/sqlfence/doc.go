// Package sqlfence keeps a holder that has lost its lock from writing to an SQL database: PostgreSQL, MySQL or
// MariaDB, and SQLite, through database/sql and any driver. For pgx itself see package pgxfence.
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
// The token is the one that the context carries, see [fence.FromContext]: a lock's context carries its token.
// [Fence.Migrate] makes the table, or apply [Fence.Schema] with the tool of your own.
//
// # Guarantee
//
// Once Claim has returned for a token, no transaction that passed the check with an older one commits: those that were
// under way have ended, for Claim waits for them, and later ones are refused with [fence.ErrStale]. So what the holder
// reads from then on is changed by nobody with an older token. This needs no clock and holds at every isolation level:
//
//	PostgreSQL  read committed              the guard waits for the mark's row and compares its newest version
//	            repeatable read and above   a mark that moved since the snapshot is a serialization failure
//	MySQL,      all                         the guard is a locking read, which sees the newest version, and comes
//	MariaDB                                 before the snapshot of the transaction
//	SQLite      all there are               the guard is a write: the transaction has the one write lock
//
// On PostgreSQL at repeatable read, a transaction whose snapshot may be older than the last write under an older token
// is not let pass: Do begins again, Check returns [ErrUnclaimed]. On MySQL, Check compares the mark with what
// the snapshot shows, and returns ErrUnclaimed if the transaction had read before the claim.
//
// # No guarantee
//
//   - Only what passes the check is fenced. A write without it is not refused by anybody.
//   - Check has to be the first statement of its transaction. What was read earlier may have been overwritten by then,
//     and not at every level does the server notice.
//   - A check that was made inside a savepoint ends with it: after ROLLBACK TO the mark is no longer held.
//   - On MySQL a deadlock rolls the transaction back, and statements after it are committed one by one, without the
//     guard. A function given to Do must return the errors of its statements, which ends the transaction.
//   - A replica that is promoted may lack the last commits, and the mark with them, unless replication is synchronous.
//     So may a server that does not flush its log at each commit and loses power.
//   - Never delete a mark and never restore the table alone: older tokens would be accepted again. After a restore of
//     the whole database, claim again.
//   - On PostgreSQL a newer Check without a Claim waits for as long as transactions in the shared form overlap. A Claim
//     waits only for those that have begun.
//
// # Audit trail
//
// With [Options].Log the fence also keeps account, in two tables beside the marks, of who held what when and of who was
// refused; [Fence.History] reads them, and so does any SQL client:
//
//	fencing_token_log          key, token, holder, ttl_ms, granted_at, released_at, release_cause
//	fencing_token_log_refused  id, key, token (the one offered), highest (the one stored), holder, refused_at
//
// key is the resource. The row of a tenure is written in the transaction that raises the mark, so that there is one for every
// token that was accepted, and none for any other; at the same time tenures that have no end yet get the cause "superseded".
// [Fence.Release] records another: "explicit", "expired" or "revoked". The row of a refusal is committed with the guard
// that refused, by Claim and Do; a transaction of the caller's is rolled back, so after a Check there is
// [Fence.LogRefusal]. The times are the database's, in UTC. holder, up to 255 bytes, and ttl_ms are what the token's context
// tells ([fence.HolderFromContext]); a token that came over the network comes without. Every process has to name the same
// Log: a claim by one that names none is not in the trail.
//
// The rows are for people and decide nothing: old ones may be deleted, as marks may not. A claim costs two statements more,
// a write none.
//
// # Failures
//
//	what happens                                   what becomes of it
//	holder paused, successor has claimed           its transactions are refused: fence.ErrStale
//	holder paused inside a transaction             the successor's Claim waits until it has ended: bound both
//	deadlock or serialization failure              Do begins again, within Options.Attempts: the function runs again
//	fn fails or panics, context ends before COMMIT rolled back; nothing is written
//	connection lost at COMMIT                      ErrUnknown: it may be committed or not; Do does not repeat it
//	lock wait timeout of the server                rolled back, its error is returned; not repeated
//	table missing                                  ErrNoTable, with what to do
//	no token in the context                        fence.ErrInvalidToken; nothing is sent
//	dialect of another database than the driver's  an error, before anything is sent, if the driver is a known one
package sqlfence
