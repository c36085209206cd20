package pgxfence_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"testing/synctest"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/pgxfence"
	"github.com/leasefence/leasefence/fence/sqlfence"
)

func code(code string) error { return &pgconn.PgError{Code: code} }

// unsentError is an error of pgx that came before anything was sent.
type unsentError struct{ error }

func (unsentError) SafeToRetry() bool { return true }

// What becomes of an answer to COMMIT, by pgx's own errors. Those that sqlfence may meet as well are in its test.
func TestDo_answerToCommit(t *testing.T) {
	for _, c := range []struct {
		err     error
		runs    int
		unknown bool
	}{
		{nil, 1, false},
		{code("40001"), 3, false},
		{code("23505"), 1, false},
		{pgx.ErrTxCommitRollback, 1, false},
		{unsentError{io.ErrClosedPipe}, 1, false},
		{unsentError{context.Canceled}, 1, false},
		{code("57P01"), 1, true},
		{context.DeadlineExceeded, 1, true},
	} {
		t.Run(fmt.Sprint(c.err), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				db := &fakeDB{token: 7, commit: func() error { return c.err }}
				runs, err := doOn(t, db, nothing)
				require.Equal(t, c.runs, runs)
				require.Equal(t, c.runs, db.begins)
				require.Equal(t, c.unknown, errors.Is(err, pgxfence.ErrUnknown), "%v", err)
				require.Equal(t, c.unknown, errors.Is(err, sqlfence.ErrUnknown), "%v", err)
				require.ErrorIs(t, err, c.err)
			})
		})
	}
}

// fn has ended the transaction: who knows what it did.
func TestDo_fnEndsTheTransaction(t *testing.T) {
	for name, end := range map[string]func(context.Context, pgx.Tx) error{
		"commit":   func(ctx context.Context, tx pgx.Tx) error { return tx.Commit(ctx) },
		"rollback": func(ctx context.Context, tx pgx.Tx) error { return tx.Rollback(ctx) },
	} {
		t.Run(name, func(t *testing.T) {
			runs, err := doOn(t, &fakeDB{token: 7}, end)
			require.Equal(t, 1, runs)
			require.ErrorIs(t, err, pgxfence.ErrUnknown)
			require.ErrorIs(t, err, pgx.ErrTxClosed)
			require.ErrorContains(t, err, "fn has ended the transaction")
		})
	}
}

// The context has ended, and ROLLBACK still has time: pgx would close the connection.
func TestDo_rollsBackWhenTheContextHasEnded(t *testing.T) {
	gone := errors.New("the lock has gone")
	ctx, cancel := context.WithCancelCause(fence.NewContext(t.Context(), 7))
	db := &fakeDB{token: 7}
	err := newFence(t, pgxfence.Options{}).Do(ctx, db, "accounts", func(context.Context, pgx.Tx) error {
		cancel(gone)
		return nil
	})
	require.ErrorIs(t, err, gone)
	require.NotErrorIs(t, err, pgxfence.ErrUnknown, "nothing was sent")
	require.Zero(t, db.commits)
	require.Equal(t, 1, db.rollbacks)
	require.NoError(t, db.rollback)
}

func TestDo_beginsAtItsLevel(t *testing.T) {
	for _, level := range []pgx.TxIsoLevel{"", pgx.ReadUncommitted, pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
		db := &fakeDB{token: 7}
		f := newFence(t, pgxfence.Options{Isolation: level})
		require.NoError(t, f.Do(fence.NewContext(t.Context(), 7), db, "accounts", nothing))
		require.Equal(t, pgx.TxOptions{IsoLevel: level}, db.opts)
	}
}

// doOn runs Do with three attempts and returns how often the function ran.
func doOn(t *testing.T, db *fakeDB, fn func(context.Context, pgx.Tx) error) (runs int, err error) {
	t.Helper()
	ctx := fence.NewContext(t.Context(), db.token)
	f := newFence(t, pgxfence.Options{Attempts: 3})
	err = f.Do(ctx, db, "accounts", func(ctx context.Context, tx pgx.Tx) error {
		runs++
		return fn(ctx, tx)
	})
	return runs, err
}
