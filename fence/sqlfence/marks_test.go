package sqlfence_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/audit"
	"github.com/leasefence/leasefence/fence/sqlfence"
	"github.com/leasefence/leasefence/internal/fencetest"
)

func newFence(t *testing.T, opts sqlfence.Options) *sqlfence.Marks {
	t.Helper()
	f, err := sqlfence.New(sqlfence.PostgreSQL, opts)
	require.NoError(t, err)
	return f
}

func TestNew_refusesBadOptions(t *testing.T) {
	for _, c := range []struct {
		dialect sqlfence.Dialect
		opts    sqlfence.Options
		want    []string
	}{
		{0, sqlfence.Options{}, []string{"dialect", "Dialect(0)", "PostgreSQL, MySQL or SQLite"}},
		{4, sqlfence.Options{}, []string{"dialect", "Dialect(4)"}},
		{sqlfence.MySQL, sqlfence.Options{Table: "a b"}, []string{"Options.Table", `"a b"`, "1 to 63 letters"}},
		{sqlfence.MySQL, sqlfence.Options{Table: ".a"}, []string{"Options.Table", `".a"`}},
		{sqlfence.MySQL, sqlfence.Options{Table: "a."}, []string{"Options.Table", `"a."`}},
		{sqlfence.MySQL, sqlfence.Options{Table: "a.b.c"}, []string{"Options.Table", `"a.b.c"`}},
		{sqlfence.MySQL, sqlfence.Options{Table: "1a"}, []string{"Options.Table", `"1a"`}},
		{sqlfence.MySQL, sqlfence.Options{Table: "a`b"}, []string{"Options.Table", "a`b"}},
		{sqlfence.MySQL, sqlfence.Options{Table: strings.Repeat("a", 64)}, []string{"Options.Table", "…"}},
		{sqlfence.MySQL, sqlfence.Options{Log: "a b"}, []string{"Options.Log", `"a b"`, "1 to 51 letters"}},
		{sqlfence.MySQL, sqlfence.Options{Log: strings.Repeat("x", 52)}, []string{"Options.Log", "1 to 51 letters"}},
		{sqlfence.MySQL, sqlfence.Options{Log: sqlfence.DefaultTable}, []string{"Options.Log", "another table than that of the marks"}},
		{sqlfence.MySQL, sqlfence.Options{Table: "a_refused", Log: "a"}, []string{"Options.Log", `"a"`, "another table"}},
		{sqlfence.MySQL, sqlfence.Options{Attempts: -1}, []string{"Options.Attempts", "-1", "1 to 1000"}},
		{sqlfence.MySQL, sqlfence.Options{Attempts: 1001}, []string{"Options.Attempts", "1001", "1 to 1000"}},
		{sqlfence.MySQL, sqlfence.Options{MaxEra: 32768}, []string{"sqlfence: Options.MaxEra is 32768, want 1 to 32767"}},
		{sqlfence.MySQL, sqlfence.Options{Isolation: 8}, []string{"Options.Isolation", "8", "0 to 7"}},
		{sqlfence.MySQL, sqlfence.Options{Isolation: -1}, []string{"Options.Isolation", "-1"}},
	} {
		f, err := sqlfence.New(c.dialect, c.opts)
		require.Nil(t, f)
		for _, want := range c.want {
			require.ErrorContains(t, err, want)
		}
	}
}

func TestSchema_quotesItsTable(t *testing.T) {
	for dialect, want := range map[sqlfence.Dialect]string{
		sqlfence.PostgreSQL: `"select"."Marks_1"`,
		sqlfence.MySQL:      "`select`.`Marks_1`",
		sqlfence.SQLite:     `"select"."Marks_1"`,
	} {
		f, err := sqlfence.New(dialect, sqlfence.Options{Table: "select.Marks_1"})
		require.NoError(t, err)
		require.Len(t, f.Schema(), 1)
		require.True(t, strings.HasPrefix(f.Schema()[0], "CREATE TABLE IF NOT EXISTS "+want+" ("), f.Schema()[0])
	}
}

