package pgxfence

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/internal/sqlmark"
	"github.com/leasefence/leasefence/internal/clip"
)

// DefaultTable is the default table of the marks, the same as in package sqlfence.
const DefaultTable = sqlmark.DefaultTable // "leasefence_marks"

// Options are the settings of a [Marks]. The zero value is ready for use.
type Options struct {
	// Table is the table of the marks, "table" or "schema.table". Each part is 1 to 63 letters, digits and underscores,
	// the first not a digit. It is quoted, so case matters. Default [DefaultTable].
	Table string

	// Log is the table of the audit trail, in the form of Table with at most 51 characters. The table of refusals has
	// this name with "_refused" appended. Default: no audit trail. [DefaultLog] is the usual name.
	Log string

	// Isolation is the level of the transactions of Do and DoShared, one of pgx's constants. Default: the database's.
	Isolation pgx.TxIsoLevel

	// Attempts is the maximum number of attempts, with random pauses, if the database ends an operation because of a
	// deadlock or a serialization failure: 1 to 1000, default 10. Conflicts at the mark do not count: Do then begins
	// again until the context ends.
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
type Marks struct{ engine *engine }

type engine = sqlmark.Engine[DB, pgx.Tx]

// New returns the marks. It sends nothing. The error names the field, the value and the legal range.
func New(opts Options) (*Marks, error) {
	engine, err := sqlmark.New(sqlmark.Config{
		Package:  prefix,
		Dialect:  sqlmark.PostgreSQL,
		Table:    opts.Table,
		Log:      opts.Log,
		Attempts: opts.Attempts,
		MaxEra:   opts.MaxEra,

		AllowUnnamed: opts.AllowUnnamed,
		Hooks:        opts.Hooks,
	}, library{pgx.TxOptions{IsoLevel: opts.Isolation}})
	if err != nil {
		return nil, err
	}
	switch opts.Isolation {
	case "", pgx.Serializable, pgx.RepeatableRead, pgx.ReadCommitted, pgx.ReadUncommitted:
	default:
		return nil, fmt.Errorf("pgxfence: Options.Isolation is %s, want a pgx.TxIsoLevel: %q, %q, %q or %q",
			clip.Quote(string(opts.Isolation)), pgx.ReadUncommitted, pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable)
	}
	return &Marks{engine}, nil
}

// made returns the engine. That of a Marks which New has not made refuses every call.
func (m *Marks) made() *engine {
	if m == nil || m.engine == nil {
		return sqlmark.None[DB, pgx.Tx](prefix)
	}
	return m.engine
}

// Schema returns the statements that create the tables, for your own migration tool. They do not change existing
// tables. For a Marks that is nil or zero, Schema returns nil.
func (m *Marks) Schema() []string { return m.made().Schema() }

// Migrate creates the tables that are missing, adds the columns that tables of earlier versions lack, and checks that
// existing tables can be used. Many processes may call it concurrently, also while programs of an earlier version use
// the tables. If there is nothing to add it needs no right to create or alter tables. The schema must exist.
//
// On success the tables exist. Migrate refuses a table that would lose marks: an UNLOGGED, TEMPORARY or partitioned
// table, a view, a table with a trigger before its rows, or one whose columns differ from those of [Marks.Schema] in
// what matters. The error names the fault of the existing table or is the server's.
func (m *Marks) Migrate(ctx context.Context, db DB) error {
	return m.made().Migrate(ctx, db)
}

// prefix starts every error.
const prefix = "pgxfence"

// These errors are those of the same name in package sqlfence.
var (
	// ErrUnknown reports that the answer to COMMIT was lost or that fn has ended the transaction. The writes are
	// committed, are not committed, or may still be committed. Before you write again, read inside [Marks.Do] under the
	// same token: its guard waits until the transaction has ended. A read outside of Do, or in DoShared, may come too
	// early.
	ErrUnknown = sqlmark.ErrUnknown

	// ErrUnclaimed reports that the transaction's snapshot may be from before the claim, so its reads may miss the last
	// write under an older token. Roll back, call [Marks.Claim], or [Marks.ClaimRead] for a reader, if the tenure has
	// not claimed, and begin again with the check as the first statement.
	ErrUnclaimed = sqlmark.ErrUnclaimed

	// ErrNoTable reports that the table of the marks is missing, or that an earlier version has created it and it lacks
	// a column: call [Marks.Migrate].
	ErrNoTable = sqlmark.ErrNoTable

	// ErrNoRow reports that UpdateRow has found no row.
	ErrNoRow = sqlmark.ErrNoRow
)
