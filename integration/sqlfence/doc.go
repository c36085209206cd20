// Package sqlfence tests the fences of SQL databases, sqlfence and pgxfence, against PostgreSQL, MariaDB and SQLite.
// One suite tests the common promises of both, at every isolation level. The tests named TestPgx test what only pgxfence
// has.
package sqlfence
