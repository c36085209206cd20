package pgxfence

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/sqlmark"
)

// DefaultTable is the table of the marks if the options name none, as in package sqlfence.
const DefaultTable = sqlmark.DefaultTable // "leasefence_marks"

// Options are the settings of a [Fence]. The zero value is ready for use.
type Options struct {
	// Table is where the marks are, "table" or "schema.table": letters, digits and underscores, at most 63 of them in
	// each part, the first not a digit. It is quoted, so case counts. Default [DefaultTable].
	Table string

	// Log is the table of the audit trail, named as Table is, with at most 51 letters; that of the refusals has its name and
	// "_refused". Default: no trail is kept. [DefaultLog] is the usual one.
	Log string

	// Isolation is the level of the transactions of Do and DoShared, one of pgx's constants. Default: the database's.
	Isolation pgx.TxIsoLevel

	// Attempts is how often an operation is tried at most, with a random pause in between, when the database ends it
	// for a deadlock or a serialization failure: 1 to 1000, default 10.
	Attempts int
}

// Fence checks tokens against the marks in one table. It has no state of its own: any number of them, in any number of
// processes, may share a table. A Fence is safe for concurrent use. Make it with [New].
type Fence struct {
	engine *sqlmark.Engine[transaction]
	txOpts pgx.TxOptions
}

// New returns a fence. Nothing is sent. The error names the field, the value and the legal range.
func New(opts Options) (*Fence, error) {
	engine, err := sqlmark.New[transaction](sqlmark.Config{
		Package:  prefix,
		Dialect:  sqlmark.PostgreSQL,
		Table:    opts.Table,
		Log:      opts.Log,
		Attempts: opts.Attempts,
		Ended:    pgx.ErrTxClosed,
		Unsent:   pgconn.SafeToRetry,
	})
	if err != nil {
		return nil, err
	}
	switch opts.Isolation {
	case "", pgx.Serializable, pgx.RepeatableRead, pgx.ReadCommitted, pgx.ReadUncommitted:
	default:
		return nil, fmt.Errorf("pgxfence: Options.Isolation is %s, want a pgx.TxIsoLevel: %q, %q, %q or %q",
			excerpt(string(opts.Isolation)), pgx.ReadUncommitted, pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable)
	}
	return &Fence{engine: engine, txOpts: pgx.TxOptions{IsoLevel: opts.Isolation}}, nil
}

// Schema returns the statements that make the tables, for a migration tool of your own. They do nothing to those that
// exist.
func (f *Fence) Schema() []string { return f.engine.Schema() }

// Migrate makes the table of the marks if it is missing, and looks whether the one that exists can serve. It is safe to
// run from many processes at once. If the table exists it needs no right to create one. Only New's options say which
// table it is; a schema has to exist.
//
// On success the table is there. The error says what is wrong with the one that is there, or is the server's.
func (f *Fence) Migrate(ctx context.Context, db DB) error {
	if err := f.made(); err != nil {
		return err
	}
	if err := checkDB(db); err != nil {
		return err
	}
	return f.engine.Migrate(ctx, newDatabase(db, pgx.TxOptions{}))
}

// admission is what every call needs to know before it sends anything.
func (f *Fence) admission(ctx context.Context, resource string) (fence.Token, error) {
	if err := f.made(); err != nil {
		return 0, err
	}
	return f.engine.Admit(ctx, resource)
}

func (f *Fence) made() error {
	if f == nil || f.engine == nil {
		return errors.New("pgxfence: Fence is nil or zero, want one that New has made")
	}
	return nil
}

// excerpt bounds what reaches a log.
func excerpt(s string) string {
	const limit = 24
	if len(s) > limit {
		return fmt.Sprintf("%q…", s[:limit])
	}
	return fmt.Sprintf("%q", s)
}
