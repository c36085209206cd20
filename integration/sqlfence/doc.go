// Package sqlfence has the tests of fence/sqlfence on real servers: PostgreSQL, MariaDB and SQLite, each at every
// isolation level.
//
// LEASEFENCE_SQL_ATTEMPTS sets how many writes the randomized run attempts at each store.
package sqlfence
