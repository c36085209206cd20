package pgxfence

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
)

// Claim starts a tenure. Call it once after a grant, before the first read of the resource. Repeating it is safe. Claim
// takes the token from ctx and begins its own transactions on db.
//
// On success the token is the mark. Transactions with older tokens have ended, readers' too, since Claim waits for
// them, and no more are accepted. On a [*fence.StaleError] the mark is unchanged. On any other error the mark may have
// been raised, and older tokens may be refused.
//
// The error is a [*fence.StaleError] if the token is older than a mark, and a [*fence.OtherLockError] if it is not of
// the lock that the resource follows, see Locks in the package's documentation. It matches [fence.ErrInvalidToken] if
// ctx carries no token of a writer, and [ErrNoTable] if the table is missing. After a deadlock or a serialization
// failure Claim begins again, within [Options].Attempts.
func (m *Marks) Claim(ctx context.Context, db DB, resource string) error {
	c, err := m.admission(ctx, resource)
	if err != nil {
		return err
	}
	if err := checkDB(db); err != nil {
		return err
	}
	return m.engine.Claim(ctx, database{db, m.txOpts}, resource, c)
}

// Move makes the resource follow the lock of ctx, and claims it with the token of ctx as [Marks.Claim] does. It waits
// for transactions of the lock that the resource followed before; later ones are refused with a
// [*fence.OtherLockError]. Call it once when writers change to another lock, before they write under it.
//
// The error is a [*fence.StaleError] if the token is older than a mark: take a new grant of the lock, or raise its era
// if it is in another cluster. It matches [fence.ErrInvalidToken] if ctx carries no token of a writer, or a token with
// no name of a lock or several: choose one with [fence.ForLock]. Otherwise the errors are those of Claim.
func (m *Marks) Move(ctx context.Context, db DB, resource string) error {
	if err := m.made(); err != nil {
		return err
	}
	c, err := m.engine.AdmitMove(ctx, resource)
	if err != nil {
		return err
	}
	if err := checkDB(db); err != nil {
		return err
	}
	return m.engine.Claim(ctx, database{db, m.txOpts}, resource, c)
}

// Check is the guard of the caller's own transaction. It must be the first statement. Until the transaction ends, no
// newer token is accepted and no other checked transaction of the resource runs. Check takes the token from ctx. A
// newer token raises the mark; a rollback undoes that. In a nested transaction, which is a savepoint, the guard lasts
// until a rollback to the savepoint.
//
// On any error roll back the transaction. The error is a [*fence.StaleError] if the token is older than a mark, and a
// [*fence.OtherLockError] if it is not of the lock that the resource follows. It matches [fence.ErrInvalidToken] if ctx
// carries no token of a writer, [ErrNoTable] if the table is missing, and [ErrUnclaimed] if the transaction's reads may
// be out of date: at repeatable read or serializable, if the tenure did not begin with [Marks.Claim]. Deadlocks and
// serialization failures are a *pgconn.PgError with the code 40P01 or 40001: begin the transaction again. Check repeats
// nothing.
func (m *Marks) Check(ctx context.Context, tx pgx.Tx, resource string) error {
	return m.check(ctx, tx, resource, false)
}

// CheckShared is [Marks.Check] for concurrent transactions of one holder: it does not wait for transactions that were
// checked in the shared form with the same token. A newer Claim or Check waits for all of them. As without a fence, the
// isolation level governs their access to the same rows.
func (m *Marks) CheckShared(ctx context.Context, tx pgx.Tx, resource string) error {
	return m.check(ctx, tx, resource, true)
}

func (m *Marks) check(ctx context.Context, tx pgx.Tx, resource string, shared bool) error {
	c, err := m.admission(ctx, resource)
	if err != nil {
		return err
	}
	if absent(tx) {
		return errors.New("pgxfence: tx is nil, want a pgx.Tx that has begun")
	}
	return m.engine.Check(ctx, conn{tx}, resource, c, shared)
}
