package sqlfence_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/audit"
	"github.com/leasefence/leasefence/fence/pgxfence"
	"github.com/leasefence/leasefence/fence/sqlfence"
)

// conn runs statements: on a pool or in a transaction.
type conn interface {
	exec(ctx context.Context, query string, args ...any) error
	// scan reads the first row.
	scan(ctx context.Context, query string, dest ...any) error
}

// adapter is a fence over one library, and the pool that it writes through. The errors of the two match each other.
type adapter struct {
	conn
	pgxMarks *pgxfence.Marks // nil for sqlfence

	migrate                           func(ctx context.Context) error
	claim, move, claimRead, claimPath func(ctx context.Context, resource string) error
	do, doShared                      func(ctx context.Context, resource string, fn func(context.Context, conn) error) error
	transaction                       func(ctx context.Context, fn func(tx conn) error) error // the caller's own, at the fence's level
	guard                             map[form]func(ctx context.Context, tx conn, resource string) error
	updateRow                         func(ctx context.Context, q conn, row sqlfence.Row, set string, args ...any) error
	release                           func(ctx context.Context, resource string, cause audit.Cause) error
	logRefusal                        func(ctx context.Context, err error) error
	history                           func(ctx context.Context, q sqlfence.Query) ([]audit.Tenure, []audit.Refusal, error)
}

// library is a fence over a library with pools of type D and transactions of type T.
type library[D, T any] interface {
	Migrate(ctx context.Context, db D) error
	Claim(ctx context.Context, db D, resource string) error
	Move(ctx context.Context, db D, resource string) error
	ClaimRead(ctx context.Context, db D, resource string) error
	ClaimPath(ctx context.Context, db D, path string) error
	Do(ctx context.Context, db D, resource string, fn func(context.Context, T) error) error
	DoShared(ctx context.Context, db D, resource string, fn func(context.Context, T) error) error
	Check(ctx context.Context, tx T, resource string) error
	CheckShared(ctx context.Context, tx T, resource string) error
	CheckRead(ctx context.Context, tx T, resource string) error
	CheckPath(ctx context.Context, tx T, path string) error
	Release(ctx context.Context, db D, resource string, cause audit.Cause) error
	LogRefusal(ctx context.Context, db D, err error) error
}

// adapt returns an adapter without what the libraries do not have in common.
func adapt[D, T any](f library[D, T], db D, conned func(T) conn, own func(conn) T) *adapter {
	onPool := func(verb func(context.Context, D, string) error) func(context.Context, string) error {
		return func(ctx context.Context, resource string) error { return verb(ctx, db, resource) }
	}
	inside := func(verb func(context.Context, T, string) error) func(context.Context, conn, string) error {
		return func(ctx context.Context, tx conn, resource string) error { return verb(ctx, own(tx), resource) }
	}
	whole := func(verb func(context.Context, D, string, func(context.Context, T) error) error,
	) func(context.Context, string, func(context.Context, conn) error) error {
		return func(ctx context.Context, resource string, fn func(context.Context, conn) error) error {
			return verb(ctx, db, resource, func(ctx context.Context, tx T) error { return fn(ctx, conned(tx)) })
		}
	}
	return &adapter{
		migrate: func(ctx context.Context) error { return f.Migrate(ctx, db) },
		claim:   onPool(f.Claim), move: onPool(f.Move), claimRead: onPool(f.ClaimRead), claimPath: onPool(f.ClaimPath),
		do: whole(f.Do), doShared: whole(f.DoShared),
		guard: map[form]func(context.Context, conn, string) error{
			check: inside(f.Check), checkShared: inside(f.CheckShared), checkRead: inside(f.CheckRead), checkPath: inside(f.CheckPath),
		},
		release: func(ctx context.Context, resource string, cause audit.Cause) error {
			return f.Release(ctx, db, resource, cause)
		},
		logRefusal: func(ctx context.Context, err error) error { return f.LogRefusal(ctx, db, err) },
	}
}

// newSQL returns an adapter of sqlfence.
func newSQL(db *sql.DB, dialect sqlfence.Dialect, opts sqlfence.Options) (*adapter, error) {
	f, err := sqlfence.New(dialect, opts)
	a := adapt(f, db, func(tx *sql.Tx) conn { return sqlConn{tx} }, func(tx conn) *sql.Tx { return tx.(sqlConn).q.(*sql.Tx) })
	a.conn = sqlConn{db}
	a.transaction = func(ctx context.Context, fn func(conn) error) error {
		tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: opts.Isolation})
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }()
		if err := fn(sqlConn{tx}); err != nil {
			return err
		}
		return tx.Commit()
	}
	a.updateRow = func(ctx context.Context, q conn, row sqlfence.Row, set string, args ...any) error {
		return f.UpdateRow(ctx, q.(sqlConn).q, row, set, args...)
	}
	a.history = func(ctx context.Context, q sqlfence.Query) ([]audit.Tenure, []audit.Refusal, error) {
		return f.History(ctx, db, q)
	}
	return a, err
}

