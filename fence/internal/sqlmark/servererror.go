package sqlmark

import (
	"errors"
	"slices"
	"strconv"
	"strings"
)

// kind is what an error of a server means.
type kind int

const (
	other     kind = iota
	transient      // the server has rolled back the transaction for a reason that a new attempt can avoid
	undone         // an error of COMMIT after which nothing is committed, as after the transient ones
	noTable
	noColumn
	hasColumn // it cannot be added
)

// serializationFailure is also the error of a guard whose snapshot is older than what it has waited for.
const serializationFailure = "40001"

// kind recognises the classes of errors after which COMMIT has rolled back: deferred constraints, serialization
// failures, a transaction that has failed before, a trigger's exception. After others, such as a shutdown, the outcome
// is unknown.
func (*postgreSQL) kind(err error) kind {
	state := sqlState(err)
	switch state {
	case serializationFailure, "40P01": // deadlock_detected
		return transient
	case "40003": // statement_completion_unknown
		return other
	case "42P01":
		return noTable
	case "42703":
		return noColumn
	}
	if len(state) == 5 && slices.Contains([]string{"23", "25", "40", "P0"}, state[:2]) {
		return undone
	}
	// The texts of pgx and lib/pq after a statement has failed, fn has ignored it, and COMMIT has rolled back.
	if anyText(err, func(text string) bool {
		return text == "commit unexpectedly resulted in rollback" ||
			text == "pq: Could not complete operation in a failed transaction"
	}) {
		return undone
	}
	return other
}

func (*mySQL) kind(err error) kind {
	switch mysqlNumber(err) {
	case 1213, // ER_LOCK_DEADLOCK, also Galera's conflicts
		1020, // ER_CHECKREAD, MariaDB's innodb_snapshot_isolation
		3101: // ER_TRANSACTION_ROLLBACK_DURING_COMMIT, the conflicts of group replication
		return transient
	case 1146:
		return noTable
	case 1054:
		return noColumn
	case 1060: // ER_DUP_FIELDNAME
		return hasColumn
	}
	return other
}

// The drivers of SQLite have its texts in common, which github.com/ncruces/go-sqlite3 begins with its name.
func (*sqlite) kind(err error) kind {
	for text, k := range map[string]kind{
		"no such table": noTable, "no such column": noColumn, "duplicate column name": hasColumn,
		"FOREIGN KEY constraint failed": undone, // a deferred one
	} {
		if anyText(err, func(s string) bool { return strings.Contains(s, text) }) {
			return k
		}
	}
	if anyText(err, func(text string) bool {
		text = strings.TrimPrefix(text, "sqlite3: ")
		return strings.HasPrefix(text, "database is locked") || strings.HasPrefix(text, "database table is locked")
	}) {
		return transient
	}
	return other
}

// sqlState returns the SQLSTATE of a PostgreSQL driver's error, or "". The errors of pgx and lib/pq have the method.
func sqlState(err error) string {
	type stated interface {
		error
		SQLState() string
	}
	if e, ok := errors.AsType[stated](err); ok {
		return e.SQLState()
	}
	return ""
}

// mysqlNumber returns the server's error number, or 0. The driver's error has it in a field, which would need an import
// of the driver, and at the start of its text: "Error 1213 (40001): Deadlock found".
func mysqlNumber(err error) int {
	number := 0
	anyText(err, func(text string) bool {
		if rest, found := strings.CutPrefix(text, "Error "); found {
			number, _ = strconv.Atoi(rest[:max(strings.IndexAny(rest, " :"), 0)])
		}
		return number != 0
	})
	return number
}

// anyText reports whether the text of err or of a wrapped error matches. It recognises drivers' errors that have
// neither a method nor a sentinel.
func anyText(err error, match func(text string) bool) bool {
	if err == nil {
		return false
	}
	if match(err.Error()) {
		return true
	}
	switch e := err.(type) { //nolint:errorlint // It walks the tree itself.
	case interface{ Unwrap() error }:
		return anyText(e.Unwrap(), match)
	case interface{ Unwrap() []error }:
		for _, wrapped := range e.Unwrap() {
			if anyText(wrapped, match) {
				return true
			}
		}
	}
	return false
}
