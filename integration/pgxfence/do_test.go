package pgxfence_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/pgxfence"
)

// Two functions lock two rows in opposite order. The server ends one of them, and Do runs it again.
func TestDo_deadlockIsRepeated(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		t.Helper()
		r.exec(t, "INSERT INTO data VALUES (2, 0, 0, 0, 0)")
		met := make(chan struct{})
		results := make(chan error, 2)
		runs := make(chan int, 100)
		for i, rows := range [][2]int{{1, 2}, {2, 1}} {
			go func() {
				first := true
				name := fmt.Sprintf("%s %d", resource, i) // else the guard keeps the two apart
				results <- r.f.Do(as(t, older), r.pool, name, func(ctx context.Context, tx pgx.Tx) error {
					runs <- i
					for _, id := range rows {
						if _, err := tx.Exec(ctx, fmt.Sprintf("UPDATE data SET n = n + 1 WHERE id = %d", id)); err != nil {
							return err
						}
						if first {
							first = false
							select { // each has one row now
							case met <- struct{}{}:
							case <-met:
							}
						}
					}
					return nil
				})
			}()
		}
		require.NoError(t, <-results)
		require.NoError(t, <-results)
		require.Greater(t, len(runs), 2, "there was no deadlock")
		require.EqualValues(t, 2, r.row(t).n)
	})
}

// What Do does when fn does not succeed: nothing is written, the error is fn's, and the token has been seen.
func TestDo_functionFails(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		t.Helper()
		failure := errors.New("no more money")
		err := r.f.Do(as(t, newer), r.pool, resource, func(ctx context.Context, tx pgx.Tx) error {
			require.NoError(t, write(ctx, tx, 0, newer))
			return failure
		})
		require.Equal(t, failure, err)
		require.PanicsWithValue(t, "mine", func() {
			_ = r.f.Do(as(t, newer), r.pool, resource, func(ctx context.Context, tx pgx.Tx) error {
				require.NoError(t, write(ctx, tx, 0, newer))
				panic("mine")
			})
		})
		err = r.f.Do(as(t, newer), r.pool, resource, func(ctx context.Context, tx pgx.Tx) error {
			require.NoError(t, write(ctx, tx, 0, newer))
			_, err := tx.Exec(ctx, "SELECT 1/0")
			require.Error(t, err)
			return nil
		})
		require.ErrorIs(t, err, pgx.ErrTxCommitRollback)
		require.NotErrorIs(t, err, pgxfence.ErrUnknown, "it is known")
		require.ErrorIs(t, r.f.Do(as(t, newer), r.pool, resource, func(ctx context.Context, tx pgx.Tx) error {
			return tx.Rollback(ctx)
		}), pgxfence.ErrUnknown, "fn has ended the transaction")
		require.Zero(t, r.row(t).n)
		require.Zero(t, r.pool.Stat().AcquiredConns(), "a connection is not given back")
		requireRefused(t, r.increment(as(t, older), do, nowhere), do)
	})
}

// The context ends between two statements: nothing is committed, and the connection serves on.
func TestDo_contextEndsBeforeCommit(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		t.Helper()
		require.NoError(t, r.f.Claim(as(t, older), r.pool, resource))
		gone := errors.New("the lock has gone")
		opened := r.pool.Stat().NewConnsCount()
		ctx, cancel := context.WithCancelCause(as(t, older))
		err := r.f.Do(ctx, r.pool, resource, func(ctx context.Context, tx pgx.Tx) error {
			require.NoError(t, write(ctx, tx, 0, older))
			cancel(gone)
			return nil
		})
		require.ErrorIs(t, err, gone)
		require.NotErrorIs(t, err, pgxfence.ErrUnknown, "nothing was sent")
		require.Zero(t, r.row(t).n)
		require.Equal(t, opened, r.pool.Stat().NewConnsCount(), "the connection was closed")
	})
}

