package sqlfence

import (
	"context"
	"database/sql"
	"errors"

	"github.com/leasefence/leasefence/fence/internal/sqlmark"
)

// ClaimRead starts the tenure of a reader. Call it once after a grant of a read lock, before the first read of the
// resource. Repeating it is safe. ClaimRead takes the token from ctx, see [fence.ReadFromContext], and begins its own
// transactions on db.
//
// On success the read mark is at least the token. Transactions of older writers have ended, since ClaimRead waits for
// them, and no more are accepted. Readers do not refuse each other; on PostgreSQL and SQLite ClaimRead does not wait
// for their transactions either. On a [*fence.StaleError] the marks are unchanged. On any other error the read mark may
// have been raised, and on PostgreSQL older writers may be refused.
//
// The error is a [*fence.StaleError] if the token is older than the write mark. Otherwise the errors are those of
// [Marks.Claim].
func (m *Marks) ClaimRead(ctx context.Context, db *sql.DB, resource string) error {
	c, err := m.readAdmission(ctx, resource)
	if err != nil {
		return err
	}
	if err := m.checkDB(db); err != nil {
		return err
	}
	return m.engine.Claim(ctx, m.database(db), resource, c)
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
	c, err := m.readAdmission(ctx, resource)
	if err != nil {
		return err
	}
	if tx == nil {
		return errors.New("sqlfence: tx is nil, want a *sql.Tx")
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
