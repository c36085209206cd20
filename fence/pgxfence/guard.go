package pgxfence

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
)

// Claim installs a tenure: call it once after a grant, before the tenure's first read of the resource. Repeating it
// does no harm. It takes the token from ctx and a transaction of its own from db.
//
// On success the token is the mark: no transaction with an older one is accepted from then on, and those that were
// accepted before have ended, for Claim waits for them. On a [*fence.StaleError] the mark is unchanged. On any other
// error the mark may have been raised or not.
//
// The error is a [*fence.StaleError] if the token is older than the mark, and matches [fence.ErrInvalidToken] if ctx
// carries none, [ErrNoTable] if the table is missing. A deadlock or a serialization failure is repeated, as often as
// [Options].Attempts says.
func (f *Fence) Claim(ctx context.Context, db DB, resource string) error {
	t, err := f.admission(ctx, resource)
	if err != nil {
		return err
	}
	if err := checkDB(db); err != nil {
		return err
	}
	return f.engine.Claim(ctx, newDatabase(db, f.txOpts), resource, t)
}

// Check is the guard of a transaction of the caller's own. It has to be the first statement: then no newer token gets
// past the mark, and no other transaction with a check of the resource runs, until the transaction has ended. It takes
// the token from ctx; one that is newer than the mark raises it, which is undone if the transaction is. In a nested
// transaction, which is a savepoint, the guard lasts until that is rolled back.
//
// On any error roll the transaction back. The error is a [*fence.StaleError] if the token is older than the mark. It
// matches [fence.ErrInvalidToken] if ctx carries no token, [ErrNoTable] if the table is missing, and [ErrUnclaimed] if
// what the transaction reads may be out of date: at repeatable read or serializable, when the tenure has not begun with
// [Fence.Claim]. Deadlocks and serialization failures are a *pgconn.PgError of code 40P01 or 40001: they mean that the
// transaction has to begin again. Check repeats nothing.
func (f *Fence) Check(ctx context.Context, tx pgx.Tx, resource string) error {
	return f.check(ctx, tx, resource, false)
}

// CheckShared is [Fence.Check] for transactions of one holder that are to run side by side: it waits for none that was
// checked in the shared form with the same token. A newer Claim or Check waits for them all. What they do to the same
// rows is up to the isolation level, as without a fence.
func (f *Fence) CheckShared(ctx context.Context, tx pgx.Tx, resource string) error {
	return f.check(ctx, tx, resource, true)
}

func (f *Fence) check(ctx context.Context, tx pgx.Tx, resource string, shared bool) error {
	t, err := f.admission(ctx, resource)
	if err != nil {
		return err
	}
	if absent(tx) {
		return errors.New("pgxfence: tx is nil, want a pgx.Tx that has begun")
	}
	return f.engine.Check(ctx, conn{tx}, resource, t, shared)
}
