package sqlfence_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence/sqlfence"
	"github.com/leasefence/leasefence/integration/storetest"
)

// Two functions lock two rows in opposite order. The server ends one of them, and Do runs it again.
func TestDo_deadlockIsRepeated(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		t.Helper()
		if r.kind == storetest.SQLite {
			return // one writer at a time
		}
		r.exec(t, "INSERT INTO data VALUES (2, 0, 0, 0, 0)")
		met := make(chan struct{})
		results := make(chan error, 2)
		runs := make(chan int, 100)
		for i, rows := range [][2]int{{1, 2}, {2, 1}} {
			go func() {
				first := true
				name := fmt.Sprintf("%s %d", resource, i) // else the guard keeps the two apart
				results <- r.f.Do(as(t, older), r.db, name, func(ctx context.Context, tx *sql.Tx) error {
					runs <- i
					for _, id := range rows {
						if _, err := tx.ExecContext(ctx, fmt.Sprintf("UPDATE data SET n = n + 1 WHERE id = %d", id)); err != nil {
							return err
						}
						if first {
							first = false
							select { // each has one row now
							case met <- struct{}{}:
							case <-met:
							}
						}
					}
					return nil
				})
			}()
		}
		require.NoError(t, <-results)
		require.NoError(t, <-results)
		require.Greater(t, len(runs), 2, "there was no deadlock")
		require.EqualValues(t, 2, r.row(t).n)
	})
}

// The connection is gone before COMMIT: nobody knows, and fn does not run again.
func TestDo_connectionLostAtCommit(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		t.Helper()
		id, kill := "SELECT pg_backend_pid()", "SELECT pg_terminate_backend(%d)"
		switch r.kind {
		case storetest.MariaDB:
			id, kill = "SELECT CONNECTION_ID()", "KILL %d"
		case storetest.SQLite:
			return // no connection
		}
		runs := 0
		err := r.f.Do(as(t, older), r.db, resource, func(ctx context.Context, tx *sql.Tx) error {
			runs++
			var pid int64
			if err := tx.QueryRowContext(ctx, id).Scan(&pid); err != nil {
				return err
			}
			_, err := r.db.ExecContext(ctx, fmt.Sprintf(kill, pid))
			return err
		})
		require.ErrorIs(t, err, sqlfence.ErrUnknown)
		require.Equal(t, 1, runs)
		require.NoError(t, r.increment(as(t, older), do, nowhere), "the next one")
	})
}

// What Do does when fn does not succeed: nothing is written, the error is fn's, and the token has been seen.
func TestDo_functionFails(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		t.Helper()
		failure := errors.New("no more money")
		err := r.f.Do(as(t, newer), r.db, resource, func(ctx context.Context, tx *sql.Tx) error {
			require.NoError(t, write(ctx, tx, 0, newer))
			return failure
		})
		require.Equal(t, failure, err)
		require.PanicsWithValue(t, "mine", func() {
			_ = r.f.Do(as(t, newer), r.db, resource, func(ctx context.Context, tx *sql.Tx) error {
				require.NoError(t, write(ctx, tx, 0, newer))
				panic("mine")
			})
		})
		ctx, cancel := context.WithCancelCause(as(t, newer))
		err = r.f.Do(ctx, r.db, resource, func(ctx context.Context, tx *sql.Tx) error {
			require.NoError(t, write(ctx, tx, 0, newer))
			cancel(failure)
			return nil
		})
		require.ErrorIs(t, err, failure)
		require.NotErrorIs(t, err, sqlfence.ErrUnknown, "nothing was sent")
		require.ErrorIs(t, r.f.Do(as(t, newer), r.db, resource, func(_ context.Context, tx *sql.Tx) error {
			return tx.Rollback()
		}), sqlfence.ErrUnknown, "fn has ended the transaction")
		require.Zero(t, r.row(t).n)
		requireRefused(t, r.increment(as(t, older), do, nowhere), do)
	})
}
