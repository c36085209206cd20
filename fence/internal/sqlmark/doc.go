// Package sqlmark is the fence of an SQL database: marks in a table, the guard that compares and locks a mark, and the
// rules of PostgreSQL, MySQL and SQLite that it depends on. The packages sqlfence and pgxfence share it and document
// its guarantee.
//
// # Layers
//
//   - A store has the statements of one dialect and classifies its servers' errors. It sends through a [Conn].
//   - The [Engine] has the verbs. It builds them from the steps of a store, and begins again after a server's rollback.
//   - An adapter is a package that users import. It converts its library's pools and transactions to [DB], [Conn] and
//     [Tx], takes the token from the context with [Engine.Admit] before anything else, and documents the verbs.
//
// # Order
//
// The guard is the first statement of a transaction. The engine's other writes follow after the guard has passed and
// before the caller's statements, on the same connection:
//
//	verb               the mark is passed at               by
//	Claim, ClaimRead   the end of its one statement        store.raise
//	Check              its return                          store.lock and store.settle
//	CheckRead          its return                          store.lockRead
//	Do                 the call of the caller's function   store.lock in attempt
//
// The audit trail is written at that point too. The transaction that raises the mark writes the row of the tenure. Do
// commits the row of a refusal with the guard that refused, and nothing else; a claim commits it in a separate
// transaction. After a refusal in the caller's transaction nothing is committed, since the caller rolls back.
//
// # Marks
//
// The write mark and the read mark of a resource are two columns of one row. So each guard compares both in its one
// statement, under one lock, in one version of the row, and in one row that a cluster certifies.
package sqlmark
