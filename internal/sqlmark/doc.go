// Package sqlmark is the fence of an SQL database: marks in a table, the guard that compares and locks one, and the
// rules of PostgreSQL, MySQL and SQLite that it depends on. It is what the packages over database/sql and over pgx have
// in common. What it guarantees is said there.
//
// # Layers
//
//   - A store has the statements of one dialect and reads its servers' errors. It sends through a [Conn].
//   - The [Engine] has the verbs, which it builds from a store's steps, and begins again what a server has undone.
//   - A face, the package that users import, turns its library's pools and transactions into [DB], [Conn] and [Tx],
//     takes the token from the context by [Engine.Admit] before it looks at anything else, and documents the verbs.
//
// # Order
//
// The guard is the first statement of a transaction. Where the engine writes more under it, that comes after the guard
// has passed and before the caller's own statements, on the same connection:
//
//	verb    the mark is passed at               by
//	Claim   the end of its one statement        store.raise
//	Check   its return                          store.lock and store.settle
//	Do      the call of the caller's function   store.lock in attempt
//
// The audit trail, if one is kept, is written there: the row of a tenure by whatever raises the mark, in its
// transaction. The row of a refusal is committed with the guard that refused, and nothing else is, save in a transaction
// of the caller's, which is rolled back.
package sqlmark
