package sqlmark

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/clip"
)

const (
	// DefaultTable is the table of the marks if a configuration names none.
	DefaultTable = "leasefence_marks"

	maxResource     = 255
	maxIdentifier   = 63 // PostgreSQL cuts longer ones off; MySQL takes 64
	defaultAttempts = 10
	maxAttempts     = 1000
)

// Config has the settings of an [Engine].
type Config struct {
	Package  string // the adapter's name, the start of its errors
	Dialect  Dialect
	Table    string // default DefaultTable
	Log      string // table of the audit trail; none if empty
	Attempts int    // default 10
	MaxEra   uint16 // default fence.DefaultMaxEra

	// AllowUnnamed accepts tokens without the name of a lock at resources that follow one.
	AllowUnnamed bool

	Hooks *fence.Hooks // may be nil
}

// Engine has the verbs of an adapter to a [Library]. It has no state and is safe for concurrent use.
type Engine[D, T any] struct {
	Config

	lib   Library[D, T]
	store store  // nil if New has not made the engine
	trail *trail // nil without an audit trail
}

// None returns an engine whose verbs fail, for an adapter's Marks that its New has not made.
func None[D, T any](pkg string, lib Library[D, T]) *Engine[D, T] {
	return &Engine[D, T]{Config: Config{Package: pkg}, lib: lib}
}

// New returns an engine. The error names the field of the adapter's Options, the value and the legal range.
func New[D, T any](c Config, lib Library[D, T]) (*Engine[D, T], error) {
	c.Table = cmp.Or(c.Table, DefaultTable)
	c.Attempts = cmp.Or(c.Attempts, defaultAttempts)
	newStore, ok := stores[c.Dialect]
	if !ok {
		return nil, fmt.Errorf("%s: dialect is %s, want PostgreSQL, MySQL or SQLite", c.Package, c.Dialect)
	}
	name, err := parseTable(c.Package, "Table", c.Table, maxIdentifier, c.Dialect)
	if err != nil {
		return nil, err
	}
	log, err := parseLog(c, name)
	if err != nil {
		return nil, err
	}
	if c.Attempts < 1 || c.Attempts > maxAttempts {
		return nil, fmt.Errorf("%s: Options.Attempts is %d, want 1 to %d", c.Package, c.Attempts, maxAttempts)
	}
	if err := fence.CheckMaxEra(c.Package+": Options.MaxEra", c.MaxEra); err != nil {
		return nil, err
	}
	return &Engine[D, T]{Config: c, lib: lib, store: newStore(name), trail: log}, nil
}

// parseLog returns the audit trail of a configuration, or nil.
func parseLog(c Config, marks table) (*trail, error) {
	if c.Log == "" {
		return nil, nil
	}
	name, err := parseTable(c.Package, "Log", c.Log, maxIdentifier-len(refusedSuffix+keySuffix), c.Dialect)
	if err != nil {
		return nil, err
	}
	for _, t := range []table{name, name.beside(c.Dialect, refusedSuffix)} {
		if strings.EqualFold(t.quoted, marks.quoted) {
			return nil, fmt.Errorf("%s: Options.Log is %s, want another table than that of the marks, %s, also with %s appended",
				c.Package, clip.Quote(c.Log), marks.quoted, refusedSuffix)
		}
	}
	return newTrail(c.Dialect, name), nil
}

// Schema returns the statements that create the tables.
func (e *Engine[D, T]) Schema() []string {
	switch {
	case e.store == nil:
		return nil
	case e.trail == nil:
		return []string{e.store.base().ddl}
	default:
		return append([]string{e.store.base().ddl}, e.trail.ddl...)
	}
}

func (e *Engine[D, T]) made() error {
	if e.store == nil {
		return fmt.Errorf("%s: Marks is nil or zero, want one created by New", e.Package)
	}
	return nil
}

// fit returns an error if the engine or the pool cannot be used.
func (e *Engine[D, T]) fit(db D) error {
	if err := e.made(); err != nil {
		return err
	}
	return e.lib.FitDB(db)
}

// The kinds of claimants that [Engine.admit] completes.
var (
	Writer = Claimant{}
	Reader = Claimant{Read: true}
	Mover  = Claimant{Moves: true}
)

