package pgxfence_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/pgxfence"
	"github.com/leasefence/leasefence/integration/storetest"
)

func TestMain(m *testing.M) { storetest.Main(m) }

// patience bounds what a test waits for; it is far longer than anything takes.
const patience = 20 * time.Second

const (
	resource = "accounts"
	older    = fence.Token(10)
	newer    = fence.Token(20)
	dataDDL  = "CREATE TABLE data (id INT PRIMARY KEY, n BIGINT NOT NULL, last BIGINT NOT NULL, " +
		"stale BIGINT NOT NULL, fence BIGINT NOT NULL)"
)

// place is an isolation level and a way in which pgx sends statements.
type place struct {
	level pgx.TxIsoLevel
	mode  pgx.QueryExecMode
}

var places = []place{
	{pgx.ReadUncommitted, pgx.QueryExecModeCacheStatement},
	{pgx.ReadCommitted, pgx.QueryExecModeCacheStatement},
	{pgx.RepeatableRead, pgx.QueryExecModeCacheStatement},
	{pgx.Serializable, pgx.QueryExecModeCacheStatement},
	{pgx.ReadCommitted, pgx.QueryExecModeSimpleProtocol},
	{pgx.RepeatableRead, pgx.QueryExecModeExec},
	{pgx.ReadCommitted, pgx.QueryExecModeCacheDescribe},
	{pgx.Serializable, pgx.QueryExecModeDescribeExec},
}

func (p place) String() string { return fmt.Sprintf("%s, %s", p.level, p.mode) }

// snapshots reports whether a transaction there reads from a snapshot that its first statement takes.
func (p place) snapshots() bool { return p.level == pgx.RepeatableRead || p.level == pgx.Serializable }

func everywhere(t *testing.T, test func(t *testing.T, r *rig)) {
	t.Helper()
	for _, p := range places {
		t.Run(p.String(), func(t *testing.T) { test(t, newRig(t, p)) })
	}
}

// rig is a database with the marks and the table that they protect.
type rig struct {
	place
	store *storetest.Store
	pool  *pgxpool.Pool
	f     *pgxfence.Fence
}

func newRig(t *testing.T, p place) *rig {
	t.Helper()
	r := &rig{place: p, store: storetest.New(t, storetest.PostgreSQL)}
	r.pool = r.open(t, nil)
	r.f = newFence(t, p)
	require.NoError(t, r.f.Migrate(t.Context(), r.pool))
	r.exec(t, dataDDL)
	r.reset(t)
	return r
}

func newFence(t *testing.T, p place) *pgxfence.Fence {
	t.Helper()
	f, err := pgxfence.New(pgxfence.Options{Isolation: p.level, Attempts: 50})
	require.NoError(t, err)
	return f
}

// open opens another pool, whose connections are dialled by dial if that is not nil.
func (r *rig) open(t *testing.T, dial pgconn.DialFunc) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(r.store.DSN)
	require.NoError(t, err)
	config.ConnConfig.DefaultQueryExecMode = r.mode
	config.MaxConns = writers + 4
	if dial != nil {
		config.ConnConfig.DialFunc = dial
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

// reset clears the mark and the data. A mark may be deleted here, for no holder of a schedule before is left.
func (r *rig) reset(t *testing.T) {
	t.Helper()
	r.exec(t, "DELETE FROM "+pgxfence.DefaultTable)
	r.exec(t, "DELETE FROM data")
	r.exec(t, "INSERT INTO data VALUES (1, 0, 0, 0, 0)")
}

func (r *rig) exec(t *testing.T, query string) {
	t.Helper()
	_, err := r.pool.Exec(t.Context(), query)
	require.NoError(t, err)
}

// as is a context that carries a token.
func as(t *testing.T, token fence.Token) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(fence.NewContext(t.Context(), token), patience)
	t.Cleanup(cancel)
	return ctx
}

// row is what the data show: how many writes, the newest token among them, how many came after one with a newer token.
type row struct{ n, last, stale int64 }

func (r *rig) row(t *testing.T) row {
	t.Helper()
	return r.rowOf(t, 1)
}

