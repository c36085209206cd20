package sqlfence_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasefence/leasefence/fence/audit"
	"github.com/leasefence/leasefence/fence/pgxfence"
	"github.com/leasefence/leasefence/fence/sqlfence"
)

// conn runs statements: on a pool or in a transaction.
type conn interface {
	exec(ctx context.Context, query string, args ...any) error
	// scan reads the first row.
	scan(ctx context.Context, query string, dest ...any) error
	// pairs reads rows of two integers.
	pairs(ctx context.Context, query string) ([][2]int64, error)
}

// adapter is a fence over one library, and the pool that it writes through. The errors of the two match each other.
type adapter interface {
	conn
	migrate(ctx context.Context) error
	claim(ctx context.Context, resource string) error
	move(ctx context.Context, resource string) error
	do(ctx context.Context, resource string, shared bool, fn func(ctx context.Context, tx conn) error) error
	check(ctx context.Context, tx conn, resource string, shared bool) error
	claimRead(ctx context.Context, resource string) error
	checkRead(ctx context.Context, tx conn, resource string) error
	claimPath(ctx context.Context, path string) error
	checkPath(ctx context.Context, tx conn, path string) error
	// transaction is one of the caller's own, at the fence's level, which commits if fn succeeds.
	transaction(ctx context.Context, fn func(tx conn) error) error
	updateRow(ctx context.Context, q conn, row sqlfence.Row, set string, args ...any) error
	release(ctx context.Context, resource string, cause audit.Cause) error
	logRefusal(ctx context.Context, err error) error
	history(ctx context.Context, q sqlfence.Query) ([]audit.Tenure, []audit.Refusal, error)
}

// overSQL is sqlfence.
type overSQL struct {
	sqlConn
	f     *sqlfence.Marks
	db    *sql.DB
	level sql.IsolationLevel
}

func newSQL(db *sql.DB, dialect sqlfence.Dialect, opts sqlfence.Options) (overSQL, error) {
	f, err := sqlfence.New(dialect, opts)
	return overSQL{sqlConn{db}, f, db, opts.Isolation}, err
}

func (a overSQL) migrate(ctx context.Context) error { return a.f.Migrate(ctx, a.db) }

func (a overSQL) claim(ctx context.Context, resource string) error {
	return a.f.Claim(ctx, a.db, resource)
}

func (a overSQL) move(ctx context.Context, resource string) error {
	return a.f.Move(ctx, a.db, resource)
}

func (a overSQL) do(ctx context.Context, resource string, shared bool, fn func(context.Context, conn) error) error {
	verb := a.f.Do
	if shared {
		verb = a.f.DoShared
	}
	return verb(ctx, a.db, resource, func(ctx context.Context, tx *sql.Tx) error { return fn(ctx, sqlConn{tx}) })
}

func (a overSQL) check(ctx context.Context, tx conn, resource string, shared bool) error {
	verb := a.f.Check
	if shared {
		verb = a.f.CheckShared
	}
	return verb(ctx, tx.(sqlConn).q.(*sql.Tx), resource)
}

func (a overSQL) claimRead(ctx context.Context, resource string) error {
	return a.f.ClaimRead(ctx, a.db, resource)
}

func (a overSQL) checkRead(ctx context.Context, tx conn, resource string) error {
	return a.f.CheckRead(ctx, tx.(sqlConn).q.(*sql.Tx), resource)
}

func (a overSQL) claimPath(ctx context.Context, path string) error {
	return a.f.ClaimPath(ctx, a.db, path)
}

func (a overSQL) checkPath(ctx context.Context, tx conn, path string) error {
	return a.f.CheckPath(ctx, tx.(sqlConn).q.(*sql.Tx), path)
}

func (a overSQL) transaction(ctx context.Context, fn func(conn) error) error {
	tx, err := a.db.BeginTx(ctx, &sql.TxOptions{Isolation: a.level})
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if err := fn(sqlConn{tx}); err != nil {
		return err
	}
	return tx.Commit()
}

func (a overSQL) updateRow(ctx context.Context, q conn, row sqlfence.Row, set string, args ...any) error {
	if q == nil {
		q = a.sqlConn
	}
	return a.f.UpdateRow(ctx, q.(sqlConn).q, row, set, args...)
}

func (a overSQL) release(ctx context.Context, resource string, cause audit.Cause) error {
	return a.f.Release(ctx, a.db, resource, cause)
}

func (a overSQL) logRefusal(ctx context.Context, err error) error {
	return a.f.LogRefusal(ctx, a.db, err)
}

func (a overSQL) history(ctx context.Context, q sqlfence.Query) ([]audit.Tenure, []audit.Refusal, error) {
	return a.f.History(ctx, a.db, q)
}

