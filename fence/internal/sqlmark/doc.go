// Package sqlmark is the fence of an SQL database: marks in a table, the guard that compares and locks a mark, and the
// rules of PostgreSQL, MySQL and SQLite that it depends on. The packages sqlfence and pgxfence share it and document
// its guarantee.
//
// # Layers
//
//   - A store locks the marks in one dialect, and has its statements and its servers' errors. It sends through a [Conn].
//     Which token is accepted, and which marks result, is decided in Go alone: by admission.Marks.Refuse and lifted.
//   - The [Engine] has the verbs. It checks their arguments, builds them from the steps of a store, and begins again
//     after a server's rollback.
//   - An adapter is a package that users import. It has a [Library], which converts its library's pools and
//     transactions, and documents the verbs.
//
// # Order
//
// The guard is the first statement of a transaction. The engine's other writes follow after the guard has passed and
// before the caller's statements, on the same connection:
//
//	verb                      the mark is passed at               by
//	Claim, ClaimRead          the end of its second transaction   statements.raise
//	Check, CheckRead          its return                          store.lock and store.settle in guard
//	Do                        the call of the caller's function   store.lock in attempt
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
