package sqlmark

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The sentinels of all adapters. Their texts follow the adapter's name.
var (
	ErrUnknown   = errors.New("outcome unknown")
	ErrUnclaimed = errors.New("snapshot is older than the claim")
	ErrNoTable   = errors.New("table of the marks is missing, or of an earlier version")
	ErrNoRow     = errors.New("no such row")
)

// errMoved reports that a mark was deleted, lowered or moved to another lock between two statements. The token is
// refused, because the highest token is unknown.
var errMoved = errors.New("the mark was deleted, lowered or moved during the call, want marks that only grow")

// tables names the tables that Migrate creates.
func (e *Engine[D, T]) tables() string {
	name := e.store.base().table.quoted
	if e.trail == nil {
		return name
	}
	return name + ", " + e.trail.tables
}

// explain wraps an error of the guard's own statements. It returns nil for nil.
func (e *Engine[D, T]) explain(verb, resource string, err error) error {
	switch kind := e.store.kind(err); {
	case err == nil:
		return nil
	case kind == noTable:
		return fmt.Errorf("%s: %s %q: %w: call Migrate, or create %s with Schema: %w",
			e.Package, verb, resource, ErrNoTable, e.tables(), err)
	case kind == noColumn:
		return fmt.Errorf("%s: %s %q: %w: call Migrate, or add the columns of Schema that %s lacks: %w",
			e.Package, verb, resource, ErrNoTable, e.store.base().table.quoted, err)
	default:
		return fmt.Errorf("%s: %s %q: %w", e.Package, verb, resource, err)
	}
}

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

const (
	firstPause = 2 * time.Millisecond
	maxPause   = 100 * time.Millisecond
)

// retry runs op again after errors that a new attempt can avoid:
//
//	result of op                                    action of retry
//	nil                                             returns it
//	overtakenError                                  runs op again at once, until the context ends; not counted
//	deadlock, serialization failure, SQLite's lock  runs op again after a pause; the last error after the last attempt
//	ErrUnknown, with any wrapped error              returns it: the work may be done
//	anything else                                   returns it
//	context ended in a pause                        returns the last error with the context's cause
func (e *Engine[D, T]) retry(ctx context.Context, op func() error) error {
	for attempt := 1; ; {
		err := op()
		if behind, found := errors.AsType[overtakenError](err); found {
			if ctx.Err() != nil {
				// Without this type: if a function of Do returns the error, that Do must not begin again for it.
				return fmt.Errorf("%w, after: %w", context.Cause(ctx), behind.error)
			}
			// Another transaction has committed and op has done nothing, so the system makes progress, and counting
			// would only let others exhaust the attempts. A pause would let later transactions lock the mark first.
			continue
		}
		if err == nil || !e.repeatable(err) {
			return err
		}
		if attempt == e.Attempts {
			if attempt == 1 {
				return err
			}
			return fmt.Errorf("%w (attempt %d of %d)", err, attempt, e.Attempts)
		}
		if cause := pause(ctx, attempt); cause != nil {
			return fmt.Errorf("%w, after: %w", cause, err)
		}
		attempt++
	}
}

// pause waits a random time, so that transactions do not conflict again. The bound doubles with each attempt.
func pause(ctx context.Context, attempt int) error {
	timer := time.NewTimer(rand.N(min(firstPause<<min(attempt, 6), maxPause)))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
