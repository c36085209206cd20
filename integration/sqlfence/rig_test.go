package sqlfence_test

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/sqlfence"
)

// patience bounds every wait of a test. It is far longer than any wait takes.
const patience = 20 * time.Second

const (
	resource = "accounts"
	older    = fence.Token(10)
	newer    = fence.Token(20)
)

// account is the row of the table data. Its column fence is for UpdateRow.
var account = sqlfence.Row{Table: "data", Key: "id", ID: 1}

// place is a store at an isolation level, behind one of the two libraries.
type place struct {
	dialect sqlfence.Dialect
	level   sql.IsolationLevel
	journal string // of SQLite

	pgx  bool // pgxfence, not sqlfence
	mode pgx.QueryExecMode
}

var (
	readCommitted   = place{dialect: sqlfence.PostgreSQL, level: sql.LevelReadCommitted}
	repeatableRead  = place{dialect: sqlfence.PostgreSQL, level: sql.LevelRepeatableRead}
	mariaDB         = place{dialect: sqlfence.MySQL, level: sql.LevelRepeatableRead}
	sqlite          = place{dialect: sqlfence.SQLite, journal: "wal"}
	rollbackJournal = place{dialect: sqlfence.SQLite, journal: "delete"}
	pgxPlace        = place{dialect: sqlfence.PostgreSQL, level: sql.LevelReadCommitted, pgx: true, mode: pgx.QueryExecModeCacheStatement}
	pgxSnapshot     = place{dialect: sqlfence.PostgreSQL, level: sql.LevelSerializable, pgx: true, mode: pgx.QueryExecModeDescribeExec}
	pgxSimple       = place{dialect: sqlfence.PostgreSQL, level: sql.LevelReadCommitted, pgx: true, mode: pgx.QueryExecModeSimpleProtocol}
)

// places are each store at each level. pgxfence runs the statements of sqlfence, so it has one place with a snapshot and
// one without. TestMarks_random runs it at all levels, in all of pgx's modes.
var places = []place{
	readCommitted,
	repeatableRead,
	{dialect: sqlfence.PostgreSQL, level: sql.LevelSerializable},
	{dialect: sqlfence.MySQL, level: sql.LevelReadUncommitted},
	{dialect: sqlfence.MySQL, level: sql.LevelReadCommitted},
	mariaDB,
	{dialect: sqlfence.MySQL, level: sql.LevelSerializable},
	sqlite,
	rollbackJournal,
	pgxPlace,
	pgxSnapshot,
}

// pgxPlaces are those of pgxfence.
var pgxPlaces = []place{pgxPlace, pgxSnapshot, pgxSimple}

// each is one place of each store, for tests in which the level and the library make no difference.
var each = []place{readCommitted, mariaDB, sqlite}

// inTurn are for tests without concurrent calls. Only snapshots and the way that pgx sends arguments make a difference
// there.
var inTurn = append([]place{repeatableRead, pgxPlace, pgxSimple}, each...)

func (p place) String() string {
	switch {
	case p.dialect == sqlfence.SQLite:
		return fmt.Sprintf("%s, journal %s", p.dialect, p.journal)
	case p.pgx:
		return fmt.Sprintf("pgx, %s, %s", p.level, p.mode)
	}
	return fmt.Sprintf("%s, %s", p.dialect, p.level)
}

// snapshots reports whether a transaction there reads from a snapshot that its first statement takes on PostgreSQL.
func (p place) snapshots() bool {
	return p.dialect == sqlfence.PostgreSQL && p.level >= sql.LevelRepeatableRead
}

// forms are those with statements of their own. SQLite has one writer at a time, and no shared form.
func (p place) forms() []form {
	if p.dialect == sqlfence.SQLite {
		return []form{do, check}
	}
	return forms
}

// noSnapshot reports whether each statement of a transaction there reads the newest versions.
func (p place) noSnapshot() bool {
	return p.dialect != sqlfence.SQLite && p.level <= sql.LevelReadCommitted
}

// readersLock reports whether a transaction there that has read a row prevents others from committing a write to it.
func (p place) readersLock() bool {
	return p.journal == "delete" || p.dialect == sqlfence.MySQL && p.level == sql.LevelSerializable
}

