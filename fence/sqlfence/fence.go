package sqlfence

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/sqlmark"
)

// DefaultTable is the table of the marks if the options name none.
const DefaultTable = sqlmark.DefaultTable // "leasefence_marks"

// Options are the settings of a [Fence]. The zero value is ready for use.
type Options struct {
	// Table is where the marks are, "table" or "schema.table": letters, digits and underscores, at most 63 of them in
	// each part, the first not a digit. It is quoted, so case counts where the database tells case apart. Default
	// [DefaultTable].
	Table string

	// Log is the table of the audit trail, named as Table is, with at most 51 letters; that of the refusals has its name and
	// "_refused". Default: no trail is kept. [DefaultLog] is the usual one.
	Log string

	// Isolation is the level of the transactions of Do and DoShared. Default: the database's.
	Isolation sql.IsolationLevel

	// Attempts is how often an operation is tried at most, with a random pause in between, when the database ends it
	// for a deadlock, a serialization failure or, on SQLite, a lock: 1 to 1000, default 10.
	Attempts int
}

// Fence checks tokens against the marks in one table. It has no state of its own: any number of them, in any number of
// processes, may share a table. A Fence is safe for concurrent use. Make it with [New].
type Fence struct {
	dialect Dialect
	engine  *sqlmark.Engine[transaction]
	txOpts  *sql.TxOptions
}

// New returns a fence for a dialect. Nothing is sent. The error names the field, the value and the legal range.
func New(dialect Dialect, opts Options) (*Fence, error) {
	engine, err := sqlmark.New[transaction](sqlmark.Config{
		Package:  prefix,
		Dialect:  sqlmark.Dialect(dialect),
		Table:    opts.Table,
		Log:      opts.Log,
		Attempts: opts.Attempts,
		Ended:    sql.ErrTxDone,
	})
	if err != nil {
		return nil, err
	}
	if opts.Isolation < sql.LevelDefault || opts.Isolation > sql.LevelLinearizable {
		return nil, fmt.Errorf("sqlfence: Options.Isolation is %d, want %d to %d, a level of database/sql",
			opts.Isolation, sql.LevelDefault, sql.LevelLinearizable)
	}
	return &Fence{dialect: dialect, engine: engine, txOpts: &sql.TxOptions{Isolation: opts.Isolation}}, nil
}

// Schema returns the statements that make the tables, for a migration tool of your own. They do nothing to those that
// exist.
func (f *Fence) Schema() []string { return f.engine.Schema() }

// admission is what every call needs to know before it sends anything.
func (f *Fence) admission(ctx context.Context, resource string) (fence.Token, error) {
	if err := f.made(); err != nil {
		return 0, err
	}
	return f.engine.Admit(ctx, resource)
}

func (f *Fence) made() error {
	if f == nil || f.engine == nil {
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
