package sqlfence_test

import (
	"context"
	"database/sql"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/audit"
	"github.com/leasefence/leasefence/fence/sqlfence"
)

// A statement outside of a transaction is not committed with autocommit=0, and a proxy may send it to a replica that
// lags. A transaction that stays open keeps its locks.
func TestMarks_sendsNothingOutsideOfATransaction(t *testing.T) {
	for _, dialect := range []sqlfence.Dialect{sqlfence.PostgreSQL, sqlfence.MySQL, sqlfence.SQLite} {
		f, err := sqlfence.New(dialect, sqlfence.Options{Log: sqlfence.DefaultLog})
		require.NoError(t, err)
		for _, mark := range []int64{6, 7, 8} {
			server := &fakeServer{token: mark}
			db := sql.OpenDB(server)
			ctx := fence.NewContext(t.Context(), 7)
			for name, call := range map[string]func() error{
				"Claim":      func() error { return f.Claim(ctx, db, "accounts") },
				"ClaimRead":  func() error { return f.ClaimRead(fence.NewReadContext(ctx, 7), db, "accounts") },
				"Do":         func() error { return f.Do(ctx, db, "accounts", func(context.Context, *sql.Tx) error { return nil }) },
				"Release":    func() error { return f.Release(ctx, db, "accounts", audit.CauseExplicit) },
				"LogRefusal": func() error { return f.LogRefusal(ctx, db, &fence.StaleError{Resource: "accounts", Token: 7}) },
				"Migrate":    func() error { return f.Migrate(ctx, db) },
				"History":    func() error { _, _, err := f.History(ctx, db, sqlfence.Query{}); return err },
				"UpdateRow": func() error {
					if dialect != sqlfence.MySQL { // the others always commit a lone statement
						return nil
					}
					return f.UpdateRow(ctx, db, sqlfence.Row{Table: "accounts", Key: "id", ID: 7}, "n = 1")
				},
			} {
				_ = call() // the fake's rows do not fit all calls
				require.Zero(t, server.loose, "%s: %s on a mark of %d", dialect, name, mark)
				require.Zero(t, server.open, "%s: %s on a mark of %d", dialect, name, mark)
			}
			require.Positive(t, server.begins)
			require.NoError(t, db.Close())
		}
	}
}

// The claim of a path that has been claimed reads each node once and writes nothing.
func TestMarks_ClaimPath_again(t *testing.T) {
	server := &fakeServer{token: 7}
	db := sql.OpenDB(server)
	defer db.Close() //nolint:errcheck // A fake.
	require.NoError(t, newFence(t, sqlfence.Options{}).ClaimPath(fence.NewContext(t.Context(), 7), db, "a/b/c"))
	require.Equal(t, 3, server.begins)
}
