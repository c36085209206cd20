package pgxfence

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Do runs fn in a transaction that the guard has opened, and commits it. While fn runs no newer token gets past the
// mark, and no other transaction of Do or Check for the resource runs. The token is taken from ctx, once.
//
// On success the transaction is committed. If fn fails or panics, or ctx ends before the COMMIT, it is rolled back and
// fn's error is returned as it is. The mark stays raised, for a token that is newer than the mark is claimed first, in
// a transaction of its own. fn must neither commit nor roll back tx; nested transactions, which tx.Begin returns, are
// its own. If a statement outside of them fails and fn goes on, the COMMIT rolls back: pgx.ErrTxCommitRollback.
//
// fn may run more than once: the database can end a transaction for a deadlock or a serialization failure, in fn, in
// the guard or in the COMMIT, and Do then begins again with a new transaction, as often as [Options].Attempts says. So
// what fn does outside of tx must stand being repeated.
//
// The error is a [*fence.StaleError] if the token is older than the mark; fn has not run then in the transaction that
// was refused. It matches [fence.ErrInvalidToken] if ctx carries no token, [ErrNoTable] if the table is missing, and
// [ErrUnknown] if the answer to COMMIT was lost, which Do never repeats.
//
// With a *pgx.Conn or *pgxpool.Conn nobody else may use the connection until Do returns, and fn only through tx.
func (f *Fence) Do(ctx context.Context, db DB, resource string, fn func(ctx context.Context, tx pgx.Tx) error) error {
	return f.do(ctx, db, resource, false, fn)
}

// DoShared is [Fence.Do] for transactions of one holder that are to run side by side, see [Fence.CheckShared]. They do
// once the token has been claimed: those that claim it themselves may wait for each other.
func (f *Fence) DoShared(ctx context.Context, db DB, resource string,
	fn func(ctx context.Context, tx pgx.Tx) error,
) error {
	return f.do(ctx, db, resource, true, fn)
}

func (f *Fence) do(ctx context.Context, db DB, resource string, shared bool,
	fn func(ctx context.Context, tx pgx.Tx) error,
) error {
	t, err := f.admission(ctx, resource)
	if err != nil {
		return err
	}
	if err := checkDB(db); err != nil {
		return err
	}
	if fn == nil {
		return fmt.Errorf("pgxfence: do %q: fn is nil, want a function", resource)
	}
	return f.engine.Do(ctx, newDatabase(db, f.txOpts), resource, t, shared,
		func(ctx context.Context, tx transaction) error { return fn(ctx, tx.tx) })
}
