package sqlfence

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/leasefence/leasefence/fence"
)

const (
	// DefaultTable is the table of the marks if the options name none.
	DefaultTable = "leasefence_marks"

	maxResource     = 255
	maxIdentifier   = 63 // PostgreSQL cuts longer ones off; MySQL takes 64
	defaultAttempts = 10
	maxAttempts     = 1000
)

// Options are the settings of a [Fence]. The zero value is ready for use.
type Options struct {
	// Table is where the marks are, "table" or "schema.table": letters, digits and underscores, at most 63 of them in
	// each part, the first not a digit. It is quoted, so case counts where the database tells case apart. Default
	// [DefaultTable].
	Table string

	// Isolation is the level of the transactions of Do and DoShared. Default: the database's.
	Isolation sql.IsolationLevel

	// Attempts is how often an operation is tried at most, with a random pause in between, when the database ends it
	// for a deadlock, a serialization failure or, on SQLite, a lock: 1 to 1000, default 10.
	Attempts int
}

// Fence checks tokens against the marks in one table. It has no state of its own: any number of them, in any number of
// processes, may share a table. A Fence is safe for concurrent use. Make it with [New].
type Fence struct {
	dialect  Dialect
	store    store
	table    table
	txOpts   *sql.TxOptions
	attempts int
}

// New returns a fence for a dialect. Nothing is sent. The error names the field, the value and the legal range.
func New(dialect Dialect, opts Options) (*Fence, error) {
	if opts.Table == "" {
		opts.Table = DefaultTable
	}
	if opts.Attempts == 0 {
		opts.Attempts = defaultAttempts
	}
	newStore, ok := stores[dialect]
	if !ok {
		return nil, fmt.Errorf("sqlfence: dialect is %s, want PostgreSQL, MySQL or SQLite", dialect)
	}
	name, err := parseTable(opts.Table, dialect)
	if err != nil {
		return nil, err
	}
	if opts.Attempts < 1 || opts.Attempts > maxAttempts {
		return nil, fmt.Errorf("sqlfence: Options.Attempts is %d, want 1 to %d", opts.Attempts, maxAttempts)
	}
	if opts.Isolation < sql.LevelDefault || opts.Isolation > sql.LevelLinearizable {
		return nil, fmt.Errorf("sqlfence: Options.Isolation is %d, want %d to %d, a level of database/sql",
			opts.Isolation, sql.LevelDefault, sql.LevelLinearizable)
	}
	return &Fence{
		dialect:  dialect,
		store:    newStore(name),
		table:    name,
		txOpts:   &sql.TxOptions{Isolation: opts.Isolation},
		attempts: opts.Attempts,
	}, nil
}

// Schema returns the statements that make the table, for a migration tool of your own. They do nothing if it exists.
func (f *Fence) Schema() []string { return f.store.schema() }

// table is a name that was found legal, in parts and quoted for its dialect.
type table struct {
	schema, name string // schema may be empty
	quoted       string
}

func parseTable(s string, dialect Dialect) (table, error) {
	schema, name, found := strings.Cut(s, ".")
	if !found {
		schema, name = "", schema
	}
	if found && !legalIdentifier(schema) || !legalIdentifier(name) {
		return table{}, fmt.Errorf("sqlfence: Options.Table is %s, want table or schema.table, each 1 to %d letters, "+
			"digits and underscores, the first not a digit", excerpt(s), maxIdentifier)
	}
	t := table{schema: schema, name: name, quoted: dialect.quote(name)}
	if found {
		t.quoted = dialect.quote(schema) + "." + t.quoted
	}
	return t, nil
}

func legalIdentifier(s string) bool {
	if s == "" || len(s) > maxIdentifier {
		return false
	}
	for i, r := range s {
		letter := r == '_' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z'
		if !letter && (i == 0 || r < '0' || r > '9') {
			return false
		}
	}
	return true
}

// admission is what every call needs to know before it sends anything.
func (f *Fence) admission(ctx context.Context, resource string) (fence.Token, error) {
	if err := f.made(); err != nil {
		return 0, err
	}
	if resource == "" || len(resource) > maxResource || !utf8.ValidString(resource) ||
		strings.ContainsFunc(resource, unicode.IsControl) {
		return 0, fmt.Errorf("sqlfence: resource is %s of %d bytes, want 1 to %d bytes of UTF-8 without control characters",
			excerpt(resource), len(resource), maxResource)
	}
	return token(ctx)
}

func token(ctx context.Context) (fence.Token, error) {
	t, ok := fence.FromContext(ctx)
	if !ok {
		return 0, fmt.Errorf("sqlfence: %w: the context carries none that is valid; "+
			"use the context of the lock, or fence.NewContext with a token from 1", fence.ErrInvalidToken)
	}
	return t, nil
}

func (f *Fence) made() error {
	if f == nil || f.store == nil {
		return errors.New("sqlfence: Fence is nil or zero, want one that New has made")
	}
	return nil
}

func (f *Fence) checkDB(db *sql.DB) error {
	if db == nil {
		return errors.New("sqlfence: db is nil, want a *sql.DB")
	}
	return f.dialect.fits(db)
}

// excerpt bounds what reaches a log.
func excerpt(s string) string {
	const limit = 24
	if len(s) > limit {
		return fmt.Sprintf("%q…", s[:limit])
	}
	return fmt.Sprintf("%q", s)
}
