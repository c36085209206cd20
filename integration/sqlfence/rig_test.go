package sqlfence_test

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/sqlfence"
	"github.com/leasefence/leasefence/integration/storetest"
)

func TestMain(m *testing.M) { storetest.Main(m) }

// patience bounds what a test waits for; it is far longer than anything takes.
const patience = 20 * time.Second

const (
	resource = "accounts"
	older    = fence.Token(10)
	newer    = fence.Token(20)
)

// place is a store at an isolation level.
type place struct {
	kind    storetest.Kind
	dialect sqlfence.Dialect
	level   sql.IsolationLevel
	journal string // of SQLite
}

var places = []place{
	{storetest.PostgreSQL, sqlfence.PostgreSQL, sql.LevelReadCommitted, ""},
	{storetest.PostgreSQL, sqlfence.PostgreSQL, sql.LevelRepeatableRead, ""},
	{storetest.PostgreSQL, sqlfence.PostgreSQL, sql.LevelSerializable, ""},
	{storetest.MariaDB, sqlfence.MySQL, sql.LevelReadUncommitted, ""},
	{storetest.MariaDB, sqlfence.MySQL, sql.LevelReadCommitted, ""},
	{storetest.MariaDB, sqlfence.MySQL, sql.LevelRepeatableRead, ""},
	{storetest.MariaDB, sqlfence.MySQL, sql.LevelSerializable, ""},
	{storetest.SQLite, sqlfence.SQLite, sql.LevelDefault, "wal"},
	{storetest.SQLite, sqlfence.SQLite, sql.LevelDefault, "delete"},
}

func (p place) String() string {
	if p.kind == storetest.SQLite {
		return fmt.Sprintf("%s, journal %s", p.kind, p.journal)
	}
	return fmt.Sprintf("%s, %s", p.kind, p.level)
}

// snapshots reports whether a transaction there reads from a snapshot that its first statement takes on PostgreSQL.
func (p place) snapshots() bool {
	return p.kind == storetest.PostgreSQL && p.level >= sql.LevelRepeatableRead
}

// readersLock reports whether a transaction there that has read keeps others from committing a write to the row.
func (p place) readersLock() bool {
	return p.journal == "delete" || p.kind == storetest.MariaDB && p.level == sql.LevelSerializable
}

func everywhere(t *testing.T, test func(t *testing.T, r *rig)) {
	t.Helper()
	for _, p := range places {
		t.Run(p.String(), func(t *testing.T) { test(t, newRig(t, p)) })
	}
}

const dataDDL = "CREATE TABLE data (id INT PRIMARY KEY, n BIGINT NOT NULL, last BIGINT NOT NULL, " +
	"stale BIGINT NOT NULL, fence BIGINT NOT NULL)"

// rig is a database with the marks and the table that they protect.
type rig struct {
	place
	db    *sql.DB
	hasty *sql.DB // SQLite: does not wait for the write lock
	f     *sqlfence.Fence
}

func newRig(t *testing.T, p place) *rig {
	t.Helper()
	store := storetest.New(t, p.kind)
	store.DSN = strings.Replace(store.DSN, "journal_mode(wal)", "journal_mode("+p.journal+")", 1)
	r := &rig{place: p, db: store.DB(t)}
	hasty := *store
	hasty.DSN = strings.Replace(store.DSN, "busy_timeout(30000)", "busy_timeout(0)", 1)
	r.hasty = hasty.DB(t)
	var err error
	r.f, err = sqlfence.New(p.dialect, sqlfence.Options{Isolation: p.level, Attempts: 50})
	require.NoError(t, err)
	require.NoError(t, r.f.Migrate(t.Context(), r.db))
	r.exec(t, dataDDL)
	r.reset(t)
	return r
}

// reset clears the mark and the data. A mark may be deleted here, for no holder of a schedule before is left.
func (r *rig) reset(t *testing.T) {
	t.Helper()
	r.exec(t, "DELETE FROM "+sqlfence.DefaultTable)
	r.exec(t, "DELETE FROM data")
	r.exec(t, "INSERT INTO data VALUES (1, 0, 0, 0, 0)")
}

func (r *rig) exec(t *testing.T, query string) {
	t.Helper()
	_, err := r.db.ExecContext(t.Context(), query)
	require.NoError(t, err)
}

// as is a context that carries a token.
func as(t *testing.T, token fence.Token) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(fence.NewContext(t.Context(), token), patience)
	t.Cleanup(cancel)
	return ctx
}

