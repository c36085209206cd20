// Package sqlfence tests the fences of SQL databases, sqlfence and pgxfence, against PostgreSQL, MariaDB and SQLite.
// One suite tests the common promises of both, at every isolation level. Files that are named after one of them test
// what only that one has.
package sqlfence