// list is a query for the pairs of two columns, such as "1:10 2:20", in the order of the first.
func (p place) list(first, second, from string) string {
	pairs := "string_agg(CONCAT(%[1]s, ':', %[2]s), ' ' ORDER BY %[1]s)"
	if p.dialect == sqlfence.MySQL {
		pairs = "GROUP_CONCAT(CONCAT(%[1]s, ':', %[2]s) ORDER BY %[1]s SEPARATOR ' ')"
	}
	return fmt.Sprintf("SELECT COALESCE("+pairs+", '') FROM %[3]s", first, second, from)
}

func at(t *testing.T, places []place, test func(t *testing.T, r *rig)) {
	t.Helper()
	for _, p := range places {
		t.Run(p.String(), func(t *testing.T) { test(t, newRig(t, p)) })
	}
}

const dataDDL = "CREATE TABLE data (id INT PRIMARY KEY, n BIGINT NOT NULL, last BIGINT NOT NULL, " +
	"stale BIGINT NOT NULL, fence BIGINT NOT NULL)"

// rig is a database with the marks and with the table data, which they protect.
type rig struct {
	place
	*adapter

	store store
	db    *sql.DB
	pool  *pgxpool.Pool // nil without pgx
	once  bool          // see act
}

func newRig(t *testing.T, p place) *rig {
	t.Helper()
	store := newStore(t, p.dialect)
	store.dsn = strings.Replace(store.dsn, "journal_mode(wal)", "journal_mode("+p.journal+")", 1)
	return newRigOn(t, p, store)
}

func newRigOn(t *testing.T, p place, store store) *rig {
	t.Helper()
	r := &rig{place: p, store: store, db: store.open(t)}
	if p.pgx {
		r.pool = r.open(t, func(*pgx.ConnConfig) {})
	}
	r.adapter = r.with(t, sqlfence.Options{Attempts: 50})
	require.NoError(t, r.migrate(t.Context()))
	r.must(t, strings.Replace(dataDDL, "TABLE", "TABLE IF NOT EXISTS", 1))
	r.reset(t)
	return r
}

// with returns another fence at the rig's pool and level.
func (r *rig) with(t *testing.T, opts sqlfence.Options) *adapter {
	t.Helper()
	opts.Isolation = r.level
	var a *adapter
	var err error
	if r.pgx {
		a, err = newPGX(r.pool, opts)
	} else {
		a, err = newSQL(r.db, r.dialect, opts)
	}
	require.NoError(t, err)
	return a
}

// open opens another pool, whose connections are set by configure.
func (r *rig) open(t *testing.T, configure func(*pgx.ConnConfig)) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(r.store.dsn)
	require.NoError(t, err)
	config.ConnConfig.DefaultQueryExecMode = r.mode
	config.MaxConns = 20
	configure(config.ConnConfig)
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

// reset clears the mark and the data. Deleting a mark is safe here, since the holders of the test before have gone.
func (r *rig) reset(t *testing.T) {
	t.Helper()
	r.must(t, "DELETE FROM "+sqlfence.DefaultTable)
	r.must(t, "DELETE FROM data")
	r.must(t, "INSERT INTO data VALUES (1, 0, 0, 0, 0)")
}

// must runs a statement outside of any transaction.
func (r *rig) must(t *testing.T, query string) {
	t.Helper()
	require.NoError(t, r.exec(t.Context(), query))
}

// as returns a context that carries a token.
func as(t *testing.T, token fence.Token) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(fence.NewContext(t.Context(), token), patience)
	t.Cleanup(cancel)
	return ctx
}

// asReader returns a context that carries a reader's token.
func asReader(t *testing.T, token fence.Token) context.Context {
	t.Helper()
	return fence.NewReadContext(as(t, token), fence.ReadToken(token))
}

// of returns the context of a lock's holder, and readerOf that of a reader.
func of(t *testing.T, lock string, token fence.Token) context.Context {
	t.Helper()
	return fence.WithLock(as(t, token), lock)
}

func readerOf(t *testing.T, lock string, token fence.Token) context.Context {
	t.Helper()
	return fence.WithLock(asReader(t, token), lock)
}

