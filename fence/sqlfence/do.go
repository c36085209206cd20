package sqlfence

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/leasefence/leasefence/fence"
)

// errBehind ends an attempt whose token is newer than the mark.
var errBehind = errors.New("sqlfence: token is newer than the mark")

// Do runs fn in a transaction that the guard has opened, and commits it. While fn runs no newer token gets past the
// mark, and no other transaction of Do or Check for the resource runs. The token is taken from ctx, once.
//
// On success the transaction is committed. If fn fails or panics, or ctx ends before the COMMIT, it is rolled back and
// fn's error is returned as it is. The mark stays raised, for a token that is newer than the mark is claimed first, in
// a transaction of its own. fn must neither commit nor roll back, and must return the errors of its statements.
//
// fn may run more than once: the database can end a transaction for a deadlock or a serialization failure, in fn, in
// the guard or in the COMMIT, and Do then begins again with a new transaction, as often as [Options].Attempts says. So
// what fn does outside of tx must stand being repeated.
//
// The error is a [*fence.StaleError] if the token is older than the mark; fn has not run then in the transaction that
// was refused. It matches [fence.ErrInvalidToken] if ctx carries no token, [ErrNoTable] if the table is missing, and
// [ErrUnknown] if the answer to COMMIT was lost, which Do never repeats.
func (f *Fence) Do(ctx context.Context, db *sql.DB, resource string,
	fn func(ctx context.Context, tx *sql.Tx) error,
) error {
	return f.do(ctx, db, resource, false, fn)
}

// DoShared is [Fence.Do] for transactions of one holder that are to run side by side, see [Fence.CheckShared]. They do
// once the token has been claimed: those that claim it themselves may wait for each other.
func (f *Fence) DoShared(ctx context.Context, db *sql.DB, resource string,
	fn func(ctx context.Context, tx *sql.Tx) error,
) error {
	return f.do(ctx, db, resource, true, fn)
}

func (f *Fence) do(ctx context.Context, db *sql.DB, resource string, shared bool,
	fn func(ctx context.Context, tx *sql.Tx) error,
) error {
	t, err := f.admission(ctx, resource)
	if err != nil {
		return err
	}
	if err := f.checkDB(db); err != nil {
		return err
	}
	if fn == nil {
		return fmt.Errorf("sqlfence: do %q: fn is nil, want a function", resource)
	}
	return f.retry(ctx, func() error {
		err := f.attempt(ctx, db, resource, t, shared, fn)
		if !errors.Is(err, errBehind) {
			return err
		}
		// The transaction may have a snapshot from before it got the mark, see the store. Once the claim is committed,
		// the next one cannot.
		if err := f.claim(ctx, db, resource, t); err != nil {
			return err
		}
		err = f.attempt(ctx, db, resource, t, shared, fn)
		if errors.Is(err, errBehind) {
			return fmt.Errorf("sqlfence: do %q: %w", resource, errMoved)
		}
		return err
	})
}

// attempt is one transaction.
func (f *Fence) attempt(ctx context.Context, db *sql.DB, resource string, t fence.Token, shared bool,
	fn func(ctx context.Context, tx *sql.Tx) error,
) error {
	tx, err := db.BeginTx(ctx, f.txOpts)
	if err != nil {
		return fmt.Errorf("sqlfence: do %q: begin: %w", resource, err)
	}
	// After a COMMIT it does nothing. If it fails the driver gives the connection up, and the server rolls back.
	defer func() { _ = tx.Rollback() }()

	seen, err := f.store.lock(ctx, tx, resource, t, shared)
	if err != nil {
		return f.explain("do", resource, err)
	}
	if err := refuse(resource, t, seen.mark); err != nil {
		return err
	}
	if seen.mark < t {
		return errBehind
	}
	if err := fn(ctx, tx); err != nil {
		return err
	}
	// Looked at here, so that a context that has ended by now is not taken for a COMMIT without an answer.
	if ctx.Err() != nil {
		return fmt.Errorf("sqlfence: do %q: not committed: %w", resource, context.Cause(ctx))
	}
	return f.commit(tx, resource)
}

func (f *Fence) commit(tx *sql.Tx, resource string) error {
	err := tx.Commit()
	switch {
	case err == nil:
		return nil
	case errors.Is(err, sql.ErrTxDone):
		return fmt.Errorf("%w: do %q: fn has ended the transaction, or the context has: %w", ErrUnknown, resource, err)
	case f.store.undone(err):
		return fmt.Errorf("sqlfence: do %q: not committed: %w", resource, err)
	default:
		return fmt.Errorf("%w: do %q: commit: %w", ErrUnknown, resource, err)
	}
}

// repeatable reports whether a transaction that ended with err can begin again.
func (f *Fence) repeatable(err error) bool {
	return !errors.Is(err, ErrUnknown) && f.store.transient(err)
}
