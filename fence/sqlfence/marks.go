package sqlfence

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/audit"
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
type Marks struct{ engine *engine }

type engine = sqlmark.Engine[*sql.DB, *sql.Tx]

// New returns the marks for a dialect. It sends nothing. The error names the field, the value and the legal range.
func New(dialect Dialect, opts Options) (*Marks, error) {
	engine, err := sqlmark.New(sqlmark.Config{
		Package:  prefix,
		Dialect:  sqlmark.Dialect(dialect),
		Table:    opts.Table,
		Log:      opts.Log,
		Attempts: opts.Attempts,
		MaxEra:   opts.MaxEra,

		AllowUnnamed: opts.AllowUnnamed,
		Hooks:        opts.Hooks,
	}, library{dialect, opts.Isolation})
	if err != nil {
		return nil, err
	}
	if opts.Isolation < sql.LevelDefault || opts.Isolation > sql.LevelLinearizable {
		return nil, fmt.Errorf("sqlfence: Options.Isolation is %d, want %d to %d, a level of database/sql",
			opts.Isolation, sql.LevelDefault, sql.LevelLinearizable)
	}
	return &Marks{engine}, nil
}

// made returns the engine. That of a Marks which New has not made refuses every call.
func (m *Marks) made() *engine {
	if m == nil || m.engine == nil {
		return sqlmark.None(prefix, library{})
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
// On success the tables exist. Migrate refuses a table that would lose marks: on PostgreSQL an UNLOGGED, TEMPORARY or
// partitioned table, or one with a trigger before its rows, and everywhere one whose columns differ from those of
// [Marks.Schema] in what matters. The error names the fault of the existing table or is the driver's.
func (m *Marks) Migrate(ctx context.Context, db *sql.DB) error {
	return m.made().Migrate(ctx, db)
}

// prefix starts every error.
const prefix = "sqlfence"

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

// Claim starts a tenure. Call it once after a grant, before the first read of the resource. Repeating it is safe. Claim
// takes the token from ctx and begins its own transactions on db.
//
// On success the token is the mark. Transactions with older tokens have ended, since Claim waits for them, and no more
// are accepted. On SQLite with WAL Claim does not wait for those of readers, which do not see later writes. On a
// [*fence.StaleError] the mark is unchanged. On any other error the mark may have been raised, and on PostgreSQL older
// tokens may be refused.
//
// The error is a [*fence.StaleError] if the token is older than a mark, and a [*fence.OtherLockError] if it is not of
// the lock that the resource follows, see Locks in the package's documentation. It matches [fence.ErrInvalidToken] if
// ctx carries no token of a writer, and [ErrNoTable] if the table is missing. After a deadlock or a serialization
// failure Claim begins again, within [Options].Attempts.
func (m *Marks) Claim(ctx context.Context, db *sql.DB, resource string) error {
	return m.made().Claim(ctx, db, resource, sqlmark.Writer)
}

// Move makes the resource follow the lock of ctx, and claims it with the token of ctx as [Marks.Claim] does. It waits
// for transactions of the lock that the resource followed before; later ones are refused with a
// [*fence.OtherLockError]. Call it once when writers change to another lock, before they write under it.
//
// The error is a [*fence.StaleError] if the token is older than a mark: take a new grant of the lock, or raise its era
// if it is in another cluster. It matches [fence.ErrInvalidToken] if ctx carries no token of a writer, or a token with
// no name of a lock or several: choose one with [fence.ForLock]. Otherwise the errors are those of Claim.
func (m *Marks) Move(ctx context.Context, db *sql.DB, resource string) error {
	return m.made().Claim(ctx, db, resource, sqlmark.Mover)
}

// Check is the guard of the caller's own transaction. It must be the first statement. Until the transaction ends, no
// newer token is accepted and no other checked transaction of the resource runs. Check takes the token from ctx. A
// newer token raises the mark; a rollback undoes that. On MySQL call [Marks.Claim] first. Otherwise two kinds of
// Check delay claims of other resources until their transaction ends: the first Check of a resource and, at Serializable
// with [Options].Log, every Check that raises the mark.
//
// On any error roll back the transaction. The error is a [*fence.StaleError] if the token is older than a mark, and a
// [*fence.OtherLockError] if it is not of the lock that the resource follows. It matches [fence.ErrInvalidToken] if ctx
// carries no token of a writer, [ErrNoTable] if the table is missing, and [ErrUnclaimed] if the transaction's reads may
// be out of date: on PostgreSQL at repeatable read or serializable, if the tenure did not begin with [Marks.Claim]; on
// MySQL, if the transaction had read before the claim. Deadlocks and serialization failures are the driver's errors:
// begin the transaction again. Check repeats nothing.
func (m *Marks) Check(ctx context.Context, tx *sql.Tx, resource string) error {
	return m.made().Check(ctx, tx, resource, sqlmark.Writer, false)
}

// CheckShared is [Marks.Check] for concurrent transactions of one holder: it does not wait for transactions that were
// checked in the shared form with the same token. A newer Claim or Check waits for all of them. As without a fence, the
// isolation level governs their access to the same rows. CheckShared equals Check on SQLite, which has one writer at a
// time, and in a Galera cluster and MySQL's group replication, where shared locks are local to a node.
func (m *Marks) CheckShared(ctx context.Context, tx *sql.Tx, resource string) error {
	return m.made().Check(ctx, tx, resource, sqlmark.Writer, true)
}

// Do begins a transaction with the guard, runs fn in it and commits. While fn runs, no newer token is accepted and no
// other transaction of Do or Check for the resource runs. Do takes the token from ctx once.
//
// On success the transaction is committed. If fn fails or panics, or ctx ends before COMMIT, it is rolled back, and Do
// returns fn's error unchanged. The mark stays raised, because Do claims a newer token first, in a separate
// transaction. fn must not commit or roll back, must not run statements that do, such as DDL and TRUNCATE on MySQL, and
// must return the errors of its statements. Otherwise its writes are not fenced, and if it succeeds before ctx ends the
// error matches [ErrUnknown].
//
// fn may run more than once. If the database ends the transaction because of a deadlock or a serialization failure, in
// fn, in the guard or in COMMIT, Do begins a new transaction, within [Options].Attempts. So effects of fn outside of tx
// must be idempotent.
//
// The error is a [*fence.StaleError] if the token is older than a mark, and a [*fence.OtherLockError] if it is not of
// the lock that the resource follows; fn did not run in the refused transaction. It matches [fence.ErrInvalidToken] if
// ctx carries no token, [ErrNoTable] if the table is missing, and [ErrUnknown] if the answer to COMMIT was lost or fn
// has ended the transaction, which Do never repeats.
func (m *Marks) Do(ctx context.Context, db *sql.DB, resource string,
	fn func(ctx context.Context, tx *sql.Tx) error,
) error {
	return m.made().Do(ctx, db, resource, false, fn)
}

// DoShared is [Marks.Do] for concurrent transactions of one holder, see [Marks.CheckShared]. Claim the token first:
// transactions that claim it themselves may wait for each other.
func (m *Marks) DoShared(ctx context.Context, db *sql.DB, resource string,
	fn func(ctx context.Context, tx *sql.Tx) error,
) error {
	return m.made().Do(ctx, db, resource, true, fn)
}

// ClaimRead starts the tenure of a reader. Call it once after a grant of a read lock, before the first read of the
// resource. Repeating it is safe. ClaimRead takes the token from ctx, see [fence.ReadFromContext], and begins its own
// transactions on db.
//
// On success the read mark is at least the token. Transactions of older writers have ended, since ClaimRead waits for
// them, and no more are accepted. Readers do not refuse each other; on PostgreSQL and on SQLite with WAL ClaimRead does
// not wait for their transactions either. On a [*fence.StaleError] the marks are unchanged. On any other error the read
// mark may have been raised, and on PostgreSQL older writers may be refused.
//
// The error is a [*fence.StaleError] if the token is older than the write mark. Otherwise the errors are those of
// [Marks.Claim].
func (m *Marks) ClaimRead(ctx context.Context, db *sql.DB, resource string) error {
	return m.made().Claim(ctx, db, resource, sqlmark.Reader)
}

// CheckRead is the guard of a reader's own transaction. It must be the first statement. Until the transaction ends, no
// writer changes what it reads: older ones are refused, and newer ones wait, or on SQLite the transaction does not see
// their writes. What it has read is protected by the read lock only if CheckRead has accepted the token and COMMIT has
// succeeded. CheckRead takes the token from ctx, see [fence.ReadFromContext].
//
// After a [Marks.ClaimRead] the transactions of readers run side by side. Otherwise CheckRead raises the read mark,
// which lets in one reader at a time, and on MySQL may end in a deadlock, on SQLite in "database is locked"; a rollback
// undoes it. The transaction must not be read-only on PostgreSQL, nor on a standby, since the guard is a lock.
//
// On any error roll back the transaction. The error is a [*fence.StaleError] if the token is older than the write mark,
// and a [*fence.OtherLockError] if it is not of the lock that the resource follows. It matches [fence.ErrInvalidToken]
// if ctx carries no reader's token, [ErrNoTable] if the table is missing, and [ErrUnclaimed] if the transaction's reads
// may miss what older writers have written: on PostgreSQL at repeatable read or serializable, if the tenure did not
// begin with ClaimRead; on MySQL, if the transaction had read before the claim. Deadlocks and serialization failures
// are the driver's errors: begin the transaction again. CheckRead repeats nothing.
func (m *Marks) CheckRead(ctx context.Context, tx *sql.Tx, resource string) error {
	return m.made().Check(ctx, tx, resource, sqlmark.Reader, false)
}

// ClaimPath is [Marks.Claim] for a node of a tree of resources, with the token of a tree's lock on that node. It also
// fences earlier holders of the nodes above and below, and nobody on other branches. A path has a node at each slash
// and at its end: the nodes of "a/b/c" are "a", "a/b" and "a/b/c".
//
// On success the token is the write mark of the path's end, and the read marks of the nodes above are at least the
// token, as if it were a reader's there. Older transactions at the nodes have ended, as after Claim. The path's end
// follows the token's lock, and each node above follows its own lock in the tree. If the name of the token's lock does
// not tell the name of a lock above, the token is not refused there for that.
//
// The error is a [*fence.StaleError] that names the node if the token is older than the write mark of a node, or than
// one of the two marks of the path's end. A refusal changes nothing, unless a newer token comes during the call: then
// the nodes above may have been claimed. Otherwise the errors are those of Claim.
func (m *Marks) ClaimPath(ctx context.Context, db *sql.DB, path string) error {
	return m.made().ClaimPath(ctx, db, path)
}

// CheckPath is [Marks.Check] for a node of a tree of resources. [Marks.ClaimPath] must have succeeded before, since
// CheckPath raises no mark. Until the transaction ends, no newer token is accepted at the node, nor the newer token of
// a node above or below. Transactions of other branches run side by side. On PostgreSQL at repeatable read and above,
// and on MySQL, claims of other branches wait for it at the nodes above; in a cluster and on SQLite all paths with a
// node in common wait for each other.
//
// On any error roll back the transaction. The error matches [ErrUnclaimed] if the path was not claimed with the token,
// or if the transaction's reads may be out of date. Otherwise the errors are those of ClaimPath and Check.
func (m *Marks) CheckPath(ctx context.Context, tx *sql.Tx, path string) error {
	return m.made().CheckPath(ctx, tx, path)
}

// DefaultColumn is the default column of a [Row]'s fence.
const DefaultColumn = sqlmark.DefaultColumn // "fence"

// Row identifies a row with its fence in a column: a 64-bit integer, NOT NULL, initially 0.
type Row struct {
	Table  string // in the form of Options.Table, required
	Key    string // a unique column, required
	ID     any    // the value of Key, required
	Column string // of the fence; default [DefaultColumn]
}

// String returns the name of the row in errors, also as the resource of a [*fence.StaleError].
func (r Row) String() string { return sqlmark.Row(r).String() }

// UpdateRow changes one row if the token of ctx is not older than the row's, and stores the token in the row:
//
//	UPDATE table SET <set>, fence = token WHERE key = id AND fence <= token
//
// set is SQL such as `balance = balance - $1`, with args for its placeholders, which are numbered from 1. The update is
// one statement and atomic at every isolation level. Other statements follow only if it has changed no row. With a
// *sql.DB on MySQL they run in a transaction. UpdateRow needs no table of marks and no claim, and fences this row only:
// a stale holder can still write rows that its successor has not written, and its reads of other rows may be out of
// date. Readers raise no mark of a row, so they do not protect it. A row keeps no name of a lock, so the tokens of
// another lock are accepted. Use Do if that matters.
//
// On an error the row is unchanged, except if the error is the connection's or the context's, or matches [ErrUnknown],
// which means that the answer to COMMIT was lost. An update whose answer was lost may still take effect later, after a
// read that did not show it. So run it in a transaction of Do, or make it idempotent. The error is a
// [*fence.StaleError] if the row has a newer token. It matches [ErrNoRow] if there is no such row, and
// [fence.ErrInvalidToken] if ctx carries no token. UpdateRow does not repeat an update that has changed the row.
func (m *Marks) UpdateRow(ctx context.Context, q Queryer, row Row, set string, args ...any) error {
	e := m.made()
	if db, ok := q.(*sql.DB); ok && e.Dialect == sqlmark.MySQL {
		// With autocommit=0 a lone statement would never be committed. Also, the lookup must keep its lock on the row.
		return e.UpdateRowOn(ctx, db, sqlmark.Row(row), set, args...)
	}
	return e.UpdateRow(ctx, conn{q}, fit(q, Dialect(e.Dialect)), sqlmark.Row(row), set, args...)
}

// DefaultLog is the usual name of the audit trail's table, see [Options].
const DefaultLog = sqlmark.DefaultLog // "fencing_token_log"

// Query selects rows of an audit trail. The zero value selects the newest of all resources.
type Query struct {
	Resource     string    // empty for all resources
	Since, Until time.Time // zero for no bound
	Limit        int       // the newest tenures and the newest refusals, 1 to 100,000 each, default 1,000
}

// Release records the end of the tenure of ctx's token in the audit trail. ctx must not have ended; the token's tenure
// may have:
//
//	defer func() {
//		err = errors.Join(err, marks.Release(context.WithoutCancel(ctx), db, "ledger", audit.CauseOf(ctx)))
//	}()
//
// The cause is [audit.CauseExplicit], [audit.CauseExpired] or [audit.CauseRevoked], see [audit.CauseOf]. Release does
// not change a tenure whose end is recorded, for example because a newer token had reached the resource, and ignores
// one that is not in the trail. It affects the trail only: the mark stays, and the token remains valid.
func (m *Marks) Release(ctx context.Context, db *sql.DB, resource string, cause audit.Cause) error {
	return m.made().Release(ctx, db, resource, cause)
}

// LogRefusal records a refusal by [Marks.Check], [Marks.CheckShared], [Marks.CheckPath] or [Marks.UpdateRow] in the
// audit trail. Call it after the refused transaction was rolled back. Claim and Do record their refusals themselves.
// For nil, for an error without a [*fence.StaleError] and for the refusal of a reader, LogRefusal sends nothing. ctx is
// that of the refused call, or made from it: it has the holder's name.
func (m *Marks) LogRefusal(ctx context.Context, db *sql.DB, err error) error {
	return m.made().LogRefusal(ctx, db, err)
}

// History returns the tenures that overlap the time of the query and the refusals in it, both with the oldest first.
// The times are those of the database's clock.
//
// It reads the two tables one after the other. The error names the fault of the query, matches [ErrNoTable] if a table
// is missing, or is the driver's.
func (m *Marks) History(ctx context.Context, db *sql.DB, q Query) ([]audit.Tenure, []audit.Refusal, error) {
	return m.made().History(ctx, db, sqlmark.Query(q))
}