// fenced is a context for a benchmark, which has no bound.
func fenced(tb testing.TB) context.Context {
	tb.Helper()
	return fence.NewContext(tb.Context(), older)
}

// row is what the data show: how many writes, the newest token among them, how many came after one with a newer token.
type row struct{ n, last, stale int64 }

func (r *rig) row(t *testing.T) row {
	t.Helper()
	var got row
	require.NoError(t, r.db.QueryRowContext(t.Context(), "SELECT n, last, stale FROM data WHERE id = 1").
		Scan(&got.n, &got.last, &got.stale))
	return got
}

func read(ctx context.Context, tx sqlfence.Queryer) (int64, error) {
	var n int64
	err := tx.QueryRowContext(ctx, "SELECT n FROM data WHERE id = 1").Scan(&n)
	return n, err
}

// write is the second half of a read-modify-write, so that an update which is lost shows in n. The row itself counts
// the writes that come after one with a newer token. The order of the columns matters to MySQL.
func write(ctx context.Context, tx sqlfence.Queryer, n int64, token fence.Token) error {
	_, err := tx.ExecContext(ctx, fmt.Sprintf("UPDATE data SET stale = stale + CASE WHEN last > %[1]d THEN 1 ELSE 0 END, "+
		"n = %[2]d, last = CASE WHEN last > %[1]d THEN last ELSE %[1]d END WHERE id = 1", token, n+1))
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

// increment is one read-modify-write in a form. at is called at each step that the form has, again if it is repeated.
func (r *rig) increment(ctx context.Context, how form, at func(step)) error {
	token, _ := fence.FromContext(ctx)
	body := func(ctx context.Context, tx *sql.Tx) error {
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
	}
	at(beforeBegin)
	err := r.run(ctx, how, at, body)
	at(committed)
	return err
}

// run runs body in a transaction that the form guards.
func (r *rig) run(ctx context.Context, how form, at func(step), body func(context.Context, *sql.Tx) error) error {
	switch how {
	case do:
		return r.f.Do(ctx, r.db, resource, body)
	case doShared:
		return r.f.DoShared(ctx, r.db, resource, body)
	case check, checkShared:
	}
	return r.transaction(ctx, func(tx *sql.Tx) error {
		at(begun)
		verb := r.f.Check
		if how == checkShared {
			verb = r.f.CheckShared
		}
		if err := verb(ctx, tx, resource); err != nil {
			return err
		}
		return body(ctx, tx)
	})
}

// transaction is one of the caller's own, which commits if fn succeeds.
func (r *rig) transaction(ctx context.Context, fn func(tx *sql.Tx) error) error {
	tx, err := r.db.BeginTx(ctx, &sql.TxOptions{Isolation: r.level})
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if err := fn(tx); err != nil {
		return err
	}
	return tx.Commit()
}

func nowhere(step) {}

// awaitWaiter returns when a statement waits for a lock. SQLite does not tell; there the caller has to prove it.
func (r *rig) awaitWaiter(t *testing.T) {
	t.Helper()
	if r.kind == storetest.SQLite {
		return
	}
	require.Eventually(t, func() bool { return r.waiting(t) }, patience, time.Millisecond, "nothing waits for a lock")
}

// waiting reports whether a statement waits for a lock.
func (r *rig) waiting(t *testing.T) bool {
	t.Helper()
	query := "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
	if r.kind == storetest.MariaDB {
		query = "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS " +
			"WHERE VARIABLE_NAME = 'INNODB_ROW_LOCK_CURRENT_WAITS'"
	}
	var n int
	return r.db.QueryRowContext(t.Context(), query).Scan(&n) == nil && n > 0
}

// transient reports whether the server has refused a transaction that may begin again.
func transient(err error) bool {
	for _, text := range []string{"40001", "40P01", "Error 1213", "Error 1020", "database is locked"} {
		if err != nil && strings.Contains(err.Error(), text) {
			return true
		}
	}
	return false
}

// counted is [rig.increment], and returns what it has made of the row.
func (r *rig) counted(ctx context.Context, how form, token fence.Token) (int64, error) {
	var made int64
	body := func(ctx context.Context, tx *sql.Tx) error {
		n, err := read(ctx, tx)
		if err != nil {
			return err
		}
		made = n + 1
		return write(ctx, tx, n, token)
	}
	err := r.run(ctx, how, nowhere, body)
	return made, err
}