// The context ends in a statement of fn, for which pgx closes the connection. The successor waits for its end.
func TestDo_contextEndsInAStatement(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		t.Helper()
		ctx, cancel := context.WithCancel(as(t, older))
		err := r.f.Do(ctx, r.pool, resource, func(ctx context.Context, tx pgx.Tx) error {
			require.NoError(t, write(ctx, tx, 0, older))
			go func() {
				defer cancel()
				r.awaitSleeper(ctx)
			}()
			_, err := tx.Exec(ctx, "SELECT pg_sleep(3600)")
			return err
		})
		require.ErrorIs(t, err, context.Canceled)
		require.NotErrorIs(t, err, pgxfence.ErrUnknown, "nothing was sent")
		require.NoError(t, r.f.Claim(as(t, newer), r.pool, resource))
		require.Zero(t, r.row(t).n)
	})
}

// awaitSleeper returns when a statement sleeps, or ctx ends.
func (r *rig) awaitSleeper(ctx context.Context) {
	for n := 0; n == 0 && ctx.Err() == nil; {
		_ = r.pool.QueryRow(ctx, "SELECT count(*) FROM pg_stat_activity "+
			"WHERE datname = current_database() AND wait_event = 'PgSleep'").Scan(&n)
	}
}

// What pgx has besides statements goes under the guard as well.
func TestDo_batchCopyAndSavepoint(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		t.Helper()
		body := func(ctx context.Context, tx pgx.Tx) error {
			var batch pgx.Batch
			batch.Queue(writing(0, older))
			batch.Queue("UPDATE data SET n = n + 1 WHERE id = 1")
			if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
				return err
			}
			inner, err := tx.Begin(ctx)
			if err != nil {
				return err
			}
			if _, err := inner.Exec(ctx, "UPDATE data SET n = 1/0"); err == nil {
				return errors.New("a division by zero succeeds")
			}
			if err := inner.Rollback(ctx); err != nil {
				return err
			}
			_, err = tx.CopyFrom(ctx, pgx.Identifier{"data"}, []string{"id", "n", "last", "stale", "fence"},
				pgx.CopyFromRows([][]any{{5, 1, 1, 0, 0}}))
			return err
		}
		require.NoError(t, r.f.Do(as(t, older), r.pool, resource, body))
		require.Equal(t, row{n: 2, last: int64(older)}, r.row(t))
		require.NoError(t, r.f.Claim(as(t, newer), r.pool, resource))
		require.ErrorIs(t, r.f.Do(as(t, older), r.pool, resource, body), fence.ErrStale)
		require.Equal(t, row{n: 2, last: int64(older)}, r.row(t))
	})
}

// A single connection serves as well as a pool, though Do has to claim on it first.
func TestFence_onOneConnection(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		t.Helper()
		pooled, err := r.pool.Acquire(t.Context())
		require.NoError(t, err)
		defer pooled.Release()
		single, err := pgx.Connect(t.Context(), r.store.DSN)
		require.NoError(t, err)
		defer single.Close(context.WithoutCancel(t.Context())) //nolint:errcheck // The test is over.

		for i, db := range []pgxfence.DB{pooled, single} {
			token := newer + fence.Token(i)
			body := func(ctx context.Context, tx pgx.Tx) error { return write(ctx, tx, int64(i), token) }
			require.NoError(t, r.f.Migrate(t.Context(), db))
			require.NoError(t, r.f.Do(as(t, token), db, resource, body))
			require.NoError(t, r.f.Claim(as(t, token), db, resource))
			require.ErrorIs(t, r.f.Do(as(t, older), db, resource, body), fence.ErrStale)
			require.EqualValues(t, i+1, r.row(t).n)
			r.refusesATransaction(t, db)
		}
		require.NoError(t, single.Close(t.Context()))
		err = r.f.Claim(as(t, newer+1), single, resource)
		require.True(t, pgconn.SafeToRetry(err), "%v", err)
	})
}

// refusesATransaction proves that a connection in a transaction is refused, and that the transaction is left alone.
func (r *rig) refusesATransaction(t *testing.T, db pgxfence.DB) {
	t.Helper()
	tx, err := db.BeginTx(t.Context(), pgx.TxOptions{})
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), "UPDATE data SET n = 100")
	require.NoError(t, err)
	for _, err := range []error{
		r.f.Claim(as(t, newer+5), db, resource),
		r.f.Do(as(t, newer+5), db, resource, nothing),
		r.f.Migrate(t.Context(), db),
	} {
		require.ErrorContains(t, err, "db is in a transaction")
	}
	require.NoError(t, tx.Rollback(t.Context()))
	require.NotEqualValues(t, 100, r.row(t).n, "Do has committed the caller's transaction")
}
