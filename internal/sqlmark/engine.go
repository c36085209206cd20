package sqlmark

import (
	"context"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/leasefence/leasefence/fence"
)

const (
	// DefaultTable is the table of the marks if a configuration names none.
	DefaultTable = "leasefence_marks"

	maxResource     = 255
	maxIdentifier   = 63 // PostgreSQL cuts longer ones off; MySQL takes 64
	defaultAttempts = 10
	maxAttempts     = 1000
)

// Config is what a face makes an [Engine] of.
type Config struct {
	Package  string // the face's name, with which its errors begin
	Dialect  Dialect
	Table    string // default DefaultTable
	Log      string // table of the audit trail; none if empty
	Attempts int    // default 10
	Ended    error  // what Commit returns, or wraps, if the transaction has ended before

	// Unsent reports that an error of Commit came before the server was sent any of it. Optional.
	Unsent func(error) bool
}

// Engine has the verbs of a face whose transactions are T. It has no state of its own and is safe for concurrent use.
type Engine[T Tx] struct {
	pkg      string
	dialect  Dialect
	store    store
	table    table
	trail    *trail // nil: none is kept
	attempts int
	ended    error
	unsent   func(error) bool
}

// New returns an engine. The error names the field as those of the face's Options are called, the value and the legal
// range.
func New[T Tx](c Config) (*Engine[T], error) {
	if c.Table == "" {
		c.Table = DefaultTable
	}
	if c.Attempts == 0 {
		c.Attempts = defaultAttempts
	}
	if c.Unsent == nil {
		c.Unsent = func(error) bool { return false }
	}
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
	return &Engine[T]{
		pkg:      c.Package,
		dialect:  c.Dialect,
		store:    newStore(name),
		table:    name,
		trail:    log,
		attempts: c.Attempts,
		ended:    c.Ended,
		unsent:   c.Unsent,
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
	if strings.EqualFold(name.quoted, marks.quoted) {
		return nil, fmt.Errorf("%s: Options.Log is %s, want another table than that of the marks", c.Package, excerpt(c.Log))
	}
	return newTrail(c.Dialect, name), nil
}

// Schema returns the statements that make the tables.
func (e *Engine[T]) Schema() []string {
	all := e.store.schema()
	if e.trail != nil {
		all = append(all, e.trail.ddl...)
	}
	return all
}

// Admit is what every verb needs to know before anything is sent: it returns the token of ctx if the resource's name is
// legal.
func (e *Engine[T]) Admit(ctx context.Context, resource string) (fence.Token, error) {
	if resource == "" || len(resource) > maxResource || !utf8.ValidString(resource) ||
		strings.ContainsFunc(resource, unicode.IsControl) {
		return 0, fmt.Errorf("%s: resource is %s of %d bytes, want 1 to %d bytes of UTF-8 without control characters",
			e.pkg, excerpt(resource), len(resource), maxResource)
	}
	return e.Token(ctx)
}

// Token returns the token of ctx.
func (e *Engine[T]) Token(ctx context.Context) (fence.Token, error) {
	t, ok := fence.FromContext(ctx)
	if !ok {
		return 0, fmt.Errorf("%s: %w: the context carries none that is valid; "+
			"use the context of the lock, or fence.NewContext with a token from 1", e.pkg, fence.ErrInvalidToken)
	}
	return t, nil
}

// excerpt bounds what reaches a log.
func excerpt(s string) string {
	const limit = 24
	if len(s) > limit {
		return fmt.Sprintf("%q…", s[:limit])
	}
	return fmt.Sprintf("%q", s)
}
