package sqlfence_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/pgxfence"
	"github.com/leasefence/leasefence/fence/sqlfence"
)

// fn ignores the error of a statement: COMMIT rolls back, and the outcome is known. The connection stays open, also if
// the context ends between two statements.
func TestPgx_commitOfAFailedTransaction(t *testing.T) {
	at(t, pgxPlaces, func(t *testing.T, r *rig) {
		require.NoError(t, r.claim(as(t, older), resource))
		opened := r.pool.Stat().NewConnsCount()
		err := r.do(as(t, older), resource, false, func(ctx context.Context, tx conn) error {
			require.NoError(t, write(ctx, tx, 0, older))
			require.Error(t, tx.exec(ctx, "SELECT 1/0"))
			return nil
		})
		require.ErrorIs(t, err, pgx.ErrTxCommitRollback)
		require.NotErrorIs(t, err, pgxfence.ErrUnknown, "it is known")
		ctx, cancel := context.WithCancel(as(t, older))
		err = r.do(ctx, resource, false, func(context.Context, conn) error {
			cancel()
			return nil
		})
		require.ErrorIs(t, err, context.Canceled)
		require.Zero(t, r.row(t).n)
		require.Equal(t, opened, r.pool.Stat().NewConnsCount(), "the connection was closed")
		require.Zero(t, r.pool.Stat().AcquiredConns(), "a connection is not given back")
	})
}

// If nothing of COMMIT could be sent, the outcome is known.
func TestPgx_commitIsNotSent(t *testing.T) {
	at(t, pgxPlaces, func(t *testing.T, r *rig) {
		x := r.hooked(t, sqlfence.Options{}, func(request string) error {
			if request == "commit" {
				return context.Canceled
			}
			return nil
		})
		require.NoError(t, r.claim(as(t, older), resource))
		var level string
		err := x.do(as(t, older), resource, false, func(ctx context.Context, tx conn) error {
			require.NoError(t, tx.scan(ctx, "SHOW transaction_isolation", &level))
			return write(ctx, tx, 0, older)
		})
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorContains(t, err, "not committed")
		require.NotErrorIs(t, err, pgxfence.ErrUnknown)
		require.Equal(t, row{}, r.row(t))
		require.Equal(t, strings.ToLower(r.level.String()), level)
	})
}

// Batches, COPY and savepoints of pgx run under the guard too. A savepoint may have a guard.
func TestPgx_batchCopyAndSavepoint(t *testing.T) {
	at(t, pgxPlaces, func(t *testing.T, r *rig) {
		body := func(ctx context.Context, tx pgx.Tx) error {
			var batch pgx.Batch
			batch.Queue("UPDATE data SET n = n + 1, last = 10 WHERE id = 1")
			batch.Queue("UPDATE data SET n = n + 1 WHERE id = 1")
			if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
				return err
			}
			inner, err := tx.Begin(ctx)
			if err != nil {
				return err
			}
			if err := r.pgxMarks.Check(ctx, inner, resource); err != nil {
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
		require.NoError(t, r.pgxMarks.Do(as(t, older), r.pool, resource, body))
		require.Equal(t, row{n: 2, last: int64(older)}, r.row(t))
		require.NoError(t, r.pgxMarks.Claim(as(t, newer), r.pool, resource))
		require.ErrorIs(t, r.pgxMarks.Do(as(t, older), r.pool, resource, body), fence.ErrStale)
		require.Equal(t, row{n: 2, last: int64(older)}, r.row(t))
	})
}

// A single connection works like a pool, though Do has to claim on it first.
func TestPgx_onOneConnection(t *testing.T) {
	at(t, pgxPlaces, func(t *testing.T, r *rig) {
		pooled, err := r.pool.Acquire(t.Context())
		require.NoError(t, err)
		defer pooled.Release()
		single, err := pgx.Connect(t.Context(), r.store.DSN)
		require.NoError(t, err)
		defer single.Close(context.WithoutCancel(t.Context())) //nolint:errcheck // The test is over.

		for i, db := range []pgxfence.DB{pooled, single} {
			token := newer + fence.Token(i)
			body := func(ctx context.Context, tx pgx.Tx) error { return write(ctx, pgxConn{tx}, int64(i), token) }
			require.NoError(t, r.pgxMarks.Migrate(t.Context(), db))
			require.NoError(t, r.pgxMarks.Do(as(t, token), db, resource, body))
			require.NoError(t, r.pgxMarks.Claim(as(t, token), db, resource))
			require.ErrorIs(t, r.pgxMarks.Do(as(t, older), db, resource, body), fence.ErrStale)
			require.EqualValues(t, i+1, r.row(t).n)
			r.refusesATransaction(t, db)
		}
		require.NoError(t, single.Close(t.Context()))
		err = r.pgxMarks.Claim(as(t, newer+1), single, resource)
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
		r.pgxMarks.Claim(as(t, newer+5), db, resource),
		r.pgxMarks.Do(as(t, newer+5), db, resource, func(context.Context, pgx.Tx) error { return nil }),
		r.pgxMarks.Migrate(t.Context(), db),
	} {
		require.ErrorContains(t, err, "db is in a transaction")
	}
	require.NoError(t, tx.Rollback(t.Context()))
	require.NotEqualValues(t, 100, r.row(t).n, "Do has committed the caller's transaction")
}
