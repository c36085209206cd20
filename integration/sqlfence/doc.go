// Package sqlfence tests the fences of SQL databases, sqlfence and pgxfence, against PostgreSQL, MariaDB and SQLite. What
// both promise is one suite that runs over both, at every level of isolation. What one alone has is in the files that are
// named after it. The servers are those of storetest.
package sqlfence