// admit checks what every verb needs before it sends anything. It returns the claimant with the token of ctx and the
// name of its lock. unfit is an error if the verb's pool or transaction cannot be used.
func (e *Engine[D, T]) admit(ctx context.Context, resource string, c Claimant, unfit error) (Claimant, error) {
	if err := e.made(); err != nil {
		return c, err
	}
	if err := e.checkResource("resource", resource); err != nil {
		return c, err
	}
	c.Lax = e.AllowUnnamed
	c, err := c.From(ctx, e.MaxEra)
	if err != nil {
		return c, fmt.Errorf("%s: %w", e.Package, err)
	}
	return c, unfit
}

// checkResource refuses names that a table cannot store.
func (e *Engine[D, T]) checkResource(field, resource string) error {
	if resource == "" || len(resource) > maxResource || !utf8.ValidString(resource) ||
		strings.ContainsFunc(resource, unicode.IsControl) {
		return fmt.Errorf("%s: %s is %s of %d bytes, want 1 to %d bytes of UTF-8 without control characters",
			e.Package, field, clip.Quote(resource), len(resource), maxResource)
	}
	return nil
}

// tell reports the outcome of a verb to the hooks, and returns its error.
func (e *Engine[D, T]) tell(ctx context.Context, resource string, c Claimant, err error) error {
	e.Hooks.Tell(ctx, c.Access(resource), err)
	return err
}

// Results of statements.flaws for tables that Migrate creates or completes.
const (
	absent     = "is missing"
	incomplete = "is of an earlier version, without read_token or lock_name: call Migrate"
)

// Migrate creates missing tables, adds missing columns and checks that existing tables can be used.
func (e *Engine[D, T]) Migrate(ctx context.Context, db D) error {
	if err := e.fit(db); err != nil {
		return err
	}
	err := e.retry(ctx, func() error {
		for applied := 0; ; applied++ { // a process of an earlier version may have just created the table
			remedy, err := e.verify(ctx, db)
			if err == nil || remedy == nil || applied == 2 {
				return err
			}
			if err := e.within(ctx, db, func(tx Conn) error { return e.apply(ctx, tx, remedy) }); err != nil {
				return err
			}
		}
	})
	if err != nil {
		return fmt.Errorf("%s: migrate %s: %w", e.Package, e.tables(), err)
	}
	return nil
}

// verify returns an error if the tables cannot be used, and the statements that mend that, if there are any. So without
// a fault it needs no right to change tables, and a table that cannot be used is not altered.
func (e *Engine[D, T]) verify(ctx context.Context, db D) (remedy []string, err error) {
	s := e.store.base()
	var flaw string
	err = e.within(ctx, db, func(tx Conn) error {
		if err := tx.QueryRow(ctx, s.flaws).Scan(&flaw); err != nil {
			return fmt.Errorf("read the definition of %s: %w", s.table.quoted, err)
		}
		if flaw != "" {
			return nil
		}
		if _, err := s.see(ctx, tx, s.look, ""); err != nil { // the definition may be readable where the marks are not
			return err
		}
		if e.trail == nil {
			return nil
		}
		for _, probe := range e.trail.probes {
			if err := tx.QueryRow(ctx, probe).Scan(new(int64)); err != nil {
				return err
			}
		}
		return nil
	})
	switch {
	case err == nil && flaw == absent || e.store.kind(err) == noTable:
		remedy = e.Schema()
	case err == nil && flaw == incomplete:
		remedy = s.columns
	}
	if err == nil && flaw != "" {
		err = fmt.Errorf("table %s %s; want the table of Schema", s.table.quoted, flaw)
	}
	return remedy, err
}

// apply changes the tables. Another process may have added a column already.
func (e *Engine[D, T]) apply(ctx context.Context, tx Conn, remedy []string) error {
	s := e.store.base()
	if s.before != "" {
		if _, err := tx.Exec(ctx, s.before); err != nil {
			return err
		}
	}
	for _, statement := range remedy {
		_, err := tx.Exec(ctx, statement)
		switch {
		case err == nil || e.store.kind(err) == hasColumn:
		case slices.Contains(s.columns, statement):
			return fmt.Errorf("add the columns read_token and lock_name: %w", err)
		default:
			return err
		}
	}
	return nil
}
