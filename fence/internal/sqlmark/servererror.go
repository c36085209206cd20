package sqlmark

import (
	"errors"
	"strconv"
	"strings"
)

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
		rest, found := strings.CutPrefix(text, "Error ")
		end := strings.IndexAny(rest, " :")
		if !found || end < 0 {
			return false
		}
		n, err := strconv.Atoi(rest[:end])
		if err != nil || n < 1000 { // the server's numbers start at 1000
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
