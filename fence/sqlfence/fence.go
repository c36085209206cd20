package sqlfence

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/internal/sqlmark"
)

// DefaultTable is the default table of the marks.
const DefaultTable = sqlmark.DefaultTable // "leasefence_marks"

// Options are the settings of a [Marks]. The zero value is ready for use.
type Options struct {
	// Table is the table of the marks, "table" or "schema.table". Each part is 1 to 63 letters, digits and underscores,
	// the first not a digit. It is quoted, so case matters where the database distinguishes case. Default
	// [DefaultTable].
	Table string

	// Log is the table of the audit trail, in the form of Table with at most 51 characters. The table of refusals has
	// this name with "_refused" appended. Default: no audit trail. [DefaultLog] is the usual name.
	Log string

	// Isolation is the level of the transactions of Do and DoShared. Default: the database's.
	Isolation sql.IsolationLevel

	// Attempts is the maximum number of attempts, with random pauses, if the database ends an operation because of a
	// deadlock, a serialization failure or, on SQLite, a lock: 1 to 1000, default 10. On PostgreSQL conflicts at the
	// mark do not count: Do then begins again until the context ends.
	Attempts int

	// MaxEra is the highest era that is accepted: 1 to 32767, default [fence.DefaultMaxEra], 15. A token of a higher
	// era is refused before anything is sent; see [fence.Token.CheckEra].
	MaxEra uint16

	// AllowUnnamed accepts tokens that come without the name of a lock, for example those of older clients, at
	// resources that follow one. By default they are refused with a [*fence.OtherLockError]. Tokens of other locks are
	// always refused.
	AllowUnnamed bool

	// Hooks are called when a token was accepted or refused. Default: none.
	Hooks *fence.Hooks
}

// Marks checks tokens against the marks in one table. It has no state in memory: any number of Marks, in any number of
// processes, may share a table. It is safe for concurrent use. Create it with [New].
type Marks struct {
	dialect Dialect
	engine  *sqlmark.Engine[transaction]
	txOpts  *sql.TxOptions
}

// New returns the marks for a dialect. It sends nothing. The error names the field, the value and the legal range.
func New(dialect Dialect, opts Options) (*Marks, error) {
	engine, err := sqlmark.New[transaction](sqlmark.Config{
		Package:  prefix,
		Dialect:  sqlmark.Dialect(dialect),
		Table:    opts.Table,
		Log:      opts.Log,
		Attempts: opts.Attempts,
		MaxEra:   opts.MaxEra,

		AllowUnnamed: opts.AllowUnnamed,
		Hooks:        opts.Hooks,
		Ended:        sql.ErrTxDone,
	})
	if err != nil {
		return nil, err
	}
	if opts.Isolation < sql.LevelDefault || opts.Isolation > sql.LevelLinearizable {
		return nil, fmt.Errorf("sqlfence: Options.Isolation is %d, want %d to %d, a level of database/sql",
			opts.Isolation, sql.LevelDefault, sql.LevelLinearizable)
	}
	return &Marks{dialect: dialect, engine: engine, txOpts: &sql.TxOptions{Isolation: opts.Isolation}}, nil
}

// Schema returns the statements that create the tables, for your own migration tool. They do not change existing
// tables. For a Marks that is nil or zero, Schema returns nil.
func (m *Marks) Schema() []string {
	if m.made() != nil {
		return nil
	}
	return m.engine.Schema()
}

// admission checks what every call needs before it sends anything, and returns the token with the name of its lock.
func (m *Marks) admission(ctx context.Context, resource string) (sqlmark.Claimant, error) {
	if err := m.made(); err != nil {
		return sqlmark.Claimant{}, err
	}
	return m.engine.Admit(ctx, resource)
}

func (m *Marks) made() error {
	if m == nil || m.engine == nil {
		return errors.New("sqlfence: Marks is nil or zero, want one created by New")
	}
	return nil
}

func (m *Marks) checkDB(db *sql.DB) error {
	if db == nil {
		return errors.New("sqlfence: db is nil, want a *sql.DB")
	}
	return m.dialect.fits(db)
}
