package sqlmark

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/leasefence/leasefence/fence"
)

// errBehind ends an attempt whose token would change the marks: it is newer, or the first with the name of a lock.
var errBehind = errors.New("sqlmark: token is newer than the mark")

// errUnsettled ends an attempt whose snapshot may be older than the end of a transaction that its guard has waited for.
// Transactions with the same token, in the shared form or at a lower level, do not change the mark, so nothing else
// detects this. The next attempt has a newer snapshot: Do sees the writes of all earlier calls, also of those whose
// outcome is unknown.
var errUnsettled = errors.New("sqlmark: snapshot may be older than what was waited for")

// overtakenError is the error of a guard that has waited for another transaction's lock on the mark, and whose snapshot
// is older than that transaction's COMMIT.
type overtakenError struct{ error }

// Do begins a transaction with the guard, in the shared form if shared is set, runs fn in it and commits. It begins
// again after a server's rollback.
func (e *Engine[D, T]) Do(ctx context.Context, db D, resource string, shared bool, fn func(ctx context.Context, tx T) error) error {
	c, err := e.admit(ctx, resource, Writer, e.lib.FitDB(db))
	if err != nil {
		return err
	}
	if fn == nil {
		return fmt.Errorf("%s: do %q: fn is nil, want a function", e.Package, resource)
	}
	claimed, settled := false, shared
	ran := false // whether fn ran in the last attempt, so that the token was accepted
	err = e.retry(ctx, func() error {
		for {
			ran = false
			err := e.attempt(ctx, db, resource, c, shared, settled, func(ctx context.Context, tx T) error {
				ran = true
				return fn(ctx, tx)
			})
			switch {
			case errors.Is(err, errUnsettled):
				settled = true
			case errors.Is(err, errBehind) && claimed:
				return fmt.Errorf("%s: do %q: %w", e.Package, resource, errMoved)
			case errors.Is(err, errBehind):
				// The transaction's snapshot may be from before its lock on the mark, see the store. After the commit
				// of the claim the next snapshot is newer.
				if err := e.claimOnce(ctx, db, resource, c); err != nil {
					return err
				}
				claimed, settled = true, true
			default:
				return err
			}
		}
	})
	if ran {
		_ = e.tell(ctx, resource, c, nil)
		return err
	}
	return e.tell(ctx, resource, c, err)
}

// attempt is one transaction.
func (e *Engine[D, T]) attempt(ctx context.Context, db D, resource string, c Claimant, shared, settled bool,
	fn func(ctx context.Context, tx T) error,
) error {
	tx, err := e.lib.Begin(ctx, db, false)
	if err != nil {
		return fmt.Errorf("%s: do %q: begin: %w", e.Package, resource, err)
	}
	// After COMMIT this does nothing. If it fails, the driver closes the connection and the server rolls back.
	defer func() { _ = e.lib.Rollback(ctx, tx) }()
	q := e.lib.Conn(tx)

	seen, err := e.store.lock(ctx, q, resource, c, shared)
	if err != nil {
		overtaken := e.Dialect == PostgreSQL && sqlState(err) == serializationFailure
		if err = e.explain("do", resource, err); overtaken {
			return overtakenError{err}
		}
		return err
	}
	if refused := seen.withAnnounced(c).Refuse(resource, c); refused != nil {
		return e.refused("do", resource, refused, func(stale *fence.StaleError) error {
			if err := e.trail.stale(ctx, q, stale); err != nil {
				return err
			}
			return e.lib.Commit(ctx, tx)
		})
	}
	if !seen.has(c) {
		return errBehind
	}
	if seen.snapshot && !settled {
		return errUnsettled
	}
	if err := e.store.base().leave(ctx, q, resource, seen); err != nil {
		return e.explain("do", resource, err)
	}
	pin, err := e.store.pin(ctx, q)
	if err != nil {
		return e.explain("do", resource, err)
	}
	if err := fn(ctx, tx); err != nil {
		return err
	}
	same, err := e.store.pinned(ctx, q, pin)
	switch {
	// Check ctx here, so that a context that has ended is not mistaken for a COMMIT without an answer.
	case ctx.Err() != nil:
		return fmt.Errorf("%s: do %q: not committed: %w", e.Package, resource, context.Cause(ctx))
	case e.lib.Ended(err): // COMMIT returns the same
	case err != nil:
		return fmt.Errorf("%s: do %q: not committed: %w", e.Package, resource, err)
	case !same:
		return fmt.Errorf("%s: %w: do %q: the transaction ended while fn ran, by DDL, TRUNCATE, LOCK TABLES, COMMIT or "+
			"ROLLBACK, or by a deadlock whose error fn has not returned: what fn wrote may be committed, in part and unfenced",
			e.Package, ErrUnknown, resource)
	}
	return e.commit(ctx, tx, fmt.Sprintf("do %q", resource))
}