func (r *rig) rowOf(t *testing.T, id int) row {
	t.Helper()
	var got row
	require.NoError(t, r.pool.QueryRow(t.Context(), fmt.Sprintf("SELECT n, last, stale FROM data WHERE id = %d", id)).
		Scan(&got.n, &got.last, &got.stale))
	return got
}

func read(ctx context.Context, q pgxfence.Queryer) (int64, error) {
	var n int64
	err := q.QueryRow(ctx, "SELECT n FROM data WHERE id = 1").Scan(&n)
	return n, err
}

// writing is the second half of a read-modify-write, so that an update which is lost shows in n. The row itself counts
// the writes that come after one with a newer token.
func writing(n int64, token fence.Token) string {
	return fmt.Sprintf("UPDATE data SET stale = stale + CASE WHEN last > %[1]d THEN 1 ELSE 0 END, "+
		"n = %[2]d, last = greatest(last, %[1]d) WHERE id = 1", token, n+1)
}

func write(ctx context.Context, q pgxfence.Queryer, n int64, token fence.Token) error {
	_, err := q.Exec(ctx, writing(n, token))
	return err
}

// step is a place in a transaction where another holder may come.
type step string

const (
	beforeBegin step = "before the transaction"
	begun       step = "after begin"
	guarded     step = "after the guard"
	hasRead     step = "after the read"
	hasWritten  step = "after the write"
	committed   step = "after the commit"
)

// form is a way to write.
type form string

const (
	do          form = "Do"
	doShared    form = "DoShared"
	check       form = "Check"
	checkShared form = "CheckShared"
)

var forms = []form{do, doShared, check, checkShared}

// checks reports whether the transaction is the caller's own.
func (f form) checks() bool { return f == check || f == checkShared }

// increment is one read-modify-write in a form. at is called at each step that the form has, again if it is repeated.
func (r *rig) increment(ctx context.Context, how form, at func(step)) error {
	token, _ := fence.FromContext(ctx)
	at(beforeBegin)
	err := r.run(ctx, how, at, func(ctx context.Context, tx pgx.Tx) error {
		at(guarded)
		n, err := read(ctx, tx)
		if err != nil {
			return err
		}
		at(hasRead)
		if err := write(ctx, tx, n, token); err != nil {
			return err
		}
		at(hasWritten)
		return nil
	})
	at(committed)
	return err
}

// run runs body in a transaction that the form guards.
func (r *rig) run(ctx context.Context, how form, at func(step), body func(context.Context, pgx.Tx) error) error {
	switch how {
	case do:
		return r.f.Do(ctx, r.pool, resource, body)
	case doShared:
		return r.f.DoShared(ctx, r.pool, resource, body)
	case check, checkShared:
	}
	return r.transaction(ctx, func(tx pgx.Tx) error {
		at(begun)
		if err := r.verb(how)(ctx, tx, resource); err != nil {
			return err
		}
		return body(ctx, tx)
	})
}

func (r *rig) verb(how form) func(context.Context, pgx.Tx, string) error {
	if how == checkShared {
		return r.f.CheckShared
	}
	return r.f.Check
}

// transaction is one of the caller's own, which commits if fn succeeds.
func (r *rig) transaction(ctx context.Context, fn func(tx pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, r.pool, pgx.TxOptions{IsoLevel: r.level}, fn)
}

func nowhere(step) {}

func nothing(context.Context, pgx.Tx) error { return nil }

// awaitWaiter returns when a statement waits for a lock.
func (r *rig) awaitWaiter(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool { return r.waiting(t) }, patience, time.Millisecond, "nothing waits for a lock")
}

// waiting reports whether a statement waits for a lock.
func (r *rig) waiting(t *testing.T) bool {
	t.Helper()
	var n int
	err := r.pool.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity "+
		"WHERE datname = current_database() AND wait_event_type = 'Lock'").Scan(&n)
	return err == nil && n > 0
}

// transient reports whether the server has refused a transaction that may begin again.
func transient(err error) bool {
	refused, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (refused.Code == "40001" || refused.Code == "40P01")
}