type sqlConn struct{ q sqlfence.Queryer }

func (c sqlConn) exec(ctx context.Context, query string, args ...any) error {
	_, err := c.q.ExecContext(ctx, query, args...)
	return err
}

func (c sqlConn) scan(ctx context.Context, query string, dest ...any) error {
	return c.q.QueryRowContext(ctx, query).Scan(dest...)
}

// newPGX returns an adapter of pgxfence.
func newPGX(pool *pgxpool.Pool, opts sqlfence.Options) (*adapter, error) {
	level := pgx.TxIsoLevel(strings.ToLower(opts.Isolation.String()))
	f, err := pgxfence.New(pgxfence.Options{
		Table: opts.Table, Log: opts.Log, Isolation: level, Attempts: opts.Attempts, MaxEra: opts.MaxEra,
		AllowUnnamed: opts.AllowUnnamed, Hooks: opts.Hooks,
	})
	a := adapt(f, pgxfence.DB(pool), func(tx pgx.Tx) conn { return pgxConn{tx} }, func(tx conn) pgx.Tx { return tx.(pgxConn).q.(pgx.Tx) })
	a.conn, a.pgxMarks = pgxConn{pool}, f
	a.transaction = func(ctx context.Context, fn func(conn) error) error {
		return pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: level}, func(tx pgx.Tx) error { return fn(pgxConn{tx}) })
	}
	a.updateRow = func(ctx context.Context, q conn, row sqlfence.Row, set string, args ...any) error {
		return f.UpdateRow(ctx, q.(pgxConn).q, pgxfence.Row(row), set, args...)
	}
	a.history = func(ctx context.Context, q sqlfence.Query) ([]audit.Tenure, []audit.Refusal, error) {
		return f.History(ctx, pool, pgxfence.Query(q))
	}
	return a, err
}

type pgxConn struct{ q pgxfence.Queryer }

func (c pgxConn) exec(ctx context.Context, query string, args ...any) error {
	_, err := c.q.Exec(ctx, query, args...)
	return err
}

func (c pgxConn) scan(ctx context.Context, query string, dest ...any) error {
	return c.q.QueryRow(ctx, query).Scan(dest...)
}

// fn ignores the error of a statement: COMMIT rolls back, and the outcome is known. The connection stays open, also if
// the context ends between two statements.
func TestPgx_commitOfAFailedTransaction(t *testing.T) {
	at(t, pgxPlaces, func(t *testing.T, r *rig) {
		require.NoError(t, r.claim(as(t, older), resource))
		opened := r.pool.Stat().NewConnsCount()
		err := r.do(as(t, older), resource, func(ctx context.Context, tx conn) error {
			require.NoError(t, write(ctx, tx, 0, older))
			require.Error(t, tx.exec(ctx, "SELECT 1/0"))
			return nil
		})
		require.ErrorIs(t, err, pgx.ErrTxCommitRollback)
		require.NotErrorIs(t, err, pgxfence.ErrUnknown, "it is known")
		ctx, cancel := context.WithCancel(as(t, older))
		err = r.do(ctx, resource, func(context.Context, conn) error {
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
		err := x.do(as(t, older), resource, func(ctx context.Context, tx conn) error {
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

// A single connection works like a pool, though Do has to claim on it first. In a transaction it is refused, and the
// transaction is left alone.
func TestPgx_onOneConnection(t *testing.T) {
	at(t, pgxPlaces, func(t *testing.T, r *rig) {
		pooled, err := r.pool.Acquire(t.Context())
		require.NoError(t, err)
		defer pooled.Release()
		single, err := pgx.Connect(t.Context(), r.store.dsn)
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

			tx, err := db.BeginTx(t.Context(), pgx.TxOptions{})
			require.NoError(t, err)
			require.NoError(t, write(t.Context(), pgxConn{tx}, 100, token))
			for _, err := range []error{
				r.pgxMarks.Claim(as(t, newer+5), db, resource),
				r.pgxMarks.Do(as(t, newer+5), db, resource, func(context.Context, pgx.Tx) error { return nil }),
				r.pgxMarks.Migrate(t.Context(), db),
			} {
				require.ErrorContains(t, err, "db is in a transaction")
			}
			require.NoError(t, tx.Rollback(t.Context()))
			require.EqualValues(t, i+1, r.row(t).n, "Do has committed the caller's transaction")
		}
		require.NoError(t, single.Close(t.Context()))
		err = r.pgxMarks.Claim(as(t, newer+1), single, resource)
		require.True(t, pgconn.SafeToRetry(err), "%v", err)
	})
}