// Nothing is sent: the driver fails the test at the first connection.
func TestMarks_refusesBadInputBeforeItSends(t *testing.T) {
	db := sql.OpenDB(&fakeServer{connect: func() error {
		t.Error("a connection is opened")
		return errors.New("no connection")
	}})
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	f := newFence(t, sqlfence.Options{Log: sqlfence.DefaultLog})
	good := fence.WithLock(fence.NewContext(t.Context(), 7), "accounts")
	fn := func(context.Context, *sql.Tx) error { return nil }

	verbs := func(db *sql.DB) map[string]fencetest.Verb {
		type verb = func(ctx context.Context, resource string) error
		all := fencetest.VerbsOf(
			func(ctx context.Context, resource string) error { return f.Claim(ctx, db, resource) },
			func(ctx context.Context, resource string) error { return f.Check(ctx, nil, resource) },
			func(ctx context.Context, resource string) error { return f.Move(ctx, db, resource) },
			func(ctx context.Context, resource string) error { return f.ClaimRead(ctx, db, resource) },
			func(ctx context.Context, resource string) error { return f.CheckRead(ctx, nil, resource) },
		)
		for name, call := range map[string]verb{
			"Do":          func(ctx context.Context, resource string) error { return f.Do(ctx, db, resource, fn) },
			"DoShared":    func(ctx context.Context, resource string) error { return f.DoShared(ctx, db, resource, fn) },
			"CheckShared": func(ctx context.Context, resource string) error { return f.CheckShared(ctx, nil, resource) },
			"Release": func(ctx context.Context, resource string) error {
				return f.Release(ctx, db, resource, audit.CauseExplicit)
			},
			"ClaimPath": func(ctx context.Context, resource string) error { return f.ClaimPath(ctx, db, resource) },
			"CheckPath": func(ctx context.Context, resource string) error { return f.CheckPath(ctx, nil, resource) },
		} {
			all[name] = fencetest.Verb{Call: call}
		}
		return all
	}
	resources := map[string]string{}
	for _, resource := range []string{"", strings.Repeat("a", 256), "a\x00b", "\x01a", "\xff"} {
		resources[resource] = "want 1 to 255 bytes of UTF-8"
		err := f.LogRefusal(good, db, &fence.StaleError{Resource: resource, Token: 7, Highest: 8})
		require.ErrorContains(t, err, "StaleError.Resource is ")
		if resource != "" { // "" means all resources
			_, _, err := f.History(good, db, sqlfence.Query{Resource: resource})
			require.ErrorContains(t, err, "Query.Resource is ")
		}
	}
	fencetest.Refuse(t, verbs(db), resources)
	for name, v := range verbs(nil) {
		require.ErrorContains(t, v.Call(v.Context(t.Context(), 7, "accounts"), "accounts"), "is nil, want a *sql.", name)
	}
	goodRead := fence.NewReadContext(good, 7)
	for _, ctx := range []context.Context{t.Context(), goodRead, fence.NewContext(good, math.MaxInt64)} {
		require.ErrorIs(t, f.UpdateRow(ctx, db, sqlfence.Row{}, "n = 1"), fence.ErrInvalidToken)
	}
	require.ErrorContains(t, f.Release(good, db, "accounts", audit.CauseSuperseded), `cause is "superseded"`)
	_, _, err := f.History(good, db, sqlfence.Query{Limit: 100_001})
	require.ErrorContains(t, err, "Query.Limit is 100001, want 0 for 1000, or 1 to 100000")
	_, _, err = f.History(good, db, sqlfence.Query{Since: time.Unix(1, 0), Until: time.Unix(1, 0)})
	require.ErrorContains(t, err, "Query.Since")
	logless := newFence(t, sqlfence.Options{})
	_, _, err = logless.History(good, db, sqlfence.Query{})
	for _, err := range []error{err, logless.Release(good, db, "accounts", audit.CauseExplicit), logless.LogRefusal(good, db, nil)} {
		require.ErrorContains(t, err, "Options.Log is empty")
	}
	require.ErrorContains(t, f.Migrate(good, nil), "is nil, want a *sql.")
	require.ErrorContains(t, f.Do(good, db, "accounts", nil), "fn is nil")

	row := sqlfence.Row{Table: "accounts", Key: "id", ID: 7}
	for _, q := range []sqlfence.Queryer{nil, (*sql.DB)(nil), (*sql.Tx)(nil), (*sql.Conn)(nil)} {
		require.ErrorContains(t, f.UpdateRow(good, q, row, "n = 1"), "nil")
	}
	require.ErrorContains(t, f.UpdateRow(good, db, row, ""), "set is empty")
	for _, bad := range []sqlfence.Row{
		{Key: "id", ID: 7},
		{Table: "accounts", ID: 7},
		{Table: "accounts", Key: "id"},
		{Table: "accounts", Key: "i d", ID: 7},
		{Table: "accounts", Key: "id", ID: 7, Column: "f; "},
	} {
		require.ErrorContains(t, f.UpdateRow(good, db, bad, "n = 1"), "Row is table")
	}

	for _, zero := range []*sqlfence.Marks{nil, {}} {
		require.ErrorContains(t, zero.Claim(good, db, "accounts"), "New")
		require.ErrorContains(t, zero.Check(good, nil, "accounts"), "New")
		require.ErrorContains(t, zero.ClaimRead(goodRead, db, "accounts"), "New")
		require.ErrorContains(t, zero.CheckRead(goodRead, nil, "accounts"), "New")
		require.ErrorContains(t, zero.Migrate(good, db), "New")
		require.Empty(t, zero.Schema())
		require.ErrorContains(t, zero.UpdateRow(good, db, row, "n = 1"), "New")
	}
}