func (e *Engine[D, T]) commit(ctx context.Context, tx T, what string) error {
	err := e.lib.Commit(ctx, tx)
	switch {
	case err == nil:
		return nil
	case e.lib.Ended(err):
		return fmt.Errorf("%s: %w: %s: fn has ended the transaction, or the context has: %w", e.Package, ErrUnknown, what, err)
	case slices.Contains([]kind{transient, undone}, e.store.kind(err)) || e.lib.Unsent(err):
		return fmt.Errorf("%s: %s: not committed: %w", e.Package, what, err)
	default:
		return fmt.Errorf("%s: %w: %s: commit: %w", e.Package, ErrUnknown, what, err)
	}
}

// repeatable reports whether a transaction that ended with err can begin again.
func (e *Engine[D, T]) repeatable(err error) bool {
	return !errors.Is(err, ErrUnknown) && (e.store.kind(err) == transient || errors.Is(err, errUndone))
}

// Conn runs statements: on a pool, a connection or in a transaction.
type Conn interface {
	// Exec returns the number of rows that the statement has changed.
	Exec(ctx context.Context, query string, args ...any) (int64, error)

	// QueryRow returns the first row. If there is none, the error of its Scan matches sql.ErrNoRows.
	QueryRow(ctx context.Context, query string, args ...any) Scanner
}

// Scanner is a row or an error.
type Scanner interface {
	Scan(dest ...any) error
}

// Library is a client library with pools of type D and transactions of type T. The engine sends every statement in a
// transaction. With autocommit=0 in a DSN a lone statement is never committed and leaves its locks and its snapshot on
// the connection. A proxy may send a lone SELECT to a replica that lags.
type Library[D, T any] interface {
	// FitDB and FitTx return an error for a pool or a transaction that cannot be used. They send nothing.
	FitDB(db D) error
	FitTx(tx T) error

	// Begin begins a transaction at the level in the adapter's options. With newest its writes see all earlier commits
	// and do not fail because of them.
	Begin(ctx context.Context, db D, newest bool) (T, error)

	Conn(tx T) Conn

	// Rows calls scan for each row of a query and stops at the first error.
	Rows(ctx context.Context, tx T, scan func(Scanner) error, query string, args ...any) error

	Commit(ctx context.Context, tx T) error

	// Rollback does nothing after Commit or Rollback. It must work when ctx has ended.
	Rollback(ctx context.Context, tx T) error

	// Ended reports whether an error is that of a transaction that has already ended.
	Ended(err error) bool

	// Unsent reports whether an error of Commit came before anything was sent to the server.
	Unsent(err error) bool
}

// within runs fn in a separate transaction that sees the newest commits, and commits.
func (e *Engine[D, T]) within(ctx context.Context, db D, fn func(tx Conn) error) error {
	return e.inside(ctx, db, func(tx T) error { return fn(e.lib.Conn(tx)) })
}

// inside is within for those who need the library's transaction.
func (e *Engine[D, T]) inside(ctx context.Context, db D, fn func(tx T) error) error {
	tx, err := e.lib.Begin(ctx, db, true)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	// After COMMIT this does nothing. If it fails, the driver closes the connection and the server rolls back.
	defer func() { _ = e.lib.Rollback(ctx, tx) }()
	if err := fn(tx); err != nil {
		return err
	}
	return e.lib.Commit(ctx, tx)
}
