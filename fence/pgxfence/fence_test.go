package pgxfence_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
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
		{pgxfence.Options{Table: "a.b.c"}, []string{"Options.Table", `"a.b.c"`}},
		{pgxfence.Options{Attempts: -1}, []string{"Options.Attempts", "-1", "1 to 1000"}},
		{pgxfence.Options{Attempts: 1001}, []string{"Options.Attempts", "1001", "1 to 1000"}},
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

// One table serves both packages.
func TestSchema_isThatOfSqlfence(t *testing.T) {
	require.Equal(t, sqlfence.DefaultTable, pgxfence.DefaultTable)
	require.Equal(t, sqlfence.DefaultColumn, pgxfence.DefaultColumn)
	other, err := sqlfence.New(sqlfence.PostgreSQL, sqlfence.Options{})
	require.NoError(t, err)
	require.Equal(t, other.Schema(), newFence(t, pgxfence.Options{}).Schema())
}

func TestErrors_matchThoseOfSqlfence(t *testing.T) {
	pairs := map[error]error{
		pgxfence.ErrUnknown:   sqlfence.ErrUnknown,
		pgxfence.ErrUnclaimed: sqlfence.ErrUnclaimed,
		pgxfence.ErrNoTable:   sqlfence.ErrNoTable,
		pgxfence.ErrNoRow:     sqlfence.ErrNoRow,
	}
	for ours, theirs := range pairs {
		require.ErrorIs(t, ours, theirs)
		require.ErrorIs(t, theirs, ours)
		require.Regexp(t, "^pgxfence: ", ours.Error())
		require.Equal(t, strings.TrimPrefix(theirs.Error(), "sql"), strings.TrimPrefix(ours.Error(), "pgx"))
		matches := 0
		for other := range pairs {
			if errors.Is(other, theirs) {
				matches++
			}
		}
		require.Equal(t, 1, matches, "%v matches another", theirs)
	}
}

func TestMarks_refusesBadInputBeforeItSends(t *testing.T) {
	db := untouched{fail: t.Error}
	f := newFence(t, pgxfence.Options{})
	good := fence.WithLock(fence.NewContext(t.Context(), 7), "accounts")
	row := pgxfence.Row{Table: "accounts", Key: "id", ID: 7}

	calls := func(ctx context.Context, db pgxfence.DB, resource string) []error {
		return []error{
			f.Claim(ctx, db, resource),
			f.Do(ctx, db, resource, nothing),
			f.DoShared(ctx, db, resource, nothing),
			f.Move(ctx, db, resource),
			f.ClaimPath(ctx, db, resource),
			f.CheckPath(ctx, nil, resource),
			f.Check(ctx, nil, resource),
			f.CheckShared(ctx, nil, resource),
		}
	}
	// The test of sqlfence has the tokens and names that the shared engine refuses.
	absurd := fence.NewContext(good, math.MaxInt64)
	for _, err := range append(calls(absurd, db, "accounts"), f.UpdateRow(absurd, db, row, "n = 1")) {
		require.ErrorIs(t, err, fence.ErrInvalidToken)
		require.ErrorContains(t, err, "pgxfence: ")
	}
	goodRead := fence.NewReadContext(good, 7)
	for _, err := range []error{f.ClaimRead(good, db, "accounts"), f.CheckRead(good, nil, "accounts"), f.Claim(goodRead, db, "accounts")} {
		require.ErrorIs(t, err, fence.ErrInvalidToken)
	}
	for _, err := range append(calls(good, db, "a\x00b"), f.ClaimRead(goodRead, db, "a\x00b"), f.CheckRead(goodRead, nil, "a\x00b")) {
		require.ErrorContains(t, err, "pgxfence: resource is ")
	}
	for _, none := range []pgxfence.DB{nil, (*pgxpool.Pool)(nil), (*pgxpool.Conn)(nil), (*pgx.Conn)(nil)} {
		for _, err := range append(calls(good, none, "accounts"), f.Migrate(good, none), f.ClaimRead(goodRead, none, "accounts")) {
			require.ErrorContains(t, err, "is nil, want a ")
		}
		_, _, err := f.History(good, none, pgxfence.Query{})
		require.ErrorContains(t, err, "db is nil, want a ")
		require.ErrorContains(t, f.UpdateRow(good, none, row, "n = 1"), "q is nil")
	}
	for _, none := range []pgx.Tx{nil, (*pgxpool.Tx)(nil)} {
		require.ErrorContains(t, f.Check(good, none, "accounts"), "tx is nil")
		require.ErrorContains(t, f.CheckRead(goodRead, none, "accounts"), "tx is nil")
		require.ErrorContains(t, f.CheckPath(good, none, "accounts"), "tx is nil")
		require.ErrorContains(t, f.UpdateRow(good, none, row, "n = 1"), "q is nil")
	}
	require.ErrorContains(t, f.Do(good, db, "accounts", nil), "fn is nil")
	require.ErrorContains(t, f.UpdateRow(good, db, row, ""), "set is empty")
	require.ErrorContains(t, f.UpdateRow(good, db, pgxfence.Row{}, "n = 1"), "Row is table")
	for _, arg := range []any{
		pgx.NamedArgs{"n": 1}, pgx.QueryExecModeExec, pgx.QueryResultFormats{1}, pgx.QueryResultFormatsByOID{1: 1},
	} {
		require.ErrorContains(t, f.UpdateRow(good, db, row, "n = $1", arg), "args[0] is a pgx.")
	}

	for _, zero := range []*pgxfence.Marks{nil, {}} {
		for _, err := range []error{
			zero.Claim(good, db, "accounts"),
			zero.Do(good, db, "accounts", nothing),
			zero.Check(good, nil, "accounts"),
			zero.ClaimRead(goodRead, db, "accounts"),
			zero.CheckRead(goodRead, nil, "accounts"),
			zero.Migrate(good, db),
			zero.UpdateRow(good, db, row, "n = 1"),
		} {
			require.ErrorContains(t, err, "New")
		}
		require.Empty(t, zero.Schema())
	}
}

// With a wrapper that is a transaction and can begin others, Do would run in a savepoint.
func TestMarks_refusesATransactionForADatabase(t *testing.T) {
	f := newFence(t, pgxfence.Options{})
	ctx := fence.NewContext(t.Context(), 7)
	both := beginner{&fakeTx{}, untouched{fail: t.Error}}
	for _, err := range []error{
		f.Claim(ctx, both, "accounts"),
		f.Do(ctx, both, "accounts", nothing),
		f.Migrate(ctx, both),
	} {
		require.ErrorContains(t, err, "db is in a transaction")
	}
}

// beginner has the methods of a transaction, and BeginTx.
type beginner struct {
	pgx.Tx
	db untouched
}

func (b beginner) BeginTx(ctx context.Context, opts pgx.TxOptions) (pgx.Tx, error) {
	return b.db.BeginTx(ctx, opts)
}
