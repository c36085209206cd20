package pgxfence

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/sqlmark"
)

// DefaultLog is the usual table of an audit trail, see [Options].
const DefaultLog = sqlmark.DefaultLog // "fencing_token_log"

// Query is what to read of an audit trail. The zero value is the newest of all.
type Query struct {
	Resource     string    // of all resources if empty
	Since, Until time.Time // what was going on between them; unbounded if zero
	Limit        int       // tenures and refusals, each the newest: 1 to 100,000, default 1,000
}

// Release ends the tenure of ctx's token in the audit trail. The context has to be alive and to carry the token of one that
// may have ended:
//
//	defer marks.Release(context.WithoutCancel(ctx), db, "ledger", fence.CauseOf(ctx))
//
// The cause is [fence.Explicit], [fence.Expired] or [fence.Revoked], see [fence.CauseOf]. A tenure whose end is recorded, for
// a newer token had reached the resource, stays as it is, and one that is not in the trail is none. It is an entry for
// people, and changes nothing for anybody else: the mark stays, and the token can be used on.
func (f *Fence) Release(ctx context.Context, db DB, resource string, cause fence.Cause) error {
	t, err := f.admission(ctx, resource)
	if err != nil {
		return err
	}
	if err := checkDB(db); err != nil {
		return err
	}
	return f.engine.Release(ctx, newDatabase(db, f.txOpts), resource, t, cause)
}

// LogRefusal writes a refusal by [Fence.Check], [Fence.CheckShared] or [Fence.UpdateRow] into the audit trail: call it after
// the transaction that was refused has been rolled back. Claim and Do do so themselves. An error that is not a
// [*fence.StaleError], nil among them, is none: nothing is sent.
func (f *Fence) LogRefusal(ctx context.Context, db DB, err error) error {
	if err := f.made(); err != nil {
		return err
	}
	if err := checkDB(db); err != nil {
		return err
	}
	return f.engine.LogRefusal(ctx, newDatabase(db, f.txOpts), err)
}

// History answers who held what when, and who was refused: the tenures that were going on in the time of the query, and
// the refusals in it, both with the oldest first. The times are those of the database's clock.
//
// It reads the two tables one after the other. The error names what is wrong with the query, matches [ErrNoTable] if a table
// is missing, or is the server's.
func (f *Fence) History(ctx context.Context, db Reader, q Query) ([]fence.Tenure, []fence.Refusal, error) {
	if err := f.made(); err != nil {
		return nil, nil, err
	}
	if db == nil {
		return nil, nil, errors.New("pgxfence: db is nil, want a *pgxpool.Pool, *pgxpool.Conn, *pgx.Conn or pgx.Tx")
	}
	return f.engine.History(ctx, source{db}, sqlmark.Query(q))
}

// Reader is what [Fence.History] reads through: a *pgxpool.Pool, a *pgxpool.Conn, a *pgx.Conn or a pgx.Tx.
type Reader interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// source reads rows for the engine.
type source struct{ db Reader }

func (s source) Query(ctx context.Context, scan func(sqlmark.Scanner) error, query string, args ...any) error {
	rows, err := s.db.Query(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := scan(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}
