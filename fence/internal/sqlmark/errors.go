package sqlmark

import (
	"errors"
	"fmt"
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
			e.pkg, verb, resource, ErrNoTable, e.tables(), err)
	case kind == noColumn:
		return fmt.Errorf("%s: %s %q: %w: call Migrate, or add the columns of Schema that %s lacks: %w",
			e.pkg, verb, resource, ErrNoTable, e.store.base().table.quoted, err)
	default:
		return fmt.Errorf("%s: %s %q: %w", e.pkg, verb, resource, err)
	}
}
