package pgxfence

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/leasefence/leasefence/fence/internal/sqlmark"
)

// ClaimRead starts the tenure of a reader. Call it once after a grant of a read lock, before the first read of the
// resource. Repeating it is safe. ClaimRead takes the token from ctx, see [fence.ReadFromContext], and begins its own
// transactions on db.
//
// On success the read mark is at least the token. Transactions of older writers have ended, since ClaimRead waits for
// them, and no more are accepted. Readers do not refuse each other, and ClaimRead does not wait for their transactions.
// On a [*fence.StaleError] the marks are unchanged. On any other error the read mark may have been raised, and older
// writers may be refused.
//
// The error is a [*fence.StaleError] if the token is older than the write mark. Otherwise the errors are those of
// [Marks.Claim].
func (m *Marks) ClaimRead(ctx context.Context, db DB, resource string) error {
	c, err := m.readAdmission(ctx, resource)
	if err != nil {
		return err
	}
	if err := checkDB(db); err != nil {
		return err
	}
	return m.engine.Claim(ctx, database{db, m.txOpts}, resource, c)
}

// CheckRead is the guard of a reader's own transaction. It must be the first statement. Until the transaction ends, no
// writer changes what it reads: older ones are refused, and newer ones wait. What it has read is protected by the read
// lock only if CheckRead has accepted the token. CheckRead takes the token from ctx, see [fence.ReadFromContext].
//
// After a [Marks.ClaimRead] the transactions of readers run side by side. Otherwise CheckRead raises the read mark,
// which lets in one reader at a time; a rollback undoes that. The transaction must not be read-only, nor on a standby,
// since the guard is a lock. In a nested transaction, which is a savepoint, the guard lasts until a rollback to the
// savepoint.
//
// On any error roll back the transaction. The error is a [*fence.StaleError] if the token is older than the write mark,
// and a [*fence.OtherLockError] if it is not of the lock that the resource follows. It matches [fence.ErrInvalidToken]
// if ctx carries no reader's token, [ErrNoTable] if the table is missing, and [ErrUnclaimed] if the transaction's reads
// may miss what older writers have written: at repeatable read or serializable, if the tenure did not begin with
// ClaimRead. Deadlocks and serialization failures are a *pgconn.PgError with the code 40P01 or 40001: begin the
// transaction again. CheckRead repeats nothing.
func (m *Marks) CheckRead(ctx context.Context, tx pgx.Tx, resource string) error {
	c, err := m.readAdmission(ctx, resource)
	if err != nil {
		return err
	}
	if absent(tx) {
		return errors.New("pgxfence: tx is nil, want a pgx.Tx that has begun")
	}
	return m.engine.CheckRead(ctx, conn{tx}, resource, c)
}

// readAdmission is admission for a reader's token.
func (m *Marks) readAdmission(ctx context.Context, resource string) (sqlmark.Claimant, error) {
	if err := m.made(); err != nil {
		return sqlmark.Claimant{}, err
	}
	return m.engine.AdmitRead(ctx, resource)
}
