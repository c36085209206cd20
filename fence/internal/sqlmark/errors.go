package sqlmark

import (
	"errors"
	"fmt"
)

// Fault is a kind of error that every adapter has, with the same text.
type Fault int

// The faults.
const (
	Unknown   Fault = iota + 1 // the answer to COMMIT was lost
	Unclaimed                  // the snapshot may be older than the claim
	NoTable                    // the table of the marks is missing, or a column that later versions have
	NoRow                      // UpdateRow has found no row
)

var faults = map[Fault]string{
	Unknown:   "outcome unknown",
	Unclaimed: "snapshot is older than the claim",
	NoTable:   "table of the marks is missing, or of an earlier version",
	NoRow:     "no such row",
}

// Of returns the fault as an error of a package. It starts with the package's name and matches the same fault of any
// other package.
func (f Fault) Of(pkg string) error { return &faultError{fault: f, text: pkg + ": " + faults[f]} }

type faultError struct {
	fault Fault
	text  string
}

func (e *faultError) Error() string { return e.text }

func (e *faultError) Is(target error) bool {
	other, ok := target.(*faultError)
	return ok && other.fault == e.fault
}

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
			e.pkg, verb, resource, NoTable.Of(e.pkg), e.tables(), err)
	case kind == noColumn:
		return fmt.Errorf("%s: %s %q: %w: call Migrate, or add the columns of Schema that %s lacks: %w",
			e.pkg, verb, resource, NoTable.Of(e.pkg), e.store.base().table.quoted, err)
	default:
		return fmt.Errorf("%s: %s %q: %w", e.pkg, verb, resource, err)
	}
}
