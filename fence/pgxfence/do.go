package pgxfence

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Do begins a transaction with the guard, runs fn in it and commits. While fn runs, no newer token is accepted and no
// other transaction of Do or Check for the resource runs. Do takes the token from ctx once.
//
// On success the transaction is committed. If fn fails or panics, or ctx ends before COMMIT, it is rolled back, and Do
// returns fn's error unchanged. The mark stays raised, because Do claims a newer token first, in a separate
// transaction. fn must not commit or roll back tx, also not by an SQL statement. It may use nested transactions from
// tx.Begin. If fn ignores the failure of a statement outside of them, COMMIT rolls back: pgx.ErrTxCommitRollback.
//
// fn may run more than once. If the database ends the transaction because of a deadlock or a serialization failure, in
// fn, in the guard or in COMMIT, Do begins a new transaction, within [Options].Attempts. So effects of fn outside of tx
// must be idempotent.
//
// The error is a [*fence.StaleError] if the token is older than a mark, and a [*fence.OtherLockError] if it is not of
// the lock that the resource follows; fn did not run in the refused transaction. It matches [fence.ErrInvalidToken] if
// ctx carries no token, [ErrNoTable] if the table is missing, and [ErrUnknown] if the answer to COMMIT was lost or fn
// has ended the transaction, which Do never repeats.
//
// With a *pgx.Conn or *pgxpool.Conn no other goroutine may use the connection until Do returns, and fn must use tx.
func (m *Marks) Do(ctx context.Context, db DB, resource string, fn func(ctx context.Context, tx pgx.Tx) error) error {
	return m.do(ctx, db, resource, false, fn)
}

// DoShared is [Marks.Do] for concurrent transactions of one holder, see [Marks.CheckShared]. Claim the token first:
// transactions that claim it themselves may wait for each other.
func (m *Marks) DoShared(ctx context.Context, db DB, resource string,
	fn func(ctx context.Context, tx pgx.Tx) error,
) error {
	return m.do(ctx, db, resource, true, fn)
}

func (m *Marks) do(ctx context.Context, db DB, resource string, shared bool,
	fn func(ctx context.Context, tx pgx.Tx) error,
) error {
	c, err := m.admission(ctx, resource)
	if err != nil {
		return err
	}
	if err := checkDB(db); err != nil {
		return err
	}
	if fn == nil {
		return fmt.Errorf("pgxfence: do %q: fn is nil, want a function", resource)
	}
	return m.engine.Do(ctx, database{db, m.txOpts}, resource, c, shared,
		func(ctx context.Context, tx transaction) error { return fn(ctx, tx.tx) })
}