// row is the row of the table data: the number of writes, their newest token, and the number of writes that came after
// one with a newer token.
type row struct{ n, last, stale int64 }

func (r *rig) row(t *testing.T) row {
	t.Helper()
	var got row
	require.NoError(t, r.scan(t.Context(), "SELECT n, last, stale FROM data WHERE id = 1", &got.n, &got.last, &got.stale))
	return got
}

func read(ctx context.Context, tx conn) (n int64, err error) {
	err = tx.scan(ctx, "SELECT n FROM data WHERE id = 1", &n)
	return n, err
}

// write is the second half of a read-modify-write, so that a lost update shows in n. The statement itself counts the
// writes that come after one with a newer token. The order of the columns matters to MySQL.
func write(ctx context.Context, tx conn, n int64, token fence.Token) error {
	return tx.exec(ctx, fmt.Sprintf("UPDATE data SET stale = stale + CASE WHEN last > %[1]d THEN 1 ELSE 0 END, "+
		"n = %[2]d, last = CASE WHEN last > %[1]d THEN last ELSE %[1]d END WHERE id = 1", token, n+1))
}

// awaitWaiter returns when a statement waits for a lock. SQLite does not show that.
func (r *rig) awaitWaiter(t *testing.T) {
	t.Helper()
	if r.dialect == sqlfence.SQLite {
		return
	}
	require.Eventually(t, func() bool { return r.waiting() }, patience, time.Millisecond, "nothing waits for a lock")
}

// waiting reports whether a statement waits for a lock.
func (r *rig) waiting() bool {
	query := "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
	if r.dialect == sqlfence.MySQL {
		query = "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS " +
			"WHERE VARIABLE_NAME = 'INNODB_ROW_LOCK_CURRENT_WAITS'"
	}
	var n int
	return r.scan(context.Background(), query, &n) == nil && n > 0
}

// transient reports whether err is a deadlock, a serialization failure or a busy lock: the transaction may begin again.
func transient(err error) bool {
	for _, text := range []string{"40001", "40P01", "Error 1213", "Error 1020", "database is locked"} {
		if err != nil && strings.Contains(err.Error(), text) {
			return true
		}
	}
	return false
}

// form is a way to write.
type form string

const (
	do          form = "Do"
	doShared    form = "DoShared"
	check       form = "Check"
	checkShared form = "CheckShared"

	// These are not among forms: one is for readers, the other needs a claim of the path.
	checkRead form = "CheckRead"
	checkPath form = "CheckPath"
)

var forms = []form{do, doShared, check, checkShared}

// checks reports whether the transaction is the caller's own.
func (f form) checks() bool { return f != do && f != doShared && f != "" }

func (f form) shared() bool { return f == doShared || f == checkShared }

// increment is one read-modify-write in a form, or under CheckRead two reads of the same.
func (r *rig) increment(ctx context.Context, how form) error {
	_, err := r.incrementOn(ctx, resource, how)
	return err
}

// incrementOn also returns what it has read, for the first time if it is repeated.
func (r *rig) incrementOn(ctx context.Context, resource string, how form) (first int64, err error) {
	token, _ := fence.FromContext(ctx)
	runs := 0
	err = r.run(ctx, resource, how, func(ctx context.Context, tx conn) (err error) {
		n, err := read(ctx, tx)
		if err != nil {
			return err
		}
		if runs++; runs == 1 {
			first = n
		}
		if how != checkRead {
			return write(ctx, tx, n, token)
		}
		again, err := read(ctx, tx)
		if err == nil && again != n {
			err = errChanged
		}
		return err
	})
	return first, err
}

// run runs body in a transaction that the form guards.
func (r *rig) run(ctx context.Context, resource string, how form, body func(context.Context, conn) error) error {
	switch how {
	case do:
		return r.do(ctx, resource, body)
	case doShared:
		return r.doShared(ctx, resource, body)
	}
	return r.transaction(ctx, func(tx conn) error {
		if err := r.guard[how](ctx, tx, resource); err != nil {
			return err
		}
		return body(ctx, tx)
	})
}

func nothing(context.Context, conn) error { return nil }