// fakeServer is a PostgreSQL whose marks always equal the token, those of writers and of readers. It is also its driver,
// connections and transactions. The test chooses the results of connecting and of COMMIT.
type fakeServer struct {
	token           int64
	connect         func() error
	commit          func() error
	query           func() error // the error of a statement
	begins, commits int          // read them only when no transaction is under way
}

func (s *fakeServer) Connect(context.Context) (driver.Conn, error) { return s, call(s.connect) }
func (s *fakeServer) Driver() driver.Driver                        { return s }
func (s *fakeServer) Open(string) (driver.Conn, error)             { return s, nil }
func (s *fakeServer) Prepare(string) (driver.Stmt, error)          { return nil, errors.New("not prepared") }
func (s *fakeServer) Close() error                                 { return nil }
func (s *fakeServer) Rollback() error                              { return nil }

func (s *fakeServer) Begin() (driver.Tx, error) {
	s.begins++
	return s, nil
}

// BeginTx takes any level.
func (s *fakeServer) BeginTx(context.Context, driver.TxOptions) (driver.Tx, error) { return s.Begin() }

func (s *fakeServer) Commit() error {
	s.commits++
	return call(s.commit)
}

func (s *fakeServer) QueryContext(_ context.Context, query string, _ []driver.NamedValue) (driver.Rows, error) {
	values := fakeRow{s.token, s.token, "", int64(0), int64(0), "", false}
	if strings.Contains(query, "txid_current") {
		values = values[:1]
	}
	return &values, call(s.query)
}

func (s *fakeServer) ExecContext(context.Context, string, []driver.NamedValue) (driver.Result, error) {
	return driver.RowsAffected(1), call(s.query)
}

func call(result func() error) error {
	if result == nil {
		return nil
	}
	return result()
}

type fakeRow []driver.Value

func (r *fakeRow) Columns() []string { return make([]string, len(*r)) }
func (r *fakeRow) Close() error      { return nil }

func (r *fakeRow) Next(dest []driver.Value) error {
	if *r == nil {
		return io.EOF
	}
	copy(dest, *r)
	*r = nil
	return nil
}

type stateError string // as pgx's and lib/pq's

func (e stateError) Error() string    { return "ERROR: something (SQLSTATE " + string(e) + ")" }
func (e stateError) SQLState() string { return string(e) }

// Do repeats a transaction that COMMIT has rolled back for a temporary reason, returns the error if the reason is
// permanent, and returns ErrUnknown for any other error of COMMIT.
func TestDo_answerToCommit(t *testing.T) {
	for _, c := range []struct {
		err     error
		runs    int
		unknown bool
	}{
		{nil, 1, false},
		{stateError("40001"), 3, false},
		{fmt.Errorf("wrapped: %w", stateError("40P01")), 3, false},
		{stateError("23505"), 1, false},
		{stateError("P0001"), 1, false},
		{errors.New("commit unexpectedly resulted in rollback"), 1, false},
		{stateError("40003"), 1, true},
		{stateError("57P01"), 1, true},
		{stateError("08006"), 1, true},
		{stateError(""), 1, true},
		{io.ErrUnexpectedEOF, 1, true},
		{driver.ErrBadConn, 1, true},
		{context.DeadlineExceeded, 1, true},
		{errors.New("Error 1213 (40001): Deadlock found"), 1, true}, // MySQL's error, unknown on PostgreSQL
	} {
		t.Run(fmt.Sprint(c.err), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := &fakeServer{token: 7, commit: func() error { return c.err }}
				runs, err := doOn(fence.NewContext(t.Context(), 7), t, server, nil, 3)
				require.Equal(t, c.runs, runs)
				require.Equal(t, c.runs, server.begins)
				require.Equal(t, c.unknown, errors.Is(err, sqlfence.ErrUnknown), "%v", err)
				require.ErrorIs(t, err, c.err)
				if c.unknown {
					require.EqualError(t, err, fmt.Sprintf(`sqlfence: outcome unknown: do "accounts": commit: %v`, c.err))
				}
			})
		})
	}
}