// sqlQueryer is a *sql.DB or a *sql.Tx.
type sqlQueryer interface {
	sqlfence.Queryer
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

type sqlConn struct{ q sqlQueryer }

func (c sqlConn) exec(ctx context.Context, query string, args ...any) error {
	_, err := c.q.ExecContext(ctx, query, args...)
	return err
}

func (c sqlConn) scan(ctx context.Context, query string, dest ...any) error {
	return c.q.QueryRowContext(ctx, query).Scan(dest...)
}

func (c sqlConn) pairs(ctx context.Context, query string) (all [][2]int64, err error) {
	rows, err := c.q.QueryContext(ctx, query)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var pair [2]int64
		if err := rows.Scan(&pair[0], &pair[1]); err != nil {
			return nil, err
		}
		all = append(all, pair)
	}
	return all, rows.Err()
}

// overPGX is pgxfence.
type overPGX struct {
	pgxConn
	f     *pgxfence.Marks
	pool  *pgxpool.Pool
	level pgx.TxIsoLevel
}

func newPGX(pool *pgxpool.Pool, opts sqlfence.Options) (overPGX, error) {
	level := pgx.TxIsoLevel(strings.ToLower(opts.Isolation.String()))
	f, err := pgxfence.New(pgxfence.Options{
		Table: opts.Table, Log: opts.Log, Isolation: level, Attempts: opts.Attempts, MaxEra: opts.MaxEra,
		AllowUnnamed: opts.AllowUnnamed, Hooks: opts.Hooks,
	})
	return overPGX{pgxConn{pool}, f, pool, level}, err
}

func (a overPGX) migrate(ctx context.Context) error { return a.f.Migrate(ctx, a.pool) }

func (a overPGX) claim(ctx context.Context, resource string) error {
	return a.f.Claim(ctx, a.pool, resource)
}

func (a overPGX) move(ctx context.Context, resource string) error {
	return a.f.Move(ctx, a.pool, resource)
}

func (a overPGX) do(ctx context.Context, resource string, shared bool, fn func(context.Context, conn) error) error {
	verb := a.f.Do
	if shared {
		verb = a.f.DoShared
	}
	return verb(ctx, a.pool, resource, func(ctx context.Context, tx pgx.Tx) error { return fn(ctx, pgxConn{tx}) })
}

func (a overPGX) check(ctx context.Context, tx conn, resource string, shared bool) error {
	verb := a.f.Check
	if shared {
		verb = a.f.CheckShared
	}
	return verb(ctx, tx.(pgxConn).q.(pgx.Tx), resource)
}

func (a overPGX) claimRead(ctx context.Context, resource string) error {
	return a.f.ClaimRead(ctx, a.pool, resource)
}

func (a overPGX) checkRead(ctx context.Context, tx conn, resource string) error {
	return a.f.CheckRead(ctx, tx.(pgxConn).q.(pgx.Tx), resource)
}

func (a overPGX) claimPath(ctx context.Context, path string) error {
	return a.f.ClaimPath(ctx, a.pool, path)
}

func (a overPGX) checkPath(ctx context.Context, tx conn, path string) error {
	return a.f.CheckPath(ctx, tx.(pgxConn).q.(pgx.Tx), path)
}

func (a overPGX) transaction(ctx context.Context, fn func(conn) error) error {
	return pgx.BeginTxFunc(ctx, a.pool, pgx.TxOptions{IsoLevel: a.level}, func(tx pgx.Tx) error { return fn(pgxConn{tx}) })
}

func (a overPGX) updateRow(ctx context.Context, q conn, row sqlfence.Row, set string, args ...any) error {
	if q == nil {
		q = a.pgxConn
	}
	return a.f.UpdateRow(ctx, q.(pgxConn).q, pgxfence.Row(row), set, args...)
}

func (a overPGX) release(ctx context.Context, resource string, cause audit.Cause) error {
	return a.f.Release(ctx, a.pool, resource, cause)
}

func (a overPGX) logRefusal(ctx context.Context, err error) error {
	return a.f.LogRefusal(ctx, a.pool, err)
}

func (a overPGX) history(ctx context.Context, q sqlfence.Query) ([]audit.Tenure, []audit.Refusal, error) {
	return a.f.History(ctx, a.pool, pgxfence.Query(q))
}

// pgxQueryer is a *pgxpool.Pool or a pgx.Tx.
type pgxQueryer interface {
	pgxfence.Queryer
	pgxfence.Reader
}

type pgxConn struct{ q pgxQueryer }

func (c pgxConn) exec(ctx context.Context, query string, args ...any) error {
	_, err := c.q.Exec(ctx, query, args...)
	return err
}

func (c pgxConn) scan(ctx context.Context, query string, dest ...any) error {
	return c.q.QueryRow(ctx, query).Scan(dest...)
}

func (c pgxConn) pairs(ctx context.Context, query string) ([][2]int64, error) {
	rows, err := c.q.Query(ctx, query)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (pair [2]int64, err error) {
		err = row.Scan(&pair[0], &pair[1])
		return pair, err
	})
}
