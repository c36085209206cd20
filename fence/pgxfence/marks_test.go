package pgxfence_test

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/pgxfence"
	"github.com/leasefence/leasefence/fence/sqlfence"
)

func newFence(t *testing.T, opts pgxfence.Options) *pgxfence.Marks {
	t.Helper()
	f, err := pgxfence.New(opts)
	require.NoError(t, err)
	return f
}

func nothing(context.Context, pgx.Tx) error { return nil }

func TestNew_refusesBadOptions(t *testing.T) {
	for _, c := range []struct {
		opts pgxfence.Options
		want []string
	}{
		{pgxfence.Options{Table: "a b"}, []string{"Options.Table", `"a b"`, "1 to 63 letters"}},
		{pgxfence.Options{Isolation: "serializable; DROP"}, []string{"Options.Isolation", "DROP", `"serializable"`}},
		{pgxfence.Options{Isolation: pgx.TxIsoLevel(strings.Repeat("a", 99))}, []string{"Options.Isolation", `aaa"…`}},
	} {
		f, err := pgxfence.New(c.opts)
		require.Nil(t, f)
		for _, want := range append(c.want, "pgxfence: ") {
			require.ErrorContains(t, err, want)
		}
	}
}

// One table serves both packages, and their errors match each other.
func TestMarks_areThoseOfSqlfence(t *testing.T) {
	require.Equal(t, sqlfence.DefaultTable, pgxfence.DefaultTable)
	require.Equal(t, sqlfence.DefaultColumn, pgxfence.DefaultColumn)
	other, err := sqlfence.New(sqlfence.PostgreSQL, sqlfence.Options{})
	require.NoError(t, err)
	require.Equal(t, other.Schema(), newFence(t, pgxfence.Options{}).Schema())
	require.Same(t, sqlfence.ErrUnknown, pgxfence.ErrUnknown)
	require.Same(t, sqlfence.ErrUnclaimed, pgxfence.ErrUnclaimed)
	require.Same(t, sqlfence.ErrNoTable, pgxfence.ErrNoTable)
	require.Same(t, sqlfence.ErrNoRow, pgxfence.ErrNoRow)
}

// The test of sqlfence has the tokens, names and functions that the shared engine refuses.
func TestMarks_refusesBadInputBeforeItSends(t *testing.T) {
	db := untouched{}
	f := newFence(t, pgxfence.Options{})
	good := fence.WithLock(fence.NewContext(t.Context(), 7), "accounts")
	row := pgxfence.Row{Table: "accounts", Key: "id", ID: 7}

	require.ErrorContains(t, f.Claim(good, db, "a\x00b"), "pgxfence: resource is ")
	require.ErrorContains(t, f.UpdateRow(good, db, row, ""), "pgxfence: set is empty")
	released := &pgxpool.Conn{}
	for _, none := range []pgxfence.DB{nil, (*pgxpool.Pool)(nil), (*pgxpool.Conn)(nil), released, (*pgx.Conn)(nil)} {
		_, _, err := f.History(good, none, pgxfence.Query{})
		for _, err := range []error{err, f.Claim(good, none, "accounts"), f.Do(good, none, "accounts", nothing), f.Migrate(good, none)} {
			require.ErrorContains(t, err, "db is nil or released, want a ")
		}
		require.ErrorContains(t, f.UpdateRow(good, none, row, "n = 1"), "q is nil")
	}
	both := beginner{}
	for _, err := range []error{f.Claim(good, both, "accounts"), f.Do(good, both, "accounts", nothing), f.Migrate(good, both)} {
		require.ErrorContains(t, err, "db is in a transaction")
	}
	for _, none := range []pgx.Tx{nil, (*pgxpool.Tx)(nil)} {
		require.ErrorContains(t, f.Check(good, none, "accounts"), "tx is nil")
		require.ErrorContains(t, f.UpdateRow(good, none, row, "n = 1"), "q is nil")
	}
	for _, arg := range []any{
		pgx.NamedArgs{"n": 1}, pgx.QueryExecModeExec, pgx.QueryResultFormats{1}, pgx.QueryResultFormatsByOID{1: 1},
	} {
		require.ErrorContains(t, f.UpdateRow(good, db, row, "n = $1", arg), "args[0] is a pgx.")
	}
	for _, zero := range []*pgxfence.Marks{nil, {}} {
		require.ErrorContains(t, zero.Claim(good, db, "accounts"), "pgxfence: Marks is nil or zero, want one created by New")
		require.ErrorContains(t, zero.UpdateRow(good, db, row, "n = 1"), "New")
		require.Empty(t, zero.Schema())
	}
}

// beginner is a wrapper that is a transaction and can begin others. On it Do would run in a savepoint.
type beginner struct{ pgx.Tx }

func (beginner) BeginTx(context.Context, pgx.TxOptions) (pgx.Tx, error) {
	panic("a transaction is begun")
}

// fakeTx is a transaction that finds this token as the mark. It has only the methods that the example calls.
type fakeTx struct {
	pgx.Tx
	token fence.Token
}

func (*fakeTx) Exec(context.Context, string, ...any) (pgconn.CommandTag, error) {
	return pgconn.NewCommandTag("UPDATE 1"), nil
}

func (tx *fakeTx) QueryRow(context.Context, string, ...any) pgx.Row { return fakeRow(tx.token) }
func (*fakeTx) Commit(context.Context) error                        { return nil }
func (*fakeTx) Rollback(context.Context) error                      { return nil }

type fakeRow fence.Token

func (r fakeRow) Scan(dest ...any) error {
	*dest[0].(*fence.Token) = fence.Token(r)
	return nil
}

// untouched is a database that must not be used: its methods panic.
type untouched struct{ pgxfence.DB }
