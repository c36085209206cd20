package sqlmark

import (
	"cmp"
	"context"
	"fmt"
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
	pkg      string
	lib      Library[D, T]
	dialect  Dialect
	store    store  // nil if New has not made the engine
	trail    *trail // nil without an audit trail
	attempts int
	maxEra   uint16
	lax      bool // see Claimant
	hooks    *fence.Hooks
}

// None returns an engine whose verbs fail, for an adapter's Marks that its New has not made.
func None[D, T any](pkg string) *Engine[D, T] { return &Engine[D, T]{pkg: pkg} }

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
	return &Engine[D, T]{
		pkg:      c.Package,
		lib:      lib,
		dialect:  c.Dialect,
		store:    newStore(name),
		trail:    log,
		attempts: c.Attempts,
		maxEra:   c.MaxEra,
		lax:      c.AllowUnnamed,
		hooks:    c.Hooks,
	}, nil
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
		return fmt.Errorf("%s: Marks is nil or zero, want one created by New", e.pkg)
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

// admit checks what every verb needs before it sends anything, except its pool or transaction. It returns the claimant
// with the token of ctx and the name of its lock.
func (e *Engine[D, T]) admit(ctx context.Context, resource string, c Claimant) (Claimant, error) {
	if err := e.made(); err != nil {
		return c, err
	}
	if err := e.checkResource("resource", resource); err != nil {
		return c, err
	}
	c.Lax = e.lax
	c, err := c.From(ctx, e.maxEra)
	if err != nil {
		return c, fmt.Errorf("%s: %w", e.pkg, err)
	}
	return c, nil
}

// checkResource refuses names that a table cannot store.
func (e *Engine[D, T]) checkResource(field, resource string) error {
	if resource == "" || len(resource) > maxResource || !utf8.ValidString(resource) ||
		strings.ContainsFunc(resource, unicode.IsControl) {
		return fmt.Errorf("%s: %s is %s of %d bytes, want 1 to %d bytes of UTF-8 without control characters",
			e.pkg, field, clip.Quote(resource), len(resource), maxResource)
	}
	return nil
}

// tell reports the outcome of a verb to the hooks, and returns its error.
func (e *Engine[D, T]) tell(ctx context.Context, resource string, c Claimant, err error) error {
	e.hooks.Tell(ctx, c.Access(resource), err)
	return err
}

// Dialect returns the engine's dialect.
func (e *Engine[D, T]) Dialect() Dialect { return e.dialect }