// Do returns the error of fn, and repeats fn only after an error of the server that is temporary.
func TestDo_errorOfFn(t *testing.T) {
	for _, c := range []struct {
		err  error
		runs int
	}{
		{stateError("40001"), 3},
		{errors.Join(errors.New("also"), stateError("40P01")), 3},
		{stateError("55P03"), 1}, // lock_not_available
		{stateError("57014"), 1}, // query_canceled
		{io.EOF, 1},
		{sqlfence.ErrUnknown, 1},
		{errors.Join(sqlfence.ErrUnknown, stateError("40001")), 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			server := &fakeServer{token: 7}
			runs, err := doOn(fence.NewContext(t.Context(), 7), t, server, func() error { return c.err }, 3)
			require.Equal(t, c.runs, runs, "%v", c.err)
			require.ErrorIs(t, err, c.err)
			require.Zero(t, server.commits)
		})
	}
}

func TestDo_contextEndsInThePause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone := errors.New("the lock has gone")
		ctx, cancel := context.WithCancelCause(fence.NewContext(t.Context(), 7))
		runs, err := doOn(ctx, t, &fakeServer{token: 7}, func() error { cancel(gone); return stateError("40001") }, 10)
		require.ErrorIs(t, err, gone)
		require.ErrorIs(t, err, stateError("40001"))
		require.Equal(t, 1, runs)
	})
}

// A guard that has met a newer COMMIT is repeated without a count, but not for the guard of another Do.
func TestDo_ofAnotherResourceGivesUp(t *testing.T) {
	ctx, cancel := context.WithCancel(fence.NewContext(t.Context(), 7))
	server := &fakeServer{token: 7, query: func() error {
		cancel()
		return stateError("40001")
	}}
	db := sql.OpenDB(server)
	defer db.Close() //nolint:errcheck // A fake.
	runs, f := 0, newFence(t, sqlfence.Options{Attempts: 1})
	_, err := doOn(fence.NewContext(t.Context(), 7), t, &fakeServer{token: 7}, func() error {
		if runs++; runs == 5 {
			return nil
		}
		return f.Do(ctx, db, "inner", func(context.Context, *sql.Tx) error { panic("not guarded") })
	}, 1)
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, 1, runs)
}

// The claim of a Do shares its attempts.
func TestDo_claimFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &fakeServer{token: 7, commit: func() error { return stateError("40001") }}
		_, err := doOn(fence.NewContext(t.Context(), 8), t, server, func() error { panic("not claimed") }, 3)
		require.ErrorIs(t, err, stateError("40001"))
		require.Equal(t, 3, server.commits)
	})
}

// The claim of a path that has been claimed reads each node once and writes nothing.
func TestMarks_ClaimPath_again(t *testing.T) {
	server := &fakeServer{token: 7}
	db := sql.OpenDB(server)
	defer db.Close() //nolint:errcheck // A fake.
	require.NoError(t, newFence(t, sqlfence.Options{}).ClaimPath(fence.NewContext(t.Context(), 7), db, "a/b/c"))
	require.Equal(t, 3, server.begins)
}

// doOn runs Do and returns how often the function ran.
func doOn(ctx context.Context, t *testing.T, server *fakeServer, fn func() error, attempts int) (runs int, err error) {
	t.Helper()
	db := sql.OpenDB(server)
	defer db.Close() //nolint:errcheck // A fake.
	err = newFence(t, sqlfence.Options{Attempts: attempts}).Do(ctx, db, "accounts", func(context.Context, *sql.Tx) error {
		runs++
		if fn == nil {
			return nil
		}
		return fn()
	})
	return runs, err
}
