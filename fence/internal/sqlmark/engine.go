package sqlmark

import (
	"context"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/internal/admission"
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

	Ended error // Commit's error matches it if the transaction has already ended

	// Unsent reports whether an error of Commit came before anything was sent to the server. Optional.
	Unsent func(error) bool
}

// Engine has the verbs of an adapter with transactions of type T. It has no state and is safe for concurrent use.
type Engine[T Tx] struct {
	pkg      string
	dialect  Dialect
	store    store
	table    table
	trail    *trail // nil without an audit trail
	attempts int
	maxEra   uint16
	strict   bool // see Claimant
	hooks    *fence.Hooks
	ended    error
	unsent   func(error) bool
}

// New returns an engine. The error names the field of the adapter's Options, the value and the legal range.
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
	if err := fence.CheckMaxEra(c.Package+": Options.MaxEra", c.MaxEra); err != nil {
		return nil, err
	}
	return &Engine[T]{
		pkg:      c.Package,
		dialect:  c.Dialect,
		store:    newStore(name),
		table:    name,
		trail:    log,
		attempts: c.Attempts,
		maxEra:   c.MaxEra,
		strict:   !c.AllowUnnamed,
		hooks:    c.Hooks,
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
		return nil, fmt.Errorf("%s: Options.Log is %s, want another table than that of the marks", c.Package, clip.Quote(c.Log))
	}
	return newTrail(c.Dialect, name), nil
}

// Schema returns the statements that create the tables.
func (e *Engine[T]) Schema() []string {
	all := e.store.schema()
	if e.trail != nil {
		all = append(all, e.trail.ddl...)
	}
	return all
}

// Admit checks what every verb needs before it sends anything: it returns the token of ctx, with the name of its lock,
// if the resource's name is legal.
func (e *Engine[T]) Admit(ctx context.Context, resource string) (Claimant, error) {
	if err := e.checkResource("resource", resource); err != nil {
		return Claimant{}, err
	}
	t, err := e.Token(ctx)
	if err != nil {
		return Claimant{}, err
	}
	return e.named(ctx, Claimant{Token: t})
}

// AdmitRead is [Engine.Admit] for a reader's token.
func (e *Engine[T]) AdmitRead(ctx context.Context, resource string) (Claimant, error) {
	if err := e.checkResource("resource", resource); err != nil {
		return Claimant{}, err
	}
	r, err := admission.ReadToken(ctx, e.maxEra)
	if err != nil {
		return Claimant{}, fmt.Errorf("%s: %w", e.pkg, err)
	}
	return e.named(ctx, Claimant{Token: fence.Token(r), read: true})
}

// AdmitMove is [Engine.Admit] for a claim that makes the resource follow the claimant's lock.
func (e *Engine[T]) AdmitMove(ctx context.Context, resource string) (Claimant, error) {
	c, err := e.Admit(ctx, resource)
	if err == nil && c.lock == "" {
		err = fmt.Errorf("%s: move %q: %w: it came without the name of a lock, want the context of a lock, see fence.WithLock",
			e.pkg, resource, fence.ErrInvalidToken)
	}
	c.moving = true
	return c, err
}

// named adds the name of the token's lock.
func (e *Engine[T]) named(ctx context.Context, c Claimant) (_ Claimant, err error) {
	c.strict = e.strict
	if c.lock, err = admission.Lock(ctx); err != nil {
		return Claimant{}, fmt.Errorf("%s: %w", e.pkg, err)
	}
	return c, nil
}

// checkResource refuses names that a table cannot store.
func (e *Engine[T]) checkResource(field, resource string) error {
	if resource == "" || len(resource) > maxResource || !utf8.ValidString(resource) ||
		strings.ContainsFunc(resource, unicode.IsControl) {
		return fmt.Errorf("%s: %s is %s of %d bytes, want 1 to %d bytes of UTF-8 without control characters",
			e.pkg, field, clip.Quote(resource), len(resource), maxResource)
	}
	return nil
}

// Token returns the token of ctx.
func (e *Engine[T]) Token(ctx context.Context) (fence.Token, error) {
	t, err := admission.Token(ctx, e.maxEra)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", e.pkg, err)
	}
	return t, nil
}

// tell reports the outcome of a verb to the hooks, and returns its error.
func (e *Engine[T]) tell(ctx context.Context, resource string, c Claimant, err error) error {
	e.hooks.Tell(ctx, fence.Access{Resource: resource, Token: c.Token, Read: c.read, Lock: c.lock}, err)
	return err
}
