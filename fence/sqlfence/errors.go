package sqlfence

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

var (
	// ErrUnknown says that the answer to COMMIT was lost, or that fn has ended the transaction itself: what it wrote is
	// committed or not. Read it back, under the same token, before writing it again.
	ErrUnknown = errors.New("sqlfence: outcome unknown")

	// ErrUnclaimed says that the transaction may have a snapshot from before the claim: what it reads can be older than
	// the last write under an older token. Roll it back, call [Fence.Claim] if the tenure has not begun with it, and
	// begin again with the check as the first statement.
	ErrUnclaimed = errors.New("sqlfence: snapshot is older than the claim")

	// ErrNoTable says that the table of the marks is missing.
	ErrNoTable = errors.New("sqlfence: table of the marks is missing")

	// ErrNoRow says that UpdateRow has found no row.
	ErrNoRow = errors.New("sqlfence: no such row")
)

// errMoved says that somebody has tampered with the marks: nothing can be said about the token, so it is refused.
var errMoved = errors.New("the mark has moved back: a mark must never be deleted or lowered")

// explain wraps an error of the guard's own statements.
func (f *Fence) explain(verb, resource string, err error) error {
	if f.store.noTable(err) {
		return fmt.Errorf("sqlfence: %s %q: %w: call Migrate, or create %s as Schema says: %w",
			verb, resource, ErrNoTable, f.table.quoted, err)
	}
	return fmt.Errorf("sqlfence: %s %q: %w", verb, resource, err)
}

// sqlState returns what the error of a driver for PostgreSQL reports: pgx and lib/pq have the method.
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

// mysqlNumber returns the server's error number, or 0. The driver's error type has it in a field, which cannot be
// reached without importing the driver, and at the head of its text: "Error 1213 (40001): Deadlock found".
func mysqlNumber(err error) int {
	number := 0
	anyText(err, func(text string) bool {
		rest, found := strings.CutPrefix(text, "Error ")
		end := strings.IndexAny(rest, " :")
		if !found || end < 0 {
			return false
		}
		n, err := strconv.Atoi(rest[:end])
		if err != nil || n < 1000 { // the server's begin there
			return false
		}
		number = n
		return true
	})
	return number
}

// sqliteCode returns the primary result code, or 0. The errors of modernc.org/sqlite have the method.
func sqliteCode(err error) int {
	type coded interface {
		error
		Code() int
	}
	if e, ok := errors.AsType[coded](err); ok {
		return e.Code() & 0xff
	}
	return 0
}

// anyText reports whether the text of err or of an error that it wraps matches. Drivers' errors that have neither
// method nor sentinel are told by their text, each from its own beginning.
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
